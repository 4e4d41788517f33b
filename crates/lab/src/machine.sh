# SPDX-License-Identifier: Apache-2.0
#
# Boots systemd as process 1 of namespaces of its own, over a tree that stays as it is. Runs in a
# mount namespace of its own already.
set -eu
tree=$1 files=$2 directory=$3
mount --make-rprivate /
mount -t tmpfs -o mode=755 machine "$directory"
cd "$directory"
mkdir upper work root
mount -t overlay machine -o "lowerdir=$files:$tree,upperdir=upper,workdir=work" root
cd root
mount -t proc proc proc
# Only the network's settings are those of the machine; systemd would set others, too.
mount --bind proc/sys proc/sys
mount --bind proc/sys/net proc/sys/net
mount -o remount,bind,ro proc/sys
mount -t sysfs sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
# systemd mounts it, with this mode, unless it finds itself in a namespace of control groups.
mount -t bpf -o nosuid,nodev,noexec,mode=700 bpf sys/fs/bpf
mount -t tmpfs -o mode=755 dev dev
for device in null zero full random urandom tty; do
    : >"dev/$device"
    mount --bind "/dev/$device" "dev/$device"
done
mkdir dev/shm dev/pts
mount -t tmpfs -o mode=1777 shm dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
mount -t tmpfs -o mode=755 run run
mkdir old
pivot_root . old
umount -l old
rmdir old
exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd
