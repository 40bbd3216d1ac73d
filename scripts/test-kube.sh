#!/bin/sh
# Tests the gateway before three real API servers: `make test-kube`. Needs root (a network namespace gives each server an address of its
# own), the Go module proxy and, where etcd, HAProxy, iproute2 or nftables are missing, apt. kube-apiserver is built from its module once, which
# takes two idle cores a quarter of an hour or more, and kept in CACHE. KUBE_VERSION, CACHE, GO, ENGINES and RUN (which tests) may be set.
set -eu

ENGINES=${ENGINES:-uring epoll goroutine}
RUN=${RUN:-Kube}

cd "$(dirname "$0")/.."
. scripts/kube.sh
[ "$(id -u)" = 0 ] || { echo "test-kube: network namespaces need root" >&2; exit 1; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp" $policy' EXIT
trap 'exit 1' HUP INT TERM

missing=
has etcd || missing="$missing etcd-server"
has haproxy || [ -x /usr/sbin/haproxy ] || missing="$missing haproxy"
has ip || missing="$missing iproute2"
has nft || missing="$missing nftables"
# shellcheck disable=SC2086
install_packages $missing
build_programs kube-apiserver

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
	' sh env HEADPOND_HELM="$tmp/helm" HEADPOND_ENGINE="$engine" HEADPOND_KUBE_APISERVER="$CACHE/kube-apiserver-$KUBE_VERSION" "$tmp/integration.test" -test.v -test.timeout 30m -test.run "$RUN"
done
