#!/bin/busybox sh
# /init of the control domain: brings Xen's services up and runs the script that host.sh brought.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb
/bin/busybox mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
mkdir -p /dev/pts; mount -t devpts pts /dev/pts; mount -t tmpfs run /run; mount -t tmpfs tmp /tmp
mkdir -p /run/xen /run/xenstored /run/lock
stty -F /dev/ttyS1 raw -echo
# On a busy machine a line that has just been written is lost when the power goes.
end() { for again in 1 2; do echo "LAB-EXIT $1" >/dev/ttyS1; sync; sleep 1; done; poweroff -f; }
for module in xen-evtchn xen-gntdev xen-gntalloc xen-privcmd xenfs; do insmod /lib/modules/$module.ko; done
head -c 1 /dev/random >/dev/null & # starts the kernel's random numbers, which xl waits for
ifconfig lo 127.0.0.1 up; hostname lab-xen
mount -t xenfs xenfs /proc/xen
services=$(echo /usr/lib/xen-*/bin)
$services/xenstored --pid-file /run/xen/xenstored.pid || end 120
tries=0; until xenstore-exists / 2>/dev/null || xenstore-read / >/dev/null 2>&1; do
  tries=$((tries + 1)); [ $tries -lt 100 ] || end 121; usleep 100000
done
$services/xen-init-dom0
if [ -e /domu/vmlinux ]; then
  for module in llc stp bridge xen-netback loop xen-blkback sch_tbf sch_ingress cls_matchall act_police; do insmod /lib/modules/$module.ko; done
  [ ! -e /lib/modules/tun.ko ] || insmod /lib/modules/tun.ko
  brctl addbr guests; ifconfig guests 10.9.0.1 netmask 255.255.255.0 up
fi
$services/xenconsoled --log=guest --pid-file=/run/xen/xenconsoled.pid
cd /t
"./$(cat .script)" </dev/null >/dev/ttyS1 2>&1
end $?
