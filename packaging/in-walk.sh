#!/bin/bash
# In the machines that test-walk.sh boots: runs what comes over the serial line as somebody at a root shell would, and says what
# came of it. A command is a line of base64; the answer is a line with its output as base64 and its exit code.
stty raw -echo
export LC_ALL=C.UTF-8 TERM=dumb HOME=/root DEBIAN_FRONTEND=noninteractive
case $(hostname) in controller) address=10.9.0.1 ;; *) address=10.9.0.2 ;; esac
/test/busybox ifconfig eth0 $address up
mkdir -p /srv/folder && mount -t virtiofs folder /srv/folder || exit
if [ -d /test/qemu ]; then
    # What this host is for: a guest, which is not booted, and a service that computes for some milliseconds every tenth of a second.
    cat >/etc/systemd/system/guest.service <<'UNIT'
[Service]
Environment=LD_LIBRARY_PATH=/test/qemu QEMU_MODULE_DIR=/test/qemu
ExecStart=/test/qemu/qemu-system-x86_64 -machine none -display none -nodefaults -name vm-7
UNIT
    cat >/etc/systemd/system/postgresql@15-main.service <<'UNIT'
[Service]
ExecStart=/usr/bin/python3 -c 'import time\nwhile True: sum(range(20000)); time.sleep(0.1)'
UNIT
    systemctl daemon-reload && systemctl start guest "postgresql@15-main" || exit
fi
# The person says yes to whatever apt asks.
echo 'APT::Get::Assume-Yes "true";' >/etc/apt/apt.conf.d/90-yes
cd /test && echo ready
while read -r command; do
    base64 -d <<<"$command" >/tmp/command
    bash /tmp/command </dev/null >/tmp/said 2>&1
    code=$?
    echo "$(base64 -w0 /tmp/said) $code"
done
