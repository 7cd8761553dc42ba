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
"$here/base.sh" "$target/packaging/base.tar"
tests/lab/kvm/images.sh "$target/packaging/kvm"
work=$(mktemp -d); trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf --one-file-system "$work"' EXIT

# The disk: the clean Debian, the packages, and the test as a unit that switches the machine off when it is done.
root=$work/root
mkdir "$root" && tar -C "$root" -xf "$target/packaging/base.tar"
mkdir "$root/test" && cp "$target"/packaging/debs/gleaner*.deb docs/examples/folder-* "$here/in-guest.sh" "$root/test/"
echo h1 >"$root/etc/hostname" && echo "127.0.0.1 localhost h1" >"$root/etc/hosts"
cat >"$root/etc/systemd/system/test.service" <<'UNIT'
[Unit]
After=multi-user.target
[Service]
ExecStart=/bin/sh -c '/test/in-guest.sh >/dev/ttyS1 2>&1; echo "EXIT $?" >/dev/ttyS1; systemctl poweroff --force --force'
UNIT
mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
ln -s ../test.service "$root/etc/systemd/system/multi-user.target.wants/"
truncate -s 2G "$work/disk" && mke2fs -q -t ext4 -d "$root" "$work/disk" && rm -rf "$root"

# What finds the disk.
early=$work/early
mkdir -p "$early"/{bin,dev,m,root} && cp "$(command -v busybox)" "$early/bin/"
. tests/lab/kvm/modules.sh
copy_modules "$target/packaging/kvm/modules" "$early/m" virtio_pci virtio_blk crc32c_generic ext4 \
    sch_tbf sch_ingress act_police cls_matchall
cat >"$early/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox mount -t devtmpfs dev /dev
for module in /m/*.ko; do /bin/busybox insmod "$module"; done
/bin/busybox mount -t ext4 /dev/vda /root || exec /bin/busybox sh
exec /bin/busybox switch_root /root /sbin/init
INIT
chmod +x "$early/init"
(cd "$early" && find . | cpio -o -H newc --quiet --owner 0:0) | gzip -1n >"$work/initrd"

touch "$work/output"
timeout -s KILL 1500 qemu-system-x86_64 -accel "$accel" -cpu max -smp 2 -m 1024 -display none -nodefaults -no-reboot \
    -kernel "$target/packaging/kvm/vmlinuz" -initrd "$work/initrd" -append "console=ttyS0 quiet psi=1 mitigations=off" \
    -serial "file:$work/console" -serial "file:$work/output" -drive "file=$work/disk,format=raw,if=virtio,cache=unsafe" \
    </dev/null >"$work/log" 2>&1 &
machine=$!
tail -n +1 -s 0.5 -f --pid=$machine "$work/output" | sed -u 's/\r$//; /^EXIT /d' &
shown=$!
ended=0; wait $machine || ended=$?
wait $shown || true
code=$(tr -d '\r' <"$work/output" | sed -n 's/^EXIT \([0-9]*\)$/\1/p' | tail -1)
[ -z "$code" ] || exit "$code"
echo "test-systemd.sh: the machine ended without a result ($ended); its console:" >&2
tail -n 30 "$work/console" "$work/log" >&2
exit 125
