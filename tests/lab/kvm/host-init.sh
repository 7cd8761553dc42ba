#!/bin/busybox sh
# /init of the hypervisor host that host.sh boots.
/bin/busybox mkdir -p /bin /sbin; /bin/busybox --install -s /bin
cd /bin; for program in /sbin/*; do rm -f "${program##*/}"; done
ln -sf /sbin/dash sh # a shell that finds programs by PATH; busybox's runs its own ip and tc first
mkdir -p /usr/bin; ln -sf /bin/busybox /usr/bin/env
export PATH=/sbin:/bin:/usr/bin HOME=/ TERM=dumb
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm; mount -t devpts pts /dev/pts
mount -t tmpfs tmp /tmp; mount -t tmpfs run /run
printf 'root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n' >/etc/passwd
printf 'root:x:0:\nnogroup:x:65534:\n' >/etc/group
mount -t cgroup2 -o nsdelegate cgroup2 /sys/fs/cgroup
for module in /m/*.ko; do insmod "$module" || echo "insmod $module failed" >/dev/ttyS1; done
echo "+cpu +io +memory +pids +cpuset" >/sys/fs/cgroup/cgroup.subtree_control
sysctl -q -w kernel.sched_schedstats=1 kernel.perf_event_paranoid=-1
ip link set lo up; hostname lab-host
stty -F /dev/ttyS1 raw -echo
cd /t
setsid "./$(cat .script)" </dev/null >/dev/ttyS1 2>&1
echo "LAB-EXIT $?" >/dev/ttyS1
sync; poweroff -f
