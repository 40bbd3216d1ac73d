#!/bin/sh
# Tests the gateway before three real API servers: `make test-kube`. Needs root (a network namespace gives each server an address of its
# own), the Go module proxy and, where etcd, HAProxy, iproute2 or nftables are missing, apt. kube-apiserver is built from its module once, which
# takes two idle cores a quarter of an hour or more, and kept in CACHE. KUBE_VERSION, CACHE, GO, ENGINES and RUN (which tests) may be set.
set -eu

KUBE_VERSION=${KUBE_VERSION:-1.35.0}
CACHE=${CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/headpond}
GO=${GO:-go}
ENGINES=${ENGINES:-uring epoll goroutine}
RUN=${RUN:-Kube}

cd "$(dirname "$0")/.."
has() { command -v "$1" >/dev/null 2>&1; }

[ "$(id -u)" = 0 ] || { echo "test-kube: network namespaces need root" >&2; exit 1; }
tmp=$(mktemp -d)
policy=
trap 'rm -rf "$tmp" $policy' EXIT
trap 'exit 1' INT TERM

missing=
has etcd || missing="$missing etcd-server"
has haproxy || [ -x /usr/sbin/haproxy ] || missing="$missing haproxy"
has ip || missing="$missing iproute2"
has nft || missing="$missing nftables"
if [ -n "$missing" ]; then
	echo "test-kube: installing$missing"
	# No service is started: the tests run servers of their own.
	if [ ! -e /usr/sbin/policy-rc.d ]; then
		policy=/usr/sbin/policy-rc.d
		printf '#!/bin/sh\nexit 101\n' >$policy
		chmod 755 $policy
	fi
	# shellcheck disable=SC2086
	DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $missing >/dev/null
fi

apiserver=$CACHE/kube-apiserver-$KUBE_VERSION
if [ ! -x "$apiserver" ]; then
	echo "test-kube: building kube-apiserver $KUBE_VERSION"
	mkdir -p "$CACHE"
	mkdir "$tmp/build"
	(
		cd "$tmp/build"
		export GOWORK=off GOFLAGS=-mod=mod
		$GO mod init example.org/apiserver 2>/dev/null
		mod=$($GO mod download -json "k8s.io/kubernetes@v$KUBE_VERSION" | sed -n 's/.*"GoMod": "\(.*\)".*/\1/p')
		# Its staging modules are released as v0.x of the same numbers.
		for m in $(sed -n 's/^[[:space:]]*\(k8s\.io\/[a-z0-9-]*\) v0\.0\.0$/\1/p' "$mod" | sort -u); do
			$GO mod edit -replace "$m=$m@v0.${KUBE_VERSION#1.}"
		done
		$GO mod edit -require "k8s.io/kubernetes@v$KUBE_VERSION"
		CGO_ENABLED=0 nice -n 19 $GO build -p "${BUILD_JOBS:-2}" -trimpath -ldflags '-s -w' -o "$apiserver.new" k8s.io/kubernetes/cmd/kube-apiserver
	)
	mv "$apiserver.new" "$apiserver"
fi

# Built outside of the namespace, which has no network.
$GO test -tags kube -c -o "$tmp/integration.test" ./integration
(cd packaging && GOWORK=off $GO build -o "$tmp/helm" helm.sh/helm/v3/cmd/helm)
for engine in $ENGINES; do
	echo "test-kube: $engine"
	unshare -n sh -euc '
		ip link set lo up
		for n in 1 2 3 10; do ip addr add 10.98.0.$n/32 dev lo; done
		cd integration
		exec "$@"
	' sh env HEADPOND_HELM="$tmp/helm" HEADPOND_ENGINE="$engine" HEADPOND_KUBE_APISERVER="$apiserver" "$tmp/integration.test" -test.v -test.timeout 30m -test.run "$RUN"
done
