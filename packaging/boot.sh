# boot.sh (sourced, with the cargo target folder in $target and a scratch folder in $work): the machines that
# test-systemd.sh and test-walk.sh boot.

# machine_disk NAME SCRIPT FILE...: makes $work/NAME.disk, the clean Debian with FILEs in /test; after the boot /test/SCRIPT runs with
# the second serial line as its input and output, and its end switches the machine off.
machine_disk() {
    local name=$1 script=$2 root=$work/$1.root; shift 2
    mkdir "$root" && tar -C "$root" -xf "$target/packaging/base.tar"
    mkdir "$root/test" && cp -r "$@" "$root/test/"
    cp "$(command -v busybox)" "$root/test/busybox"
    echo "$name" >"$root/etc/hostname"
    printf '127.0.0.1 localhost\n10.9.0.1 controller\n10.9.0.2 h1\n' >"$root/etc/hosts"
    cat >"$root/etc/systemd/system/test.service" <<UNIT
[Unit]
After=multi-user.target
[Service]
ExecStart=/bin/bash -c '/test/$script <>/dev/ttyS1 >&0 2>&1; echo "EXIT \$?" >/dev/ttyS1; systemctl poweroff --force --force'
UNIT
    mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
    ln -s ../test.service "$root/etc/systemd/system/multi-user.target.wants/"
    # Without udev its device never shows, and the boot would wait for it.
    ln -s /dev/null "$root/etc/systemd/system/serial-getty@ttyS0.service"
    truncate -s 2G "$work/$name.disk" && mke2fs -q -t ext4 -d "$root" "$work/$name.disk" && rm -rf "$root"
}

# machine_initrd: makes $work/initrd, which finds the disk.
machine_initrd() {
    local early=$work/early
    mkdir -p "$early"/{bin,dev,m,root} && cp "$(command -v busybox)" "$early/bin/"
    . tests/lab/kvm/modules.sh
    copy_modules "$target/packaging/kvm/modules" "$early/m" virtio_pci virtio_blk crc32c_generic ext4 \
        sch_tbf sch_ingress act_police cls_matchall virtio_net fuse virtiofs
    cat >"$early/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox mount -t devtmpfs dev /dev
for module in /m/*.ko; do /bin/busybox insmod "$module"; done
/bin/busybox mount -t ext4 /dev/vda /root || exec /bin/busybox sh
exec /bin/busybox switch_root /root /sbin/init
INIT
    chmod +x "$early/init"
    (cd "$early" && find . | cpio -o -H newc --quiet --owner 0:0) | gzip -1n >"$work/initrd"
}

# machine NAME SECONDS QEMU-ARGUMENT...: boots NAME and waits for its end; its first serial line is in $work/NAME.console. The
# second one is among the arguments.
machine() {
    local name=$1 seconds=$2; shift 2
    exec timeout -s KILL "$seconds" qemu-system-x86_64 -accel "$accel" -cpu max -smp 2 -m 1024 -display none -nodefaults -no-reboot \
        -kernel "$target/packaging/kvm/vmlinuz" -initrd "$work/initrd" -append "console=ttyS0 quiet psi=1 mitigations=off" \
        -serial "file:$work/$name.console" -drive "file=$work/$name.disk,format=raw,if=virtio,cache=unsafe" "$@" \
        </dev/null >"$work/$name.log" 2>&1
}
