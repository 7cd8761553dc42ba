#!/usr/bin/env bash
# build-debs.sh [-v VERSION] [-n] [-f] [DIR]: builds the Debian packages gleaner-agent, gleaner-aggregator and gleaner, for each
# one NAME-dbgsym with its debug symbols, and gleaner-agent-xen, the agent's helper on Xen, which has its own licence.
#   -v VERSION  their version; default is the workspace's
#   -n          without building the programs: those of the last time are packed
#   -f          fast, for tests: packed with less effort, and without symbols
#   DIR         where they go; default is packaging/debs in cargo's target folder
# Needs on Debian: Rust, a C compiler, binutils, dpkg-dev. Installs one program if it is missing: cargo-deb, into cargo's own
# folder. The release build is the one of `cargo build --release`: what that has built is not built again.
# Packing takes one and a half minutes on 2 CPUs, the release build some five (docs/performance.md).
set -euo pipefail
version=() build=yes fast=()
while getopts v:nf option; do case $option in
    v) version=(--deb-version "$OPTARG") ;;
    n) build= ;;
    f) fast=(--fast) ;;
    *) sed -n '2,11p' "$0" >&2; exit 64 ;;
esac; done; shift $((OPTIND - 1))
cd "$(dirname "$0")/.."
target=$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
out=$(mkdir -p "${1:-$target/packaging/debs}" && cd "${1:-$target/packaging/debs}" && pwd)
# The packages of one commit are the same whenever they are built.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}; export SOURCE_DATE_EPOCH
for program in dpkg-shlibdeps objcopy readelf; do
    command -v $program >/dev/null || { echo "build-debs.sh: no $program: apt-get install dpkg-dev binutils" >&2; exit 69; }
done
command -v cargo-deb >/dev/null || {
    echo "build-debs.sh: installing cargo-deb (once)" >&2
    cargo install cargo-deb --locked --version 3.8.0 --quiet
}

if [ -n "$build" ]; then
    # Chosen from the whole workspace, not by -p, which builds what they depend on once more, with other features.
    cargo build --release --locked --bin gleaner-agent --bin gleaner-aggregator --bin gleaner
    cargo build --release --locked --manifest-path agent-xen/Cargo.toml --target-dir "$target/agent-xen"
fi
extra=$target/release/packaging
rm -rf "$extra" && mkdir -p "$extra/completions"
"$target/release/gleaner" reference man "$extra/man"
gzip -9n "$extra"/man/*/*
"$target/release/gleaner" completions bash >"$extra/completions/gleaner.bash"
"$target/release/gleaner" completions zsh >"$extra/completions/_gleaner"
"$target/release/gleaner" completions fish >"$extra/completions/gleaner.fish"

gzip -9nc CHANGELOG.md >"$extra/changelog.gz"

mkdir "$extra/docs"
for document in README.md ARCHITECTURE.md docs/*.md; do
    sed -E -f packaging/shipped.sed "$document" >"$extra/docs/${document##*/}"
done

# The symbols of a package's program in a package of their own, where debuggers look for them.
symbols() { # PACKAGE VERSION
    local package=$1 version=$2 id root=$extra/$1-dbgsym
    id=$(readelf -n "$target/release/$package" | sed -n 's/.*Build ID: //p')
    mkdir -p "$root"/{DEBIAN,usr/share/doc,usr/lib/debug/.build-id/"${id:0:2}"}
    objcopy --only-keep-debug --compress-debug-sections=zlib "$target/release/$package" "$root/usr/lib/debug/.build-id/${id:0:2}/${id:2}.debug"
    chmod 644 "$root/usr/lib/debug/.build-id/${id:0:2}/${id:2}.debug"
    ln -s "$package" "$root/usr/share/doc/$package-dbgsym"
    cat >"$root/DEBIAN/control" <<CONTROL
Package: $package-dbgsym
Source: gleaner
Version: $version
Architecture: $(dpkg --print-architecture)
Auto-Built-Package: debug-symbols
Section: debug
Priority: optional
Maintainer: The Gleaner project <gleaner@example.org>
Installed-Size: $(du -sk "$root/usr" | cut -f 1)
Depends: $package (= $version)
Build-Ids: $id
Description: debug symbols for $package
 Debuggers and profilers find functions and lines of $package by them.
CONTROL
    # The sections are compressed already.
    dpkg-deb --root-owner-group -Zxz -z1 --build "$root" "$out/" >/dev/null
}

for package in gleaner-agent gleaner-aggregator gleaner; do
    rm -f "$out/$package"_*.deb "$out/$package"-dbgsym_*.deb
    cargo deb --package "$package" --no-build --strip --quiet "${fast[@]}" --output "$out/" "${version[@]}"
    [ -n "${fast[*]}" ] || symbols "$package" "$(dpkg-deb -f "$out/$package"_*.deb Version)"
done
rm -f "$out"/gleaner-agent-xen_*.deb
# Agent and helper speak with each other only if they are of one release.
mkdir -p "$extra"/xen/{packaging,agent-xen,systemd}
cp -r packaging/{copyright-xen,changelog,agent-xen} "$extra/xen/packaging/"
cp systemd/gleaner-agent-xen.conf "$extra/xen/systemd/"
cp -r agent-xen/{Cargo.toml,Cargo.lock,README.md,PROTOCOL.md,src} "$extra/xen/agent-xen/"
of_agent=$(dpkg-deb -f "$out"/gleaner-agent_*.deb Version)
sed -i "s/^depends = .*/depends = \"\$auto, gleaner-agent (= $of_agent)\"/" "$extra/xen/agent-xen/Cargo.toml"
CARGO_TARGET_DIR=$target/agent-xen cargo deb --manifest-path "$extra/xen/agent-xen/Cargo.toml" --no-build --quiet "${fast[@]}" --output "$out/" "${version[@]}"
ls -lh "$out"/gleaner*.deb | awk '{ print $5, $NF }'
