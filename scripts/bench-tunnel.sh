#!/bin/sh
# Time to first byte of 1,000 short TCP connections a second across 20 ms of delay (10 ms each way, by netem where the
# kernel has it, between two network namespaces), directly and through a tunnel, in turns. Needs root, iproute2 and bin/headpond (make build).
# RATE, SECONDS_EACH, ROUNDS, DELAY (one way) and GO may be set.
set -eu

RATE=${RATE:-1000}
SECONDS_EACH=${SECONDS_EACH:-5}
ROUNDS=${ROUNDS:-3}
DELAY=${DELAY:-10ms}
GO=${GO:-go}

cd "$(dirname "$0")/.."
[ "$(id -u)" = 0 ] || { echo "bench-tunnel: network namespaces need root" >&2; exit 1; }
command -v tc >/dev/null && command -v ip >/dev/null || { echo "bench-tunnel: ip and tc are missing: apt-get install iproute2" >&2; exit 1; }
[ -x bin/headpond ] || { echo "bench-tunnel: bin/headpond is missing: make build" >&2; exit 1; }

near=hpn$$ far=hpf$$
dir=$(mktemp -d)
pids=
cleanup() {
	for p in $pids; do kill "$p" 2>/dev/null || true; done
	wait
	ip netns del $near 2>/dev/null || true
	ip netns del $far 2>/dev/null || true
	rm -rf "$dir"
}
trap cleanup EXIT
trap 'exit 1' HUP INT TERM

$GO build -o "$dir/tunnel-ttfb" ./bench/cmd/tunnel-ttfb

ip netns add $near
ip netns add $far
ip link add name hp0 netns $near type veth peer name hp1 netns $far
if ip netns exec $near tc qdisc add dev hp0 root netem delay "$DELAY" limit 100000 2>/dev/null; then
	ip netns exec $far tc qdisc add dev hp1 root netem delay "$DELAY" limit 100000
	echo "delay: netem, $DELAY each way"
else # a kernel without netem: a program holds each packet, between two TUN devices
	ip -n $near link del hp0
	"$dir/tunnel-ttfb" delay "$DELAY" hp0 hp1 >"$dir/delay" & pids="$pids $!"
	for i in 1 2 3 4 5 6 7 8 9 10; do
		grep -q ready "$dir/delay" && break
		sleep 0.1
	done
	ip link set hp0 netns $near
	ip link set hp1 netns $far
	echo "delay: this kernel has no netem; a program holds each packet for $DELAY each way"
fi
ip -n $near addr add 10.77.0.1/24 dev hp0
ip -n $far addr add 10.77.0.2/24 dev hp1
for ns in $near $far; do ip -n $ns link set lo up; done
ip -n $near link set hp0 up txqueuelen 10000 # a program that was not run for a moment must not lose packets
ip -n $far link set hp1 up txqueuelen 10000

cat >"$dir/far.yaml" <<END
listeners:
  - {name: peers, protocol: tunnel, listen: "10.77.0.2:7443", tunnel: {psk: a key of the benchmark, allow: ["10.77.0.2:9000"]}}
END
cat >"$dir/near.yaml" <<END
tunnels:
  far: {connect: "10.77.0.2:7443", psk: a key of the benchmark, as: near}
listeners:
  - {name: raw, protocol: tcp, listen: "127.0.0.1:7000", upstream: far}
upstreams:
  far: {endpoints: ["10.77.0.2:9000"], tunnel: far}
END
ip netns exec $far "$dir/tunnel-ttfb" serve 10.77.0.2:9000 & pids="$pids $!"
ip netns exec $far bin/headpond serve "$dir/far.yaml" 2>"$dir/far.log" & pids="$pids $!"
ip netns exec $near bin/headpond serve "$dir/near.yaml" 2>"$dir/near.log" & pids="$pids $!"
for i in 1 2 3 4 5 6 7 8 9 10; do
	grep -q "session begun" "$dir/near.log" && break
	sleep 0.3
done
if ! ip netns exec $near "$dir/tunnel-ttfb" load -rate "$RATE" -seconds "$SECONDS_EACH" -rounds "$ROUNDS" 10.77.0.2:9000 127.0.0.1:7000; then
	tail -5 "$dir/near.log" "$dir/far.log" >&2
	exit 1
fi
