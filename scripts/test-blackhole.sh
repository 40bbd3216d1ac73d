#!/bin/sh
# Tests what becomes of sessions whose packets are dropped: `make test-blackhole`. Needs root, for a network namespace and packet
# filters in it, and apt where iproute2 or nftables are missing. GO and ENGINES may be set.
set -eu

GO=${GO:-go}
ENGINES=${ENGINES:-uring epoll goroutine}

cd "$(dirname "$0")/.."
[ "$(id -u)" = 0 ] || { echo "test-blackhole: network namespaces need root" >&2; exit 1; }
missing=
command -v ip >/dev/null 2>&1 || missing="$missing iproute2"
command -v nft >/dev/null 2>&1 || missing="$missing nftables"
if [ -n "$missing" ]; then
	# shellcheck disable=SC2086
	DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $missing >/dev/null
fi
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
trap 'exit 1' HUP INT TERM

# Built outside of the namespace, which has no network; the gateway at the first run, for all.
$GO test -tags blackhole -c -o "$tmp/integration.test" ./integration
mkdir "$tmp/bin"
for engine in $ENGINES; do
	echo "test-blackhole: $engine"
	unshare -n sh -euc '
		ip link set lo up
		for n in 1 2 10; do ip addr add 10.98.0.$n/32 dev lo; done
		cd integration
		exec "$@"
	' sh env HEADPOND_ENGINE="$engine" HEADPOND_BLACKHOLE=1 "$tmp/integration.test" -binaries "$tmp/bin" -test.v -test.timeout 10m -test.run BlackHole
done
