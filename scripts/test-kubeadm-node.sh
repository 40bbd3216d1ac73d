#!/bin/sh
# Makes of new namespaces a node in a copy of this system, and becomes its systemd (scripts/test-kubeadm.sh). `tmp`, `hierarchies`, `name` and `addr`
# are variables of the environment.
set -eu
root=$tmp/$name
mkdir "$root"
mount -t tmpfs tmpfs "$root"
mkdir "$root/upper" "$root/work" "$root/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$root/upper,workdir=$root/work" "$root/root"
cd "$root/root"
mount -t proc proc proc
mount -t tmpfs -o mode=755 tmpfs dev
for n in null zero full random urandom tty kmsg; do touch dev/$n; mount --bind /dev/$n dev/$n; done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts dev/pts
ln -s pts/ptmx dev/ptmx; ln -s /proc/self/fd dev/fd
mount -t tmpfs tmpfs dev/shm
mount -t sysfs sysfs sys
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
mkdir -p var/lib/containerd var/lib/kubelet var/lib/etcd run/lab run/old run/sysctl
# Containers' images are overlays, which have no overlay below them.
for f in containerd kubelet etcd; do mount -t tmpfs tmpfs var/lib/$f; done
mount --make-rshared var/lib/kubelet
mount -t tmpfs -o mode=755 cgroup sys/fs/cgroup
for h in $hierarchies; do
	mkdir "sys/fs/cgroup/${h#name=}"
	case $h in name=*) options=none,$h ;; *) options=$h ;; esac
	mount -t cgroup -o "$options" cgroup "sys/fs/cgroup/${h#name=}"
done
# The kubelet sets these for the whole machine; here it sets copies.
for f in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
	cp "proc/sys/$f" "run/sysctl/${f##*/}"
	mount --bind "run/sysctl/${f##*/}" "proc/sys/$f"
done
mount --bind "$tmp" run/lab
rm -rf etc/systemd/system/* etc/kubernetes etc/headpond etc/cni/net.d etc/containerd var/lib/headpond usr/local/bin/headpond
mkdir -p etc/systemd/system/multi-user.target.wants etc/systemd/system/containerd.service.d etc/cni/net.d etc/containerd etc/systemd/journald.conf.d
: >etc/fstab
echo "$name" >etc/hostname
: >etc/resolv.conf
printf '127.0.0.1 localhost\n%s %s\n' "$addr" "$name" >etc/hosts
# Of the services of this system only containerd runs.
cat >etc/systemd/system/multi-user.target <<-U
	[Unit]
	Requires=basic.target
	After=basic.target
	AllowIsolate=yes
U
for u in sysinit.target basic.target network-online.target; do printf '[Unit]\nDefaultDependencies=no\nWants=systemd-journald.socket systemd-journald.service\n' >etc/systemd/system/$u; done
ln -s /lib/systemd/system/containerd.service etc/systemd/system/multi-user.target.wants/
printf '[Service]\nExecStartPre=\nOOMScoreAdjust=0\nLimitNOFILE=65536\nLimitNPROC=\nLimitCORE=\n' >etc/systemd/system/containerd.service.d/lab.conf
for b in kubeadm kubelet kubectl; do rm -f usr/bin/$b; ln -s /run/lab/bin/$b usr/bin/$b; done
# As in the packages of Kubernetes.
cat >etc/systemd/system/kubelet.service <<-'U'
	[Service]
	Environment="KUBELET_KUBECONFIG_ARGS=--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf"
	EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
	ExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS --config=/var/lib/kubelet/config.yaml $KUBELET_KUBEADM_ARGS
	Restart=always
	RestartSec=2
	StartLimitInterval=0
	[Install]
	WantedBy=multi-user.target
U
cat >etc/systemd/system/labetcd.service <<-'U'
	[Service]
	ExecStart=/usr/bin/etcd --data-dir /var/lib/etcd/data --listen-client-urls http://172.30.0.11:2379 --advertise-client-urls http://172.30.0.11:2379
U
cat >etc/containerd/config.toml <<-'U'
	version = 2
	[plugins."io.containerd.grpc.v1.cri"]
	sandbox_image = "registry.k8s.io/pause:3.10.1"
	restrict_oom_score_adj = true
	[plugins."io.containerd.grpc.v1.cri".cni]
	bin_dir = "/usr/lib/cni"
	conf_dir = "/etc/cni/net.d"
U
cat >etc/cni/net.d/10-node.conflist <<-U
	{"cniVersion": "0.4.0", "name": "node", "plugins": [{"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
	"ipam": {"type": "host-local", "ranges": [[{"subnet": "10.97.${addr##*.}.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
U
pivot_root . run/old
umount -l run/old
hostname "$name"
until ip link show "$name-e" >/dev/null 2>&1; do sleep 0.1; done
ip link set lo up
ip link set "$name-e" name eth0
ip addr add "$addr/24" dev eth0
ip link set eth0 up
ip route add default via 172.30.0.1 dev eth0
echo 1 >/proc/sys/net/ipv4/ip_forward
exec env -i container=lxc PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --system --unit=multi-user.target --show-status=no
