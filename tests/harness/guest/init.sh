#!/bin/sh
# The first process of a guest: loads modules, mounts everything, and becomes busybox's init, which starts /control.
export PATH=/bin:/usr/sbin:/usr/bin
mount -t devtmpfs dev /dev
mkdir /dev/pts
mount -t devpts pts /dev/pts
mount -t proc proc /proc
mount -t sysfs sys /sys
while read -r module; do
    insmod "$module"
done </modules/order
mount -t tmpfs tmp /tmp
mount -t tmpfs run /run
mount -t tracefs tracing /sys/kernel/tracing
mount -t debugfs debug /sys/kernel/debug
mount -t bpf bpf /sys/fs/bpf
mount -t cgroup2 cgroup /sys/fs/cgroup
mount -t ext4 -o ro /dev/vda /tools
ifconfig lo up
# The address that QEMU's user-mode network forwards connections to.
ifconfig eth0 10.0.2.15 netmask 255.255.255.0 up
route add default gw 10.0.2.2
hostname guest
# /dev/virtio-ports/NAME, as udev makes it.
mkdir -p /dev/virtio-ports /run/jobs
for port in /sys/class/virtio-ports/*; do
    ln -s "/dev/${port##*/}" "/dev/virtio-ports/$(cat "$port/name")"
done
exec /bin/init
