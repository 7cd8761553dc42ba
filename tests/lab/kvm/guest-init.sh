#!/bin/busybox sh
# /init of the foreground guest. Words of the kernel's command line set its load:
#   lab.duty=PERCENT  busy share of every 100 ms, per burner       lab.burners=N   burners, one per vCPU
#   lab.write=KIB     direct writes to the disk, KiB/s; -1 flat out lab.send=PPS   frames of 1042 bytes a second
#   lab.fill=MIB      memory it keeps touched
/bin/busybox mkdir -p /bin /sbin; /bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
for module in /m/*.ko; do insmod "$module"; done
duty=0 burners=1 write=0 send=0 fill=0
for word in $(cat /proc/cmdline); do
  case $word in lab.*) word=${word#lab.}; eval "${word%%=*}=${word#*=}";; esac
done
echo "LAB-READY after $(cut -d' ' -f1 /proc/uptime) s"
burn() {
  (while :; do :; done) & spinner=$!
  [ "$duty" -lt 100 ] || return 0
  while :; do
    usleep $((duty * 1000)); kill -STOP $spinner
    usleep $(((100 - duty) * 1000)); kill -CONT $spinner
  done
}
i=0; while [ "$duty" -gt 0 ] && [ $i -lt "$burners" ]; do burn & i=$((i + 1)); done
if [ "$fill" -gt 0 ]; then mkdir /fill; mount -t tmpfs -o size=90% fill /fill; dd if=/dev/urandom of=/fill/x bs=1M count="$fill" 2>/dev/null; fi
if [ "$write" != 0 ]; then
  while :; do
    if [ "$write" -lt 0 ]; then dd if=/dev/zero of=/dev/vda bs=64k count=256 oflag=direct 2>/dev/null
    else dd if=/dev/zero of=/dev/vda bs=64k count=$(((write + 255) / 256)) oflag=direct 2>/dev/null; usleep 250000; fi
  done &
fi
if [ "$send" -gt 0 ]; then
  ip link set eth0 up; ip addr add 169.254.1.1/16 dev eth0
  arp -i eth0 -s 169.254.255.253 02:00:00:00:00:fd # a made-up neighbour: nobody answers
  ping -q -s 1000 -i "$(awk "BEGIN { print 1 / $send }")" 169.254.255.253 >/dev/null 2>&1 &
fi
while :; do sleep 3600; done
