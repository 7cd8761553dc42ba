#!/usr/bin/env bash
# test-systemd.sh [-n] [-a ACCEL]: boots a small Debian with systemd in QEMU, installs the packages there, and tries the
# units: start, sandbox, reload, watchdog, limits given back, removal. Prints what it checked.
#   -n        with the packages in packaging/debs of cargo's target folder, as they were built last
#   -a ACCEL  QEMU's accelerator; default is software emulation, which works everywhere (kvm where that is real)
# Needs on Debian: root, mmdebstrap, qemu-system-x86, e2fsprogs, busybox-static, cpio, and what build-debs.sh needs.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
accel=tcg,thread=multi built=
while getopts na: option; do case $option in
    n) built=yes ;;
    a) accel=$OPTARG ;;
    *) sed -n '2,7p' "$0" >&2; exit 64 ;;
esac; done
skip() { echo "SKIPPED: test-systemd.sh: $*"; exit 0; }
export PATH=$PATH:/usr/sbin:/sbin
[ "$(id -u)" = 0 ] || skip "it needs root"
for program in mmdebstrap qemu-system-x86_64 mke2fs busybox cpio; do
    command -v $program >/dev/null || skip "there is no $program here"
done
cd "$here/.."
target=$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
[ -n "$built" ] || "$here/build-debs.sh"
work=$(mktemp -d); trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf --one-file-system "$work"' EXIT
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
"$here/build-debs.sh" -n -f -v "$version+upgraded" "$work/upgraded"
rm "$work"/upgraded/gleaner-agent-xen_*.deb # the machine runs no Xen
"$here/base.sh" "$target/packaging/base.tar"
tests/lab/kvm/images.sh "$target/packaging/kvm"

. packaging/boot.sh
machine_disk h1 in-guest.sh "$target"/packaging/debs/gleaner{,-agent,-aggregator}_*.deb "$work/upgraded" docs/examples/folder-* "$here/in-guest.sh"
machine_initrd
touch "$work/output"
machine h1 1500 -serial "file:$work/output" &
machine=$!
tail -n +1 -s 0.5 -f --pid=$machine "$work/output" | sed -u 's/\r$//; /^EXIT /d' &
shown=$!
ended=0; wait $machine || ended=$?
wait $shown || true
code=$(tr -d '\r' <"$work/output" | sed -n 's/^EXIT \([0-9]*\)$/\1/p' | tail -1)
[ -z "$code" ] || exit "$code"
echo "test-systemd.sh: the machine ended without a result ($ended); its console:" >&2
tail -n 30 "$work/h1.console" "$work/h1.log" >&2
exit 125
