#!/bin/sh
# mkdom NAME [burn|idle|duty=NN]: starts a guest of one page of code; VCPUS= and MEMORY= (MiB) override 1 and 8.
# mkdom NAME linux [FILE...]: starts a Linux guest, which runs the first FILE as a script in the folder of them all. It has
#   VCPUS= (1), MEMORY= (96 MiB), MAXMEM= (the same), TYPE= (pv; pvh; hvm, of at least 128 MiB), the network's address 10.9.0.HOST
#   (HOST=; none without), of which the control domain is 10.9.0.1, and DISK= (a file or block device of the control domain) as
#   /dev/xvda.
set -e
name=$1 kind=${2:-burn}
if [ "$kind" = linux ]; then
  shift 2
  rm -rf "/tmp/$name.files"; mkdir -p "/tmp/$name.files/t"
  [ $# = 0 ] || { cp "$@" "/tmp/$name.files/t/"; basename "$1" >"/tmp/$name.files/t/.script"; }
  { cat /domu/linux.cpio; (cd "/tmp/$name.files" && find . | cpio -o -H newc 2>/dev/null); } >"/tmp/$name.cpio"
  rm -rf "/tmp/$name.files"
  disk=${DISK:-}
  if [ -f "$disk" ]; then disk=$(losetup -f); losetup "$disk" "$DISK"; fi
  type=${TYPE:-pv} kernel=/domu/vmlinux
  [ "$type" != hvm ] || kernel=/domu/hvm MEMORY=${MEMORY:-128} EXTRA="iommu=noaperture ${EXTRA:-}"
  cat >"/tmp/$name.cfg" <<CFG
name = "$name"
type = "$type"
kernel = "$kernel"
extra = "console=hvc0 quiet mitigations=off nokaslr clocksource=xen tsc=unstable ${HOST:+host=$HOST} ${EXTRA:-}"
memory = ${MEMORY:-96}
maxmem = ${MAXMEM:-${MEMORY:-96}}
vcpus = ${VCPUS:-1}
on_crash = "destroy"
vif = [ ${HOST:+"'script=vif,bridge=guests'"} ]
disk = [ ${disk:+"'phy:$disk,xvda,w'"} ]
CFG
  # The device model puts both parts of the kernel into the guest's memory; the card needs no program to boot from.
  if [ "$type" = hvm ]; then
    cat >>"/tmp/$name.cfg" <<CFG
device_model_args_hvm = [ "-device", "loader,file=/domu/vmlinux",
  "-device", "loader,file=/tmp/$name.cpio,addr=0x6000000,force-raw=on", "-global", "rtl8139.romfile=" ]
vga = "none"
nographic = 1
vnc = 0
CFG
  else
    echo "ramdisk = \"/tmp/$name.cpio\"" >>"/tmp/$name.cfg"
  fi
else
  cat >"/tmp/$name.cfg" <<CFG
name = "$name"
type = "pv"
kernel = "/domu/guest"
extra = "$kind"
memory = ${MEMORY:-8}
vcpus = ${VCPUS:-1}
on_crash = "destroy"
CFG
fi
exec xl create -q "/tmp/$name.cfg"
