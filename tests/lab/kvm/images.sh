#!/usr/bin/env bash
# images.sh DIR: builds, once, what guest.sh and host.sh boot. Installs nothing.
#   DIR/vmlinuz, DIR/modules/   Debian's "cloud" kernel and its modules, from the package
#   DIR/guest.cpio.gz           initramfs of a tiny foreground guest: busybox, virtio, guest-init.sh
#   DIR/boot.img                a guest of one disk sector that only burns CPU (boots in under a second)
# Needs on Debian: apt-get, busybox-static, cpio, binutils. Remove DIR to build anew.
set -euo pipefail
[ $# = 1 ] || { sed -n '2,6p' "$0"; exit 64; }
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1" && cd "$1"
exec 9>.lock && flock 9
key=$(cat "$here"/{images.sh,modules.sh,guest-init.sh,boot.S} | sha256sum | cut -c1-16)
[ "$(cat ready 2>/dev/null)" = "$key" ] && exit 0
rm -f ready

busybox=$(command -v busybox) || { echo "images.sh: no busybox: apt-get install busybox-static" >&2; exit 69; }
! ldd "$busybox" >/dev/null 2>&1 || { echo "images.sh: busybox is not static: apt-get install busybox-static" >&2; exit 69; }

if [ ! -s vmlinuz ]; then
  package=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/^ *Depends: *\(linux-image-[0-9][^ ]*\)$/\1/p' | head -1)
  [ -n "$package" ] || { echo "images.sh: apt knows no linux-image-cloud-amd64; try apt-get update" >&2; exit 69; }
  rm -rf package *.deb
  apt-get download -qq "$package"
  dpkg-deb -x ./*.deb package && rm ./*.deb
  rm -rf modules && mv package/lib/modules modules
  mv package/boot/vmlinuz-* vmlinuz.new
  rm -rf package && mv vmlinuz.new vmlinuz
fi

. "$here/modules.sh"
rm -rf root && mkdir -p root/{bin,dev,proc,sys,m}
cp "$busybox" root/bin/busybox
copy_modules modules root/m virtio_pci virtio_blk virtio_net virtio_balloon
install -m 755 "$here/guest-init.sh" root/init
(cd root && find . | LC_ALL=C sort | cpio -o -H newc --quiet --owner 0:0) | gzip -9n >guest.cpio.gz
rm -rf root

as --32 -o boot.o "$here/boot.S"
ld -m elf_i386 -Ttext 0x7c00 -o boot.elf boot.o
objcopy -O binary -j .text boot.elf boot.img
truncate -s 1M boot.img # firmware wants a disk of a sane size; the first sector ends with 55aa
rm -f boot.o boot.elf
echo "$key" >ready
