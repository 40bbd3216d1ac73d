#!/bin/sh
# Makes of new namespaces a node in a copy of this system, and runs a command there (scripts/test-pods.sh). `tmp`, `top` and `hierarchies` are
# variables of the environment.
set -eu
root=$tmp/root
mount -t tmpfs tmpfs "$root"
mkdir "$root/upper" "$root/work" "$root/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$root/upper,workdir=$root/work" "$root/root"
cd "$root/root"
mount -t proc proc proc
mount --rbind /dev dev
mount -t sysfs sysfs sys # the devices of this network namespace
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=755 tmpfs tmp
# Containers' images are overlays, which have no overlay below them.
mkdir -p var/lib/containerd var/lib/kubelet
mount -t tmpfs tmpfs var/lib/containerd
mount -t tmpfs tmpfs var/lib/kubelet
mount -t tmpfs cgroup sys/fs/cgroup
for h in $hierarchies; do
	mkdir "sys/fs/cgroup/${h#name=}"
	case $h in name=*) options=none,$h ;; *) options=$h ;; esac
	mount -t cgroup -o "$options" cgroup "sys/fs/cgroup/${h#name=}"
done
# The kubelet sets these for the whole machine; here it sets copies.
mkdir run/sysctl
for f in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
	cp "proc/sys/$f" "run/sysctl/${f##*/}"
	mount --bind "run/sysctl/${f##*/}" "proc/sys/$f"
done
mkdir -p run/build run/old ".$top"
mount --bind "$tmp" run/build
mount --bind "$top" ".$top"
pivot_root . run/old
umount -l run/old

hostname node1
ip link set lo up
for n in 1 2 3; do ip addr add 10.98.0.$n/32 dev lo; done
# The node's own address, and a route for connections to Services before kube-proxy changes where they go.
ip link add eth0 type veth peer name eth1
ip addr add 10.98.0.10/24 dev eth0
ip link set eth0 up
ip link set eth1 up
ip route add default dev eth0
echo 1 >/proc/sys/net/ipv4/ip_forward

export PATH="/run/build/bin:$PATH" TMPDIR=/tmp HEADPOND_KUBE_APISERVER=/run/build/bin/kube-apiserver HEADPOND_HELM=/run/build/bin/helm HEADPOND_IMAGES=/run/build/headpond.tar:/run/build/pause.tar
cd "$top/integration"
test=/run/build/${1##*/}
shift
"$test" "$@"
