#!/bin/sh
# Makes a whole cluster with kubeadm behind gateways on its nodes, as docs/kubernetes.md says: `make test-kubeadm`. Two control planes and a worker
# with systemd, containerd, kubelet and kube-proxy; each uses 127.0.0.1:7443 as controlPlaneEndpoint. Then faults, upgrades and the static pod.
# Needs root, cgroup v1, the Go module proxy and, where packages are missing, apt. The nodes are copies of this system in namespaces of their own:
# nothing of them is left. The programs of Kubernetes are built once, which takes long. KUBE_VERSION, CACHE and GO may be set.
set -eu

servers=172.30.0.11,172.30.0.12
token=abcdef.0123456789abcdef
secret=0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef # of the uploaded certificates
ignore=--ignore-preflight-errors=SystemVerification,ExternalEtcdVersion,Swap,FileExisting-conntrack,Hostname

# prepare makes programs, images and groups on this machine, and runs the cluster in new namespaces.
prepare() {
	cd "$(dirname "$0")/.."
	. scripts/kube.sh
	skip() { echo "test-kubeadm: NOT RUN: $*" >&2; exit 0; }
	[ "$(id -u)" = 0 ] || { echo "test-kubeadm: nodes need root" >&2; exit 1; }
	hierarchies=$(sed -n 's/^[0-9]*:\([^:]\{1,\}\):.*/\1/p' /proc/self/cgroup) # of cgroup v1, such as cpu,cpuacct
	for c in cpu cpuset memory devices freezer pids; do
		echo ",$hierarchies," | tr '\n' , | grep -q ",$c," || skip "cgroup v1 has no controller $c here; nodes on cgroup v2 are not supported yet"
	done
	unshare --mount --net --pid --ipc --uts --cgroup --fork true 2>/dev/null || skip "namespaces are not permitted here"
	[ -x /lib/systemd/systemd ] || skip "there is no systemd for the nodes"
	tmp=$(mktemp -d)
	groups=
	trap 'for g in $groups; do for _ in 1 2 3 4 5; do find "$g" -depth -type d -exec rmdir {} + 2>/dev/null && break || sleep 1; done; done; rm -rf "$tmp" $policy' EXIT
	trap 'exit 1' HUP INT TERM
	missing=
	has etcd || missing="$missing etcd-server"
	has containerd || missing="$missing containerd"
	has runc || missing="$missing runc"
	has ip || missing="$missing iproute2"
	has nft || missing="$missing nftables"
	has curl || missing="$missing curl"
	[ -x /usr/lib/cni/bridge ] || missing="$missing containernetworking-plugins"
	# shellcheck disable=SC2086
	install_packages $missing
	components='kube-apiserver kube-controller-manager kube-scheduler kube-proxy'
	# shellcheck disable=SC2086
	build_programs $components kubelet kubectl kubeadm
	mkdir "$tmp/bin" "$tmp/images"
	for n in kubelet kubectl kubeadm; do cp -l "$CACHE/$n-$KUBE_VERSION" "$tmp/bin/$n" 2>/dev/null || cp "$CACHE/$n-$KUBE_VERSION" "$tmp/bin/$n"; done
	CGO_ENABLED=0 $GO build -o "$tmp/bin/headpond" ./peers/cmd/headpond
	mkdir "$tmp/pause"
	CGO_ENABLED=0 $GO build -ldflags '-s -w' -o "$tmp/pause/pause" ./integration/testdata/pause
	image registry.k8s.io/pause:3.10.1 "$tmp/pause" '["/pause"]'
	for n in $components; do
		mkdir -p "$tmp/$n/usr/local/bin" "$tmp/$n/usr/sbin" "$tmp/$n/tmp"
		cp "$CACHE/$n-$KUBE_VERSION" "$tmp/$n/usr/local/bin/$n"
		if [ $n = kube-proxy ]; then # which calls nft
			cp "$(command -v nft)" "$tmp/$n/usr/sbin/"
			ldd "$(command -v nft)" | grep -o '/[^ ]*' | while read -r l; do mkdir -p "$tmp/$n${l%/*}"; cp -L "$l" "$tmp/$n$l"; done
		fi
		image registry.k8s.io/$n:v$KUBE_VERSION "$tmp/$n"
	done
	GO=$GO VERSION=kubeadm WHAT=image sh scripts/dist.sh "linux/$($GO env GOARCH)"
	mv "dist/headpond-kubeadm-linux-$($GO env GOARCH).image.tar" "$tmp/images/headpond.tar"
	rm -f dist/headpond-kubeadm.sha256
	for h in $hierarchies; do
		path=$(sed -n "s/^[0-9]*:$h:\(.*\)$/\1/p" /proc/self/cgroup)
		mounted=$(awk -v h=",$h" '$3 == "cgroup" && substr($4, length($4) - length(h) + 1) == h {print $2; exit}' /proc/mounts)
		[ -n "$mounted" ] || skip "the hierarchy $h of cgroups is not mounted"
		for n in cp1 cp2 w1; do
			g=$mounted${path%/}/headpond-kubeadm-$$-$n
			mkdir "$g"
			groups="$groups $g"
			[ "$h" != cpuset ] || for f in cpus mems; do cat "$mounted${path%/}/cpuset.$f" >"$g/cpuset.$f"; done
		done
	done
	cp deploy/kubernetes/rbac.yaml "$tmp/"
	unshare --mount --propagation private --net --pid --mount-proc --fork --kill-child \
		env tmp="$tmp" groups="$groups" hierarchies="$hierarchies" KUBE_VERSION="$KUBE_VERSION" sh "$PWD/scripts/test-kubeadm.sh" cluster
}

# image REF FOLDER [ENTRYPOINT] makes an image in the form of docker save.
image() {
	tar -C "$2" -cf "$tmp/layer.tar" .
	printf '{"architecture": "%s", "os": "linux", "config": {"Env": ["PATH=/usr/local/bin:/usr/sbin:/usr/bin"], "Entrypoint": %s}, "rootfs": {"type": "layers", "diff_ids": ["sha256:%s"]}}' \
		"$($GO env GOARCH)" "${3:-[]}" "$(sha256sum "$tmp/layer.tar" | cut -d ' ' -f 1)" >"$tmp/config.json"
	printf '[{"Config": "config.json", "RepoTags": ["%s"], "Layers": ["layer.tar"]}]' "$1" >"$tmp/manifest.json"
	tar -C "$tmp" -cf "$tmp/images/${2##*/}.tar" manifest.json config.json layer.tar
	rm -rf "$tmp/layer.tar" "$2"
}

# start NAME ADDRESS boots a node in namespaces below those of the cluster.
start() {
	ip link add "$1" type veth peer name "$1-e"
	ip link set "$1" master br0 up
	(
		for g in $groups; do case $g in *-"$1") echo 0 >"$g/cgroup.procs" ;; esac; done
		exec unshare --mount --propagation private --net --pid --ipc --uts --cgroup --fork --kill-child \
			env tmp="$tmp" hierarchies="$hierarchies" name="$1" addr="$2" sh "${0%.sh}-node.sh"
	) >"$tmp/$1.console" 2>&1 </dev/null &
	top=$!
	pid=
	until [ -n "$pid" ] && [ "$(readlink /proc/"$pid"/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.2; pid=$(pgrep -P $top | head -n 1); done
	ip link set "$1-e" netns "$pid"
	eval "pid_$1=$pid"
	wait_for "the systemd of $1" on "$1" systemctl is-active containerd
}

# on NODE COMMAND… runs a command on a node, in its groups.
on() (
	eval "pid=\$pid_$1"
	for g in $groups; do case $g in *-"$1") echo 0 >"$g/cgroup.procs" ;; esac; done
	shift
	exec nsenter -t "$pid" -m -n -p -i -u -C -r -w env -i HOME=/root KUBECONFIG=/etc/kubernetes/admin.conf servers=$servers ignore=$ignore \
		PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin sh -ec "$*" 2>&1
)

say() { echo "$(date +%T) $*"; }
# must NODE COMMAND… prints what a command has printed if it fails, and ends the test.
must() { on "$@" >"$tmp/out" || { echo "FAILED: $*"; tail -n 40 "$tmp/out"; exit 1; }; }
wait_for() {
	what=$1; shift
	for _ in $(seq 180); do "$@" >"$tmp/wait" 2>&1 && return; sleep 1; done
	echo "FAILED: $what"; tail -n 20 "$tmp/wait"; on cp1 kubectl get pods,nodes -A -o wide; exit 1
}
ready() { [ "$(on cp1 kubectl get nodes | grep -c ' Ready ')" = 3 ] && [ "$(on cp1 kubectl -n kube-system get pods | grep -c '^kube-.* 1/1 ')" = 9 ]; }
deployed() { on cp1 "kubectl rollout status deployment web --timeout=150s"; }

cluster() {
	ip link set lo up
	ip link add br0 type bridge
	ip addr add 172.30.0.1/24 dev br0
	ip link set br0 up
	start cp1 172.30.0.11; start cp2 172.30.0.12; start w1 172.30.0.21
	for n in cp1 cp2 w1; do must $n 'for f in /run/lab/images/*.tar; do ctr -n k8s.io images import $f; done; systemctl enable kubelet'; done

	kubeadm_configuration >"$tmp/kubeadm.yaml"
	say "kubeadm init, with the gateway as controlPlaneEndpoint"
	must cp1 systemctl start labetcd
	must cp1 'kubeadm init phase certs ca; cp /etc/kubernetes/pki/ca.crt /run/lab/ca.crt'
	# It does what headpond kube prints. cp2 is not there yet, and gateways learn of it later.
	gateway='mkdir -p /etc/headpond; cp /run/lab/ca.crt /etc/headpond/ca.crt; install /run/lab/bin/headpond /usr/local/bin/headpond
		make() { headpond kube "$@" -ca /etc/headpond/ca.crt -out / -force >/run/made; sh -ec "$(sed -n "s/^now: \(.*\), then restart.*/\1/p" /run/made)"; }
		make -servers ${servers%,*}'
	must cp1 "$gateway"
	must cp1 'kubeadm init --config /run/lab/kubeadm.yaml --upload-certs $ignore'
	hash=$(openssl x509 -pubkey -in "$tmp/ca.crt" | openssl rsa -pubin -outform der 2>/dev/null | sha256sum | cut -d ' ' -f 1)
	join="kubeadm join 127.0.0.1:7443 --token $token --discovery-token-ca-cert-hash sha256:$hash \$ignore"
	say "a control plane and a worker join through their gateways"
	must w1 "$gateway; $join"
	must cp2 "$gateway; $join --control-plane --certificate-key $secret --apiserver-advertise-address 172.30.0.12"
	wait_for "the nodes are not ready" ready
	must w1 'grep -q "server: https://127.0.0.1:7443" /etc/kubernetes/kubelet.conf'

	say "the gateways follow the cluster's list"
	must cp1 'kubectl apply -f /run/lab/rbac.yaml; kubectl create rolebinding headpond-nodes -n default --role headpond-endpoints --user headpond
		kubeadm kubeconfig user --client-name headpond >/run/lab/kubeconfig; cp /etc/kubernetes/admin.conf /run/lab/admin.conf'
	for n in cp1 cp2 w1; do
		must $n "(umask 077; cp /run/lab/kubeconfig /etc/headpond/kubeconfig); $gateway -kubeconfig /etc/headpond/kubeconfig"
		wait_for "the gateway of $n does not know cp2" on $n 'headpond ctl status | grep -q "172.30.0.12:6443 *healthy"'
	done

	say "pods run, and reach the API through kube-proxy"
	must cp1 'kubectl create deployment web --image registry.k8s.io/pause:3.10.1 --replicas 2'
	wait_for "the pods do not run" deployed
	wait_for "kube-proxy" on w1 'curl -skf https://10.99.0.1/version'

	say "an API server is killed, then stopped"
	must cp1 'pkill -9 -x kube-apiserver'
	must cp2 'kubectl rollout restart deployment web; kubectl rollout status deployment web --timeout=150s'
	wait_for "the nodes are not ready" ready
	must cp1 'pkill -STOP -x kube-apiserver'
	must w1 'export KUBECONFIG=/run/lab/admin.conf; kubectl rollout restart deployment web; kubectl rollout status deployment web --timeout=150s'
	wait_for "the nodes are not ready" ready

	say "the gateway hands over, dies, and is a static pod"
	# A request for each connection: none is refused while one process follows another.
	must w1 'old=$(systemctl show -p MainPID --value headpond); systemctl kill -s USR2 --kill-whom=main headpond
		for i in $(seq 150); do curl -skf -o /dev/null https://127.0.0.1:7443/version; sleep 0.1; done
		[ "$(systemctl show -p MainPID --value headpond)" != "$old" ]; pkill -9 -x headpond'
	wait_for "systemd does not start the gateway" on w1 'curl -skf https://127.0.0.1:7443/version'
	must w1 'systemctl disable --now headpond; rm /etc/systemd/system/headpond.service
		headpond kube -servers $servers -ca /etc/headpond/ca.crt -kubeconfig /etc/headpond/kubeconfig -pod headpond:kubeadm -out / -force'
	wait_for "the static pod is not ready" on cp1 'kubectl -n kube-system get pod headpond-w1 | grep " 1/1 "'

	say "kubeadm upgrades, renews, resets and joins again"
	must cp1 'kubeadm upgrade apply v'"$KUBE_VERSION"' -y --force --ignore-preflight-errors=all; kubeadm certs renew all
		kubectl -n kube-system get configmap kube-proxy -o yaml | grep -q "server: https://127.0.0.1:7443"'
	must w1 'kubeadm reset -f'
	must cp1 'kubectl delete node w1'
	must w1 "$gateway; $join"
	wait_for "the nodes are not ready" ready
	wait_for "the pods do not run" deployed
	say "PASSED"
}

kubeadm_configuration() {
	cat <<-U
		apiVersion: kubeadm.k8s.io/v1beta4
		kind: InitConfiguration
		bootstrapTokens: [{token: $token}]
		localAPIEndpoint: {advertiseAddress: ${servers%,*}}
		certificateKey: $secret
		nodeRegistration: {name: cp1, imagePullPolicy: Never, kubeletExtraArgs: [{name: v, value: "1"}]}
		---
		apiVersion: kubeadm.k8s.io/v1beta4
		kind: ClusterConfiguration
		kubernetesVersion: v$KUBE_VERSION
		controlPlaneEndpoint: 127.0.0.1:7443
		etcd: {external: {endpoints: ["http://${servers%,*}:2379"]}}
		networking: {serviceSubnet: 10.99.0.0/16, podSubnet: 10.97.0.0/16}
		dns: {disabled: true}
		---
		apiVersion: kubelet.config.k8s.io/v1beta1
		kind: KubeletConfiguration
		cgroupDriver: cgroupfs
		failCgroupV1: false
		failSwapOn: false
		localStorageCapacityIsolation: false
		crashLoopBackOff: {maxContainerRestartPeriod: 1s}
		evictionHard: {memory.available: 50Mi}
		---
		apiVersion: kubeproxy.config.k8s.io/v1alpha1
		kind: KubeProxyConfiguration
		mode: nftables
		conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
	U
}

"${1:-prepare}"
