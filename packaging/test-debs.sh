#!/usr/bin/env bash
# test-debs.sh [-n]: builds the packages in two versions, and installs, upgrades, removes and purges them in a clean
# Debian without a running systemd. What purge leaves must be what was there before install. Prints what it checked.
#   -n   with the programs as they were built last
# Needs on Debian: root, mmdebstrap, and what build-debs.sh needs.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
[ "$(id -u)" = 0 ] || { echo "SKIPPED: test-debs.sh: it needs root"; exit 0; }
command -v mmdebstrap >/dev/null || { echo "SKIPPED: test-debs.sh: there is no mmdebstrap here"; exit 0; }
cd "$here/.."
target=$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
work=$(mktemp -d); trap 'rm -rf --one-file-system "$work"' EXIT

version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
"$here/build-debs.sh" "$@" "$work/old"
"$here/build-debs.sh" -n -f -v "$version+upgraded" "$work/new"
# They are tried apart: installing them takes their time.
mkdir "$work/symbols" && mv "$work"/old/*-dbgsym_*.deb "$work/symbols/"
if command -v lintian >/dev/null; then
    lintian --fail-on error,warning --allow-root --tag-display-limit 0 "$work"/old/*.deb "$work"/symbols/*.deb && echo "lintian finds no fault"
else
    echo "SKIPPED: lintian: it is not here"
fi
"$here/base.sh" "$target/packaging/base.tar"
root=$work/root
mkdir "$root" && tar -C "$root" -xf "$target/packaging/base.tar"
# What is mounted there is gone when this namespace ends.
cp "$here/in-chroot.sh" "$root/" && mkdir "$root/debs" && cp -r "$work/old" "$work/new" "$work/symbols" "$root/debs/"
unshare --mount --pid --fork --kill-child sh -c '
    mount --make-rprivate / && mount -t proc proc "$1/proc" && exec chroot "$1" /in-chroot.sh' sh "$root"
