#!/bin/sh
# Tests what depends on the I/O engine on each of ENGINES: the packages in SESSIONS and integration. The engines run side by side, because
# most of these tests wait, and so do the tests of integration that do not depend on the engine (ONCE). What a run printed is shown
# when it has ended, and at last how long each took. Not from go's cache, which does not know that integration builds the gateway.
set -eu
: "${GO:=go}" "${ENGINES:=uring epoll goroutine}" "${SESSIONS:=tcpproxy httpproxy pgproxy}" "${ONCE:=^$}" "${RACE:=-race}"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
CGO_ENABLED=1 "$GO" test $RACE -c -o "$dir/" $(printf './%s ' $SESSIONS integration)

# package ENGINE PACKAGE FLAGS… runs a package's tests in its folder and says how it went, as go test does.
package() {
	engine=$1 package=$2 begin=$(date +%s) result=ok
	shift 2
	(cd "$package" && HEADPOND_ENGINE=$engine "$dir/$package.test" -test.timeout 15m "$@") || result=FAIL
	printf '%s\t%s on %s\t%ss\n' "$result" "$package" "$engine" $(($(date +%s) - begin)) | tee -a "$dir/times"
	[ $result = ok ]
}

# run NAME COMMAND… starts one of the runs. There is a file NAME.ok when it has gone well.
runs=
run() {
	job=$1
	shift
	("$@" >"$dir/$job.log" 2>&1 && touch "$dir/$job.ok") &
	runs="$runs $job"
}

one_engine() {
	failed=0
	package "$1" integration -test.skip "$ONCE" || failed=1
	for s in $SESSIONS; do package "$1" "$s" || failed=1; done
	return $failed
}

for e in $ENGINES; do run "$e" one_engine "$e"; done
run once package auto integration -test.run "$ONCE"
wait
failed=0
for job in $runs; do
	echo "== $job"
	cat "$dir/$job.log"
	[ -e "$dir/$job.ok" ] || failed=1
done
echo "== the time each took"
sort "$dir/times"
exit $failed
