#!/bin/busybox sh
# /init of a Linux guest: brings its network up and runs the script that mkdom brought, else idles.
export PATH=/bin:/sbin
/bin/busybox mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev; mount -t tmpfs tmp /tmp
for module in /lib/modules/*.ko; do insmod "$module"; done
ifconfig lo 127.0.0.1 up; hostname lab-guest
host=$(sed -n 's/.*host=\([0-9]*\).*/\1/p' /proc/cmdline)
[ -z "$host" ] || ifconfig eth0 "10.9.0.$host" netmask 255.255.255.0 up
echo "up after $(cut -d' ' -f1 /proc/uptime) s"
if [ -e /t/.script ]; then
  cd /t
  "./$(cat .script)" || echo "the script failed: $?"
fi
while :; do sleep 3600; done
