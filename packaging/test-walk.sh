#!/usr/bin/env bash
# test-walk.sh [-n] [-a ACCEL]: boots two small Debians, `controller` and `h1`, and does there what docs/operators-guide.md and
# docs/writing-engines.md say, with the commands and files as they stand in those pages (walk.py). At the end a job has
# run, CPU of h1 was harvested, its guest and its service were seen by their names, and no daemon has warned of anything. Prints
# every command and what it said.
#   -n        with the packages in packaging/debs of cargo's target folder, as they were built last
#   -a ACCEL  QEMU's accelerator; default is software emulation, which works everywhere (kvm where that is real)
# Needs on Debian 12: root, mmdebstrap, qemu-system-x86, e2fsprogs, busybox-static, cpio, python3, and what build-debs.sh needs.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
accel=tcg,thread=multi built=
while getopts na: option; do case $option in
    n) built=yes ;;
    a) accel=$OPTARG ;;
    *) sed -n '2,9p' "$0" >&2; exit 64 ;;
esac; done
skip() { echo "SKIPPED: test-walk.sh: $*"; exit 0; }
export PATH=$PATH:/usr/sbin:/sbin:/usr/lib/qemu
[ "$(id -u)" = 0 ] || skip "it needs root"
for program in mmdebstrap qemu-system-x86_64 mke2fs busybox cpio python3 virtiofsd; do
    command -v $program >/dev/null || skip "there is no $program here"
done
cd "$here/.."
target=$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
[ -n "$built" ] || "$here/build-debs.sh"
"$here/base.sh" "$target/packaging/base.tar"
tests/lab/kvm/images.sh "$target/packaging/kvm"
work=$(mktemp -d); trap 'kill $(jobs -p) 2>/dev/null || true; wait; rm -rf --one-file-system "$work"' EXIT

. packaging/boot.sh
debs=("$target"/packaging/debs/gleaner{,-agent,-aggregator}_*.deb)
# h1 has something to protect: a guest and a service. Its QEMU is this machine's, with the libraries and modules that it takes.
qemu=$(command -v qemu-system-x86_64) && mkdir "$work/qemu"
cp "$qemu" $(ldd "$qemu" | awk '$3 ~ "^/" {print $3}') "$work/qemu/"
cp /usr/lib/*/qemu/accel-*.so "$work/qemu/" 2>/dev/null || true
machine_disk controller in-walk.sh "${debs[@]}" "$here/in-walk.sh"
machine_disk h1 in-walk.sh "${debs[@]}" "$here/in-walk.sh" "$work/qemu"
machine_initrd
mkdir "$work/folder"
address=0
for name in controller h1; do
    virtiofsd --socket-path="$work/$name.fs" -o source="$work/folder" -o cache=none >"$work/$name.fs.log" 2>&1 &
    until [ -S "$work/$name.fs" ]; do sleep 0.1; done
    address=$((address + 1)) server=off
    [ $name = h1 ] || server=on
    machine $name 2400 -chardev "socket,id=line,path=$work/$name.line,server=on,wait=off" -serial chardev:line \
        -object memory-backend-memfd,id=memory,size=1024M,share=on -numa node,memdev=memory \
        -chardev "socket,id=fs,path=$work/$name.fs" -device vhost-user-fs-pci,chardev=fs,tag=folder \
        -netdev "stream,id=net,server=$server,addr.type=unix,addr.path=$work/net" \
        -device "virtio-net-pci,netdev=net,mac=52:54:00:00:00:0$address" &
    until [ -S "$work/net" ] && [ -S "$work/$name.line" ]; do
        kill -0 $! 2>/dev/null || { cat "$work/$name.log" >&2; exit 125; }
        sleep 0.1
    done
done
code=0
python3 packaging/walk.py controller="$work/controller.line" h1="$work/h1.line" || code=$?
if [ $code != 0 ]; then tail -n 10 "$work"/*.console "$work"/*.log >&2; fi
exit $code
