#!/usr/bin/env bash
# guest.sh IMAGES STATE NAME [options]: runs one foreground guest, a real QEMU process, in the foreground of
# this shell until it is killed. STATE/NAME gets: qmp (monitor socket), console, disk.raw, pid.
#   -k linux|boot   Debian kernel and busybox (default), or the boot sector (CPU only, under a second)
#   -a tcg|kvm      software emulation (default) or KVM
#   -c N            virtual CPUs (1)             -m MIB     memory (128; 8 for boot)
#   -d PERCENT      CPU duty of each burner      -b N       burners (as many as virtual CPUs)
#   -D PATH|MIB     a disk: a device or file, or a size  -W KIB  KiB/s it writes there; -1 flat out
#   -t TAP          a tap that exists            -S PPS     frames a second it sends
#   -u CPU          keeps it on this CPU of the machine
#   -F MIB          memory it fills              -g CGROUP  a group, made below every hierarchy, that it enters
# The guest says LAB-READY on its console when its load runs.
set -euo pipefail
[ $# -ge 3 ] || { sed -n '2,15p' "$0"; exit 64; }
images=$1 dir=$2/$3 name=$3; shift 3
kind=linux accel=tcg cpus=1 mem= duty=0 burners= disk= write=0 tap= send=0 fill=0 group= pin=
while getopts k:a:c:m:d:b:D:W:t:S:F:g:u: option; do case $option in
  k) kind=$OPTARG;; a) accel=$OPTARG;; c) cpus=$OPTARG;; m) mem=$OPTARG;; d) duty=$OPTARG;; b) burners=$OPTARG;;
  D) disk=$OPTARG;; W) write=$OPTARG;; t) tap=$OPTARG;; S) send=$OPTARG;; F) fill=$OPTARG;; g) group=$OPTARG;; u) pin=$OPTARG;;
  *) exit 64;;
esac; done
mkdir -p "$dir"
qemu=(qemu-system-x86_64 -name "guest=$name,debug-threads=on" -smp "$cpus" -display none -nodefaults -no-reboot
  -serial "file:$dir/console" -qmp "unix:$dir/qmp,server=on,wait=off" -pidfile "$dir/pid")
case $accel in tcg) qemu+=(-accel tcg,thread=multi);; *) qemu+=(-accel "$accel" -cpu max,kvm-asyncpf=off,kvm-asyncpf-int=off);; esac
if [ "$kind" = boot ]; then
  cp "$images/boot.img" "$dir/boot.img"
  printf "\\x$(printf %02x $((duty * 16 / 100)))" | dd of="$dir/boot.img" bs=1 seek=500 conv=notrunc status=none
  qemu+=(-m "${mem:-8}" -drive "file=$dir/boot.img,format=raw,if=ide,index=0")
else
  qemu+=(-m "${mem:-128}" -kernel "$images/vmlinuz" -initrd "$images/guest.cpio.gz" -device virtio-balloon-pci,id=balloon
    -append "console=ttyS0 quiet panic=-1 no_timer_check lab.duty=$duty lab.burners=${burners:-$cpus} lab.write=$write lab.send=$send lab.fill=$fill")
fi
if [ -n "$disk" ]; then
  case $disk in *[!0-9]*) ;; *) truncate -s "${disk}M" "$dir/disk.raw"; disk=$dir/disk.raw;; esac
  qemu+=(-drive "file=$disk,format=raw,if=none,id=d0,cache=none,aio=threads" -device virtio-blk-pci,drive=d0,id=vd0)
fi
[ -z "$tap" ] || qemu+=(-netdev "tap,id=n0,ifname=$tap,script=no,downscript=no" -device virtio-net-pci,netdev=n0,romfile=)
if [ -n "$group" ]; then # before QEMU starts, so that every thread is inside from its first instruction
  for hierarchy in /sys/fs/cgroup $(find /sys/fs/cgroup -mindepth 1 -maxdepth 1 -type d ! -name unified ! -name "${group%%/*}"); do
    [ -e "$hierarchy/cgroup.procs" ] && { [ -e "$hierarchy/cgroup.controllers" ] || [ -e "$hierarchy/tasks" ]; } || continue
    case $hierarchy in */cpuset) continue;; esac # needs CPUs and nodes before it takes anybody
    mkdir -p "$hierarchy/$group"
    if [ -e "$hierarchy/cgroup.controllers" ]; then # children count only what their parents pass on
      parent=$hierarchy rest=$group
      while [ "$rest" != "${rest#*/}" ]; do
        parent=$parent/${rest%%/*} rest=${rest#*/}
        for controller in $(cat "$parent/cgroup.controllers"); do echo "+$controller" >"$parent/cgroup.subtree_control"; done
      done
    fi
    echo $$ >"$hierarchy/$group/cgroup.procs"
  done
fi
[ -z "$pin" ] || qemu=(taskset -c "$pin" "${qemu[@]}")
exec "${qemu[@]}" </dev/null >"$dir/qemu.log" 2>&1
