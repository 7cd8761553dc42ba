#!/usr/bin/env bash
# build-debs.sh [-v VERSION] [-n] [DIR]: builds the Debian packages gleaner-agent, gleaner-aggregator and gleaner.
#   -v VERSION  their version; default is the workspace's
#   -n          without building the programs: those of the last time are packed
#   DIR         where they go; default is packaging/debs in cargo's target folder
# Needs on Debian: a C compiler, dpkg-dev; installs cargo-deb if it is missing.
set -euo pipefail
version=() build=yes
while getopts v:n option; do case $option in
    v) version=(--deb-version "$OPTARG") ;;
    n) build= ;;
    *) sed -n '2,6p' "$0" >&2; exit 64 ;;
esac; done; shift $((OPTIND - 1))
cd "$(dirname "$0")/.."
target=$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
out=$(mkdir -p "${1:-$target/packaging/debs}" && cd "${1:-$target/packaging/debs}" && pwd)
# The packages of one commit are the same whenever they are built.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}; export SOURCE_DATE_EPOCH
command -v cargo-deb >/dev/null || cargo install cargo-deb --locked --version 3.8.0 --quiet

if [ -n "$build" ]; then
    cargo build --release --locked -p gleaner-agent -p gleaner-aggregator -p gleaner --bins
fi
extra=$target/release/packaging
rm -rf "$extra" && mkdir -p "$extra/completions"
"$target/release/gleaner" reference man "$extra/man"
gzip -9n "$extra"/man/*/*.1
"$target/release/gleaner" completions bash >"$extra/completions/gleaner.bash"
"$target/release/gleaner" completions zsh >"$extra/completions/_gleaner"
"$target/release/gleaner" completions fish >"$extra/completions/gleaner.fish"

mkdir "$extra/docs"
for document in README.md docs/*.md; do
    sed -E -f packaging/shipped.sed "$document" >"$extra/docs/${document##*/}"
done

for package in gleaner-agent gleaner-aggregator gleaner; do
    cargo deb --package "$package" --no-build --quiet --output "$out/" "${version[@]}"
done
