#!/usr/bin/env bash
# host.sh [options] IMAGES SCRIPT [FILE...]: boots a hypervisor host under software emulation, on a kernel of its
# own, with cgroup v2 (cpu, io, memory, pids, cpuset), PSI, device-mapper, tun, tc and a scratch disk /dev/vda;
# runs SCRIPT in it as root with the FILEs beside it in /t, shows its output, and exits as it did.
#   -m MIB  memory (640)   -c N  CPUs (2)   -D MIB  scratch disk (256)   -T S  time limit (110)
#   -i FILE  a scratch disk that begins as this file, which stays as it is
#   -q      QEMU, the guests' images (/images) and /dev/kvm inside (emulated AMD-V)
# Programs among the FILEs bring their shared libraries. Exit 124: time limit; 125: the host broke.
# Needs on Debian: qemu-system-x86, busybox-static, cpio, dmsetup, iproute2, e2fsprogs.
set -euo pipefail
mem=640 cpus=2 disk=256 limit=110 silence=240 qemu= image=
while getopts m:c:D:T:i:q option; do case $option in
  m) mem=$OPTARG;; c) cpus=$OPTARG;; D) disk=$OPTARG;; T) limit=$OPTARG;; i) image=$(realpath "$OPTARG");; q) qemu=yes;; *) exit 64;;
esac; done; shift $((OPTIND - 1))
[ $# -ge 2 ] || { sed -n '2,9p' "$0"; exit 64; }
here=$(cd "$(dirname "$0")" && pwd)
images=$(cd "$1" && pwd) script=$2; shift
export PATH=$PATH:/usr/sbin:/sbin
work=$(mktemp -d); trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$work"' EXIT

put_program() { # ROOT FILE DESTINATION: a program with the libraries it loads, at their own paths
  install -D -m 755 "$2" "$1/$3"
  { ldd "$2" 2>/dev/null || true; } | grep -oE '/[^ ]+\.so[^ ]*' | while read -r library; do
    [ -e "$1$library" ] || install -D -m 755 "$(readlink -f "$library")" "$1$library"
  done
}
pack() { (cd "$1" && find . | LC_ALL=C sort | cpio -o -H newc --quiet --owner 0:0) | gzip -1n; }

# The base system, built once for each set of contents.
programs=(dash dmsetup tc ip mke2fs); [ -z "$qemu" ] || programs+=(qemu-system-x86_64 bash)
key=$(cat "$0" "$here"/{modules.sh,host-init.sh,guest.sh} "$images/ready" <(echo "${programs[*]}") | sha256sum | cut -c1-16)
base=$images/host-$key.cpio.gz
exec 9>"$images/.host-lock" && flock 9
if [ ! -s "$base" ]; then
  rm -f "$images"/host-*.cpio.gz.tmp
  root=$work/root; mkdir -p "$root"/{bin,sbin,dev,proc,sys,m,t,tmp,run,etc,lib64,usr/bin,var/tmp}
  cp "$(command -v busybox)" "$root/bin/busybox"
  install -m 755 "$here/host-init.sh" "$root/init"
  . "$here/modules.sh"
  modules=(virtio_pci virtio_blk crc32c_generic ext4 dm-mod dm-flakey loop tun veth sch_tbf sch_ingress act_police cls_matchall cls_u32 bfq)
  [ -z "$qemu" ] || modules+=(kvm-amd)
  copy_modules "$images/modules" "$root/m" "${modules[@]}"
  for program in "${programs[@]}"; do
    file=$(command -v "$program") || { echo "host.sh: no $program here" >&2; exit 125; }
    put_program "$root" "$(readlink -f "$file")" "/sbin/$program"
  done
  if [ -n "$qemu" ]; then
    mv "$root/sbin/qemu-system-x86_64" "$root/usr/bin/" # finds its modules and firmware relative to itself
    mkdir -p "$root"/{images,usr/share/seabios,usr/share/qemu}
    cp "$images"/{vmlinuz,guest.cpio.gz,boot.img} "$root/images/"
    cp "$here/guest.sh" "$root/images/"
    for file in bios.bin bios-256k.bin; do cp -L "/usr/share/seabios/$file" "$root/usr/share/qemu/"; done
    for file in kvmvapic.bin linuxboot_dma.bin; do
      cp -L "$(find /usr/share/qemu /usr/share/seabios -name $file | head -1)" "$root/usr/share/qemu/"
    done
    library=$(find /usr/lib -name accel-tcg-x86_64.so | head -1)
    [ -z "$library" ] || put_program "$root" "$library" "$library"
  fi
  pack "$root" >"$base.tmp" && mv "$base.tmp" "$base"
  rm -rf "$root"
fi
flock -u 9

# What this run brings: a second archive behind the first.
mkdir -p "$work/files/t"
for file; do
  if [ "$(head -c4 "$file" | tail -c3)" = ELF ]; then put_program "$work/files" "$file" "/t/$(basename "$file")"
  else install -m 755 "$file" "$work/files/t/"; fi
done
basename "$script" >"$work/files/t/.script"
{ cat "$base"; pack "$work/files"; } >"$work/initrd"
[ -n "$image" ] || truncate -s "${disk}M" "$work/disk"

# For a host that ends without a word: resets of CPUs, with a triple fault before them, and orderly ends are logged.
timeout -s KILL "$limit" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp "$cpus" -m "$mem" -name guest=lab-host \
  -display none -nodefaults -no-reboot -kernel "$images/vmlinuz" -initrd "$work/initrd" \
  -d cpu_reset -D "$work/resets" -trace qemu_system_shutdown_request \
  -append "console=ttyS0 quiet loglevel=1 panic=-1 psi=1 mitigations=off no_timer_check" \
  -serial "file:$work/console" -serial "file:$work/output" \
  -drive "file=${image:-$work/disk},format=raw,if=virtio,cache=unsafe${image:+,snapshot=on}" </dev/null >"$work/log" 2>&1 &
machine=$! started=$SECONDS
touch "$work/output"
# An emulated host stands still now and then. No test waits for so long without a word.
while sleep 5 >/dev/null 2>&1 && kill -0 "$machine" 2>/dev/null; do
  [ $(($(date +%s) - $(stat -c %Y "$work/output"))) -le $silence ] || { echo "host.sh: silent for $silence s" >&2; kill "$machine"; }
done &
tail -n +1 -s 0.2 -f --pid=$machine "$work/output" 2>/dev/null | sed -u 's/\r$//; /^LAB-EXIT /d' &
shown=$!
ended=0; wait $machine || ended=$?
wait $shown || true
code=$(tr -d '\r' <"$work/output" | sed -n 's/^.*LAB-EXIT \([0-9]*\)$/\1/p' | tail -1)
[ -z "$code" ] || exit "$code"
[ $ended != 137 ] || { echo "host.sh: not done within $limit s" >&2; exit 124; }
# The console tells of a panic, a reboot and a poweroff. When it is empty, QEMU itself ended, or a CPU had a triple fault.
last() { # TITLE FILE [PATTERN]
  echo "host.sh: $1:" >&2; { grep -aE "${3:-}" "$2" | tail -n 20 | tr -d '\r\0'; } >&2 || true
}
echo "host.sh: the host ended without a result, after $((SECONDS - started)) s; exit status of QEMU: $ended" >&2
last "the end of its console" "$work/console"; last "the end of its output" "$work/output"
last "what QEMU said" "$work/log"
last "the last resets of its CPUs" "$work/resets" '^(Triple|CPU Reset|[ER]IP|CR0|qemu_system_shutdown_request)'
exit 125
