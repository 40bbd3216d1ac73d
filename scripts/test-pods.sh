#!/bin/sh
# Runs the pods of `headpond kube`, of the Helm chart and of the base for kustomize on a real node with kubelet, containerd and kube-proxy, before
# three real API servers: `make test-pods`. Needs root, the Go module proxy and, where etcd, containerd, runc, the CNI plugins, iproute2 or nftables
# are missing, apt. The node is a copy of this system that nobody else sees, in namespaces of its own: nothing of it is left. The programs of
# Kubernetes are built once, which takes two idle cores half an hour or more. KUBE_VERSION, CACHE, GO and RUN (which tests) may be set.
set -eu

RUN=${RUN:-Pods}
VERSION=pods # of the image

cd "$(dirname "$0")/.."
. scripts/kube.sh
top=$PWD
skip() { echo "test-pods: NOT RUN: $*" >&2; exit 0; }
[ "$(id -u)" = 0 ] || { echo "test-pods: a node needs root" >&2; exit 1; }

# What containers need, and what a container without privileges, such as a runner of CI, does not give.
hierarchies=$(sed -n 's/^[0-9]*:\([^:]\{1,\}\):.*/\1/p' /proc/self/cgroup) # of cgroup v1, such as cpu,cpuacct
for c in cpu cpuset memory devices freezer pids; do
	echo ",$hierarchies," | tr '\n' , | grep -q ",$c," || skip "cgroup v1 has no controller $c here; a node on cgroup v2 is not supported yet"
done
unshare --mount --net --pid --ipc --uts --cgroup --fork true 2>/dev/null || skip "namespaces are not permitted here"
grep -qw overlay /proc/filesystems || skip "the kernel has no overlayfs"
unshare --net sh -c 'ip link add veth0 type veth peer name veth1 && ip link add bridge0 type bridge' 2>/dev/null || skip "the kernel has no veth or no bridge"

tmp=$(mktemp -d)
groups=
# remove_groups removes groups with those that kubelet and containerd have made below. They are empty once the node has ended; a node that was
# killed may take a moment.
remove_groups() {
	for g in $groups; do
		for _ in 1 2 3 4 5; do
			find "$g" -depth -type d -exec rmdir {} + 2>/dev/null && break || sleep 1
		done
	done
}
trap 'remove_groups; rm -rf "$tmp" $policy' EXIT
trap 'exit 1' HUP INT TERM

missing=
has etcd || missing="$missing etcd-server"
has containerd || missing="$missing containerd"
has runc || missing="$missing runc"
[ -x /usr/lib/cni/bridge ] || missing="$missing containernetworking-plugins"
has ip || missing="$missing iproute2"
has nft || missing="$missing nftables"
# shellcheck disable=SC2086
install_packages $missing

kubernetes='kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubectl'
# Helm asks the server for its version, which test-kube.sh did not always give it.
case $("$CACHE/kube-apiserver-$KUBE_VERSION" --version 2>/dev/null) in *v$KUBE_VERSION*) ;; *) rm -f "$CACHE/kube-apiserver-$KUBE_VERSION" ;; esac
# shellcheck disable=SC2086
build_programs $kubernetes
mkdir "$tmp/bin" "$tmp/root"
for name in $kubernetes; do ln -s "$CACHE/$name-$KUBE_VERSION" "$tmp/bin/$name"; done
# Built outside of the node, which has no network.
$GO test -tags kube -c -o "$tmp/integration.test" ./integration
(cd packaging && GOWORK=off $GO build -o "$tmp/bin/helm" helm.sh/helm/v3/cmd/helm)
CGO_ENABLED=0 $GO build -o "$tmp/bin/headpond" ./cmd/headpond

# The images of the gateway and of what keeps a pod's namespaces, in the form of docker save.
mkdir "$tmp/pause"
CGO_ENABLED=0 $GO build -ldflags '-s -w' -o "$tmp/pause/pause" ./integration/testdata/pause
(
	cd "$tmp/pause"
	tar -cf layer.tar pause
	printf '{"architecture": "%s", "os": "linux", "config": {"Entrypoint": ["/pause"]}, "rootfs": {"type": "layers", "diff_ids": ["sha256:%s"]}}' \
		"$($GO env GOARCH)" "$(sha256sum layer.tar | cut -d ' ' -f 1)" >config.json
	echo '[{"Config": "config.json", "RepoTags": ["headpond.test/pause:1"], "Layers": ["layer.tar"]}]' >manifest.json
	tar -cf "$tmp/pause.tar" manifest.json config.json layer.tar
)
GO=$GO VERSION=$VERSION WHAT=image sh scripts/dist.sh "linux/$($GO env GOARCH)"
mv "dist/headpond-$VERSION-linux-$($GO env GOARCH).image.tar" "$tmp/headpond.tar"
rm -f "dist/headpond-$VERSION.sha256"

# The node's groups are below this process's, so that limits of this process hold for it.
for h in $hierarchies; do
	path=$(sed -n "s/^[0-9]*:$h:\(.*\)$/\1/p" /proc/self/cgroup)
	mounted=$(awk -v h=",$h" '$3 == "cgroup" && substr($4, length($4) - length(h) + 1) == h {print $2; exit}' /proc/mounts)
	[ -n "$mounted" ] || skip "the hierarchy $h of cgroups is not mounted"
	g=$mounted${path%/}/headpond-pods-$$
	mkdir "$g"
	groups="$groups $g"
	[ "$h" != cpuset ] || for f in cpus mems; do cat "$mounted${path%/}/cpuset.$f" >"$g/cpuset.$f"; done
done

echo "test-pods: $RUN"
(
	for g in $groups; do echo 0 >"$g/cgroup.procs"; done
	exec unshare --mount --propagation private --net --pid --ipc --uts --cgroup --fork --kill-child \
		env top="$top" tmp="$tmp" hierarchies="$hierarchies" sh scripts/test-pods-inside.sh \
		"$tmp/integration.test" -test.v -test.timeout 40m -test.run "$RUN"
)
