#!/usr/bin/env bash
# images.sh DIR: builds, once, what host.sh boots: Xen, a control domain (dom0) and guests, from Debian packages that are
# downloaded and not installed.
#   DIR/xen, DIR/vmlinux   hypervisor and kernel, unpacked (unpacking under emulation costs seconds every time)
#   DIR/dom0.cpio          initramfs of the control domain: busybox, xenstored, xl, their libraries, the guest of one page
#   DIR/linux.cpio         beside it where wanted: Linux guests, and what serves their network and disks
#   DIR/hvm.cpio           beside that where wanted: the device model of HVM guests
# Needs on Debian 12: apt-get, dpkg-deb, busybox-static, cpio, xz-utils, gcc, qemu-system-x86. Remove DIR to build anew.
set -euo pipefail
[ $# = 1 ] || { sed -n '2,8p' "$0"; exit 64; }
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1" && cd "$1"
exec 9>.lock && flock 9
key=$(cat "$here"/{images.sh,dom0-init.sh,mkdom.sh,hotplug.sh,guest-init.sh,guest.c,guest.lds,hvm.S} | sha256sum | cut -c1-16)
[ "$(cat ready 2>/dev/null)" = "$key" ] && exit 0
rm -f ready
version=4.17
busybox=$(command -v busybox) || { echo "images.sh: no busybox: apt-get install busybox-static" >&2; exit 69; }

kernel=$(apt-cache depends linux-image-amd64 | sed -n 's/^ *Depends: *\(linux-image-[0-9][^ ]*\)$/\1/p' | head -1)
[ -n "$kernel" ] || { echo "images.sh: apt knows no linux-image-amd64; try apt-get update" >&2; exit 69; }
packages="xen-hypervisor-$version-amd64 xen-utils-$version xenstore-utils libxencall1 libxendevicemodel1 libxenevtchn1
  libxenforeignmemory1 libxengnttab1 libxenhypfs1 libxenmisc$version libxenstore4 libxentoolcore1 libxentoollog1 libyajl2 qemu-system-xen $kernel"
mkdir -p debs
for package in $packages; do
  ls debs/"$package"_*.deb >/dev/null 2>&1 || (cd debs && apt-get download -qq "$package")
done
rm -rf package && mkdir package
for package in $packages; do dpkg-deb -x debs/"$package"_*.deb package; done

zcat package/boot/xen-$version-amd64.gz >xen
release=$(ls package/lib/modules)
image=package/boot/vmlinuz-$release
field() { od -An -j$(($1)) -N"$2" -tu"$2" "$image" | tr -d ' '; } # of the boot protocol's header
offset=$((($(field 0x1f1 1) + 1) * 512 + $(field 0x248 4)))
dd if="$image" of=payload bs=1M iflag=skip_bytes,count_bytes skip=$offset count="$(field 0x24c 4)" status=none
case $(od -An -N4 -tx1 payload | tr -d ' ') in
  fd377a58) xz -dc --single-stream <payload >vmlinux;;
  28b52ffd) zstd -dc <payload >vmlinux 2>/dev/null || true;; # bytes follow the frame
  *) echo "images.sh: $image is packed in a way that is not known here" >&2; exit 70;;
esac
rm payload
[ "$(head -c4 vmlinux | tail -c3)" = ELF ]

root=root; rm -rf $root
mkdir -p $root/{bin,sbin,etc/xen,proc,sys,dev,run,tmp,root,lib,lib64,t,domu,usr/bin,usr/sbin,lib/modules,var/{lib/xen,lib/xenstored,log/xen/console}}
ln -s /run $root/var/run; ln -s /run/lock $root/var/lock
cp "$busybox" $root/bin/busybox
for applet in $("$busybox" --list); do [ -e "$root/bin/$applet" ] || ln -s busybox "$root/bin/$applet"; done
programs=usr/lib/xen-$version/bin
mkdir -p $root/$programs
for program in xl xenstored xenconsoled xen-init-dom0 libxl-save-helper; do cp package/$programs/$program $root/$programs/; done
ln -s /$programs/xl $root/usr/sbin/xl
cp -P package/usr/bin/xenstore* $root/usr/bin/
printf 'autoballoon="off"\n' >$root/etc/xen/xl.conf
printf 'root:x:0:0:root:/root:/bin/sh\n' >$root/etc/passwd; printf 'root:x:0:\n' >$root/etc/group
libraries=$PWD/package/usr/lib/x86_64-linux-gnu:$PWD/package/lib/x86_64-linux-gnu
target=$root/usr/lib/x86_64-linux-gnu; mkdir -p $target; ln -s ../usr/lib/x86_64-linux-gnu $root/lib/x86_64-linux-gnu
libraries_of() { # FILE...
  for file; do
    [ -L "$file" ] || LD_LIBRARY_PATH=$libraries ldd "$file" 2>/dev/null | sed -n 's/.* => \(\/[^ ]*\).*/\1/p' || true
  done | sort -u
}
libraries_of $root/$programs/* $root/usr/bin/xenstore* | while read -r library; do cp -L "$library" "$target/"; done
# What a program of the tests commonly needs.
for library in libgcc_s.so.1 libm.so.6 libc.so.6; do cp -Ln /lib/x86_64-linux-gnu/$library $target/; done
cp -L /lib64/ld-linux-x86-64.so.2 $root/lib64/
modules() { # DIR NAME...
  local to=$1 module; shift; mkdir -p "$to"
  for module; do find package/lib/modules/"$release" -name "$module.ko" -exec strip -g -o "$to/$module.ko" {} \;; done
}
modules $root/lib/modules xen-evtchn xen-gntdev xen-gntalloc xen-privcmd xenfs

gcc -O2 -Wall -ffreestanding -fno-stack-protector -fno-pic -no-pie -fcf-protection=none -mno-sse -mno-red-zone -nostdlib \
  -static -Wl,-T,"$here/guest.lds" -Wl,--build-id=none -Wl,-z,max-page-size=4096 -Wl,--no-warn-rwx-segments \
  "$here/guest.c" -o $root/domu/guest
install -m 755 "$here/dom0-init.sh" $root/init
install -m 755 "$here/mkdom.sh" $root/usr/bin/mkdom
pack() { (cd "$1" && find . | LC_ALL=C sort | cpio -o -H newc --quiet --owner 0:0); } # QEMU copies it at once; unpacking would be slow
pack $root >dom0.cpio
rm -rf $root

guest=guest; rm -rf $guest
mkdir -p $guest/{bin,sbin,proc,sys,dev,tmp}
cp "$busybox" $guest/bin/busybox
for applet in $("$busybox" --list); do ln -s busybox "$guest/bin/$applet" 2>/dev/null || true; done
printf '#!/bin/busybox sh\n/bin/busybox poweroff -f\n' >$guest/sbin/poweroff; chmod +x $guest/sbin/poweroff # for xl shutdown
modules $guest/lib/modules xen-netfront xen-blkfront
install -m 755 "$here/guest-init.sh" $guest/init
mkdir -p $root/{domu,etc/xen/scripts}
pack $guest >$root/domu/linux.cpio
cp vmlinux $root/domu/vmlinux
modules $root/lib/modules llc stp bridge xen-netback loop xen-blkback sch_tbf sch_ingress cls_matchall act_police
for script in vif block; do install -m 755 "$here/hotplug.sh" $root/etc/xen/scripts/$script; done
pack $root >linux.cpio
rm -rf $root

model=usr/libexec/xen-qemu-system-i386
mkdir -p $root/{domu,usr/libexec,usr/lib/xen-$version/boot,usr/lib/x86_64-linux-gnu,usr/share/{seabios,qemu/keymaps}}
cp package/$model $root/$model
LD_LIBRARY_PATH=$libraries ldd $root/$model | sed -n 's/^\t\(.*\) => not found$/images.sh: no \1: apt-get install qemu-system-x86/p' >missing
[ ! -s missing ] || { cat missing >&2; exit 69; }
rm missing
there=$(cpio -t --quiet <dom0.cpio)
libraries_of $root/$model | while read -r library; do
  case $there in *"/${library##*/}"*) ;; *) cp -L "$library" "$root/usr/lib/x86_64-linux-gnu/";; esac
done
cp package/usr/lib/xen-$version/boot/hvmloader $root/usr/lib/xen-$version/boot/
cp -L /usr/share/seabios/bios-256k.bin $root/usr/share/seabios/
cp /usr/share/qemu/linuxboot.bin $root/usr/share/qemu/; cp /usr/share/qemu/keymaps/en-us $root/usr/share/qemu/keymaps/
modules $root/lib/modules tun
# Where mkdom has the device model put the kernel's parts.
gcc -c -Wa,--defsym,KERNEL=0x1000000,--defsym,INITRD=0x6000000,--defsym,INITRD_SIZE=0x800000 "$here/hvm.S" -o hvm.o
ld -N -Ttext=0x100000 --oformat binary hvm.o -o hvm.bin
{ head -c $((($(field 0x1f1 1) + 1) * 512)) "$image"; cat hvm.bin; } >$root/domu/hvm
pack $root >hvm.cpio
rm -rf $root $guest package hvm.o hvm.bin
echo "$key" >ready
