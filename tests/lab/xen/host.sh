#!/usr/bin/env bash
# host.sh [options] IMAGES SCRIPT [FILE...]: boots Xen with a control domain under software emulation, runs SCRIPT there
# as root with the FILEs beside it in /t, shows its output, and exits as it did.
#   -s credit2|credit   scheduler (credit2)   -c N  physical CPUs (2)   -m MIB  memory (1536)   -T S  time limit (300)
#   -v N  virtual CPUs of the control domain (1)
#   -l                  with Linux guests, their network and their disks
#   -d                  the same, and with the device model of HVM guests (160 MiB more for the control domain)
# Programs among the FILEs must do with the libraries that are there: glibc and libgcc of the release the images were built
# on. In the control domain: xl, xenstore-*, busybox, and
#   mkdom NAME [burn|idle|duty=NN]   a guest of one page of code, 8 MiB, there at once
#   mkdom NAME linux [FILE...]       with -l: a Linux guest of 96 MiB in the control domain's network (see mkdom.sh)
# Exit 124: time limit; 125: the host broke.
set -euo pipefail
scheduler=credit2 cpus=2 mem=1536 limit=300 vcpus=1 linux= model= dom0=640
while getopts s:c:m:T:v:ld option; do case $option in
  s) scheduler=$OPTARG;; c) cpus=$OPTARG;; m) mem=$OPTARG;; T) limit=$OPTARG;; v) vcpus=$OPTARG;; l) linux=yes;; d) linux=yes model=yes dom0=800;; *) exit 64;;
esac; done; shift $((OPTIND - 1))
[ $# -ge 2 ] || { sed -n '2,13p' "$0"; exit 64; }
images=$(cd "$1" && pwd) script=$2; shift
work=$(mktemp -d); trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$work"' EXIT
mkdir -p "$work/files/t"
for file; do install -m 755 "$file" "$work/files/t/"; done
basename "$script" >"$work/files/t/.script"
{ cat "$images/dom0.cpio" ${linux:+"$images/linux.cpio"} ${model:+"$images/hvm.cpio"}; (cd "$work/files" && find . | LC_ALL=C sort | cpio -o -H newc --quiet --owner 0:0); } >"$work/initrd"
touch "$work/output"
# qemu64 has SVM, and npt for hardware-assisted guests; more of a CPU than that the PV control domain does not survive.
timeout -s KILL "$limit" qemu-system-x86_64 -accel tcg,thread=multi -cpu qemu64,+npt -m $((mem + dom0 - 640)) -smp "$cpus" -name guest=lab-xen \
  -display none -nodefaults -no-reboot -serial "file:$work/console" -serial "file:$work/output" -kernel "$images/xen" \
  -append "dom0_mem=${dom0}M,,max:${dom0}M dom0_max_vcpus=$vcpus console=com1 com1=115200 loglvl=warning guest_loglvl=warning sched=$scheduler spec-ctrl=no xpti=no" \
  -initrd "$images/vmlinux console=hvc0 earlyprintk=xen mitigations=off nokaslr clocksource=xen tsc=unstable quiet loglevel=4,$work/initrd" \
  </dev/null >"$work/log" 2>&1 &
machine=$!
tail -n +1 -s 0.2 -f --pid=$machine "$work/output" 2>/dev/null | sed -u 's/\r$//; /^LAB-EXIT /d' &
shown=$!
ended=0; wait $machine || ended=$?
wait $shown || true
code=$(tr -d '\r' <"$work/output" | sed -n 's/^.*LAB-EXIT \([0-9]*\)$/\1/p' | tail -1)
[ -z "$code" ] || exit "$code"
[ $ended != 137 ] || { echo "host.sh: not done within $limit s" >&2; tail -n 20 "$work/console" >&2; exit 124; }
echo "host.sh: the host ended without a result; its console:" >&2; tail -n 20 "$work/console" "$work/log" >&2; exit 125
