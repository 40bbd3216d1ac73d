#!/bin/sh
# Tests PACKAGES, and on each of ENGINES what depends on the I/O engine: the packages in SESSIONS and integration. Tests of integration
# that do not depend on the engine (ONCE) run once, and such tests of SESSIONS (PURE) on the first engine only. The runs in
# RELEASED, such as sessions-epoll or the share sessions-goroutine-0, are without the race detector, integration with the program as it is
# released: the detector makes a test twice as long or more, what it finds in sessions it finds on another engine too, and fiber's own
# tests have it on each. Tests in files for builds without the race detector run once and without it. SLOTS runs go side by side, more
# than there are processors: most tests wait now and then, those of SESSIONS more often than not, so that SHARES processes share the
# tests of each of its packages. With all of them at once each test would be so slow that deadlines pass, and none would end sooner. What
# a run printed is shown when all have ended, and at last the time and the CPU time that each took. PACKAGES come from go's cache if
# they may; the rest does not, for the cache does not know the engine, nor that integration builds the gateway.
set -eu
: "${GO:=go}" "${PACKAGES:=}" "${ENGINES:=uring epoll goroutine}" "${SESSIONS:=pgproxy httpproxy tcpproxy}" "${ONCE:=^$}" "${PURE:=^$}" "${RELEASED:=}" "${PLATFORMS:=}" "${ASSEMBLED:=}" "${TESTFLAGS:=-race}" "${RACE:=-race}" "${SHARES:=2}" "${FIRST:=^$}"
: "${SLOTS:=$(($(getconf _NPROCESSORS_ONLN) * 2 + 2))}"
# Only the race detector needs cgo. All else is compiled without it, as the released program is, so that nothing is compiled twice.
export CGO_ENABLED=0 PLATFORMS
# A program with the race detector waits for a second when it ends, for races that other threads may still report. Hundreds of gateways end here.
export GORACE="atexit_sleep_ms=100 ${GORACE:-}"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' HUP INT TERM
chmod 755 "$dir" # a test of integration runs the gateway as another user

# measure NAME COMMAND… runs a command and says how it went, and in how many seconds and how much CPU time of user and system.
measure() (
	name=$1 begin=$(date +%s) result=ok
	shift
	"$@" || result=FAIL
	file=$dir/$(echo "$name" | tr ' ' _).cpu
	times >"$file"
	printf '%s\t%s\t%ss, CPU %s\n' "$result" "$name" $(($(date +%s) - begin)) "$(tail -n 1 "$file")" | tee -a "$dir/times"
	[ $result = ok ]
)

# released RUN reports whether a run is one of RELEASED.
released() { case " $RELEASED " in *" $1 "*) ;; *) return 1 ;; esac }

# package ENGINE PACKAGE NAME PROGRAM FLAGS… runs tests of a package in its folder.
package() (
	export HEADPOND_ENGINE="$1"
	package=$2 name=$3 program=$4
	shift 4
	cd "$package" || exit 1
	measure "$name on $HEADPOND_ENGINE" "$program" -test.timeout 20m "$@"
)

# share PACKAGE N makes a pattern of the tests of one of SESSIONS whose number modulo SHARES is N. All builds share the list of the one
# with the race detector. Those that match PURE or FIRST are in share 0.
share() { (cd "$1" && "$dir/$1.test" -test.list '^(Test|Example|Fuzz)') | awk -v n="$2" -v of="$SHARES" -v first="$PURE|$FIRST" '($0 ~ first ? 0 : NR % of) == n' | paste -s -d '|' - | sed 's/.*/^(&)$/'; }

# integration ENGINE FLAG runs the tests of integration that FLAG makes of ONCE.
integration() {
	gateways=
	if released "integration-$1"; then gateways=-released; fi
	package "$1" integration integration "$dir/integration.test" -binaries "$dir/bin" $gateways "$2" "$ONCE"
}

# session ENGINE SKIP PACKAGE N runs share N of the tests of one of SESSIONS, without those that match SKIP.
session() {
	program=$dir/$3.test
	if released "sessions-$1" || released "sessions-$1-$4"; then program=$dir/released/$3.test; fi
	tests=$(share "$3" "$4")
	[ "$tests" != '^()$' ] || { echo "$3 has no tests for share $4, or does not list them"; return 1; }
	package "$1" "$3" "$3, share $4" "$program" -test.run "$tests" -test.skip "$2"
}

# unracedFiles and unracedNames list the files in a folder for builds without the race detector, and their tests with "|" between them.
unracedFiles() { grep -rl --include='*_test.go' '^//go:build !race$' "$1" | sort; }
# shellcheck disable=SC2046 # words
unracedNames() { sed -n 's/^func \(Test[A-Za-z0-9_]*\)(.*/\1/p' /dev/null $(unracedFiles "$1") | paste -s -d '|' -; }

# unraced runs the tests that are built without the race detector only, and others that count allocations: the detector lets pools
# forget. Tests that are long and have no concurrency are among them, because it makes them several times as long.
unraced() {
	# shellcheck disable=SC2046 # words
	"$GO" test -vet=off -timeout 10m -run "^($(unracedNames .))\$|Alloc" $(unracedFiles . | sed 's|/[^/]*$||' | sort -u)
}

# platforms checks the types of everything for PLATFORMS, and vets and assembles for each what is in assembly.
platforms() {
	"$GO" test -vet=off -count 1 -run '^TestOtherPlatforms$' ./internal/repotest || return 1 # it reads PLATFORMS
	for p in $ASSEMBLED; do
		GOOS=${p%/*} GOARCH=${p#*/} "$GO" vet ./internal/goroutine &&
			GOOS=${p%/*} GOARCH=${p#*/} "$GO" build -o /dev/null ./internal/goroutine || { echo "the assembly for $p is wrong"; return 1; }
	done
}

build() {
	# shellcheck disable=SC2046,SC2086 # words
	CGO_ENABLED=1 "$GO" test $RACE -vet=off -ldflags=-w -c -o "$dir/" $(printf './%s ' $SESSIONS) &&
		mkdir "$dir/released" &&
		"$GO" test -vet=off -ldflags=-w -c -o "$dir/released/" $(printf './%s ' $SESSIONS) &&
		"$GO" test -vet=off -ldflags=-w -c -o "$dir/" ./integration && # the gateways that it starts have the race detector, or not
		mkdir -m 755 "$dir/bin" &&
		(cd integration && "$dir/integration.test" -binaries "$dir/bin" -test.list '^$')
}

# run NAME COMMAND… starts one of the runs when there is a slot for it. There is a file NAME.ok when it has gone well.
mkfifo "$dir/slots" # holds a line for each free slot
exec 3<>"$dir/slots"
yes '' | head -n "$SLOTS" >&3
runs=
run() {
	job=$1
	shift
	read -r _ <&3
	(
		if "$@" >"$dir/$job.log" 2>&1 3>&-; then touch "$dir/$job.ok"; fi
		echo >&3
	) &
	runs="$runs $job"
}

measure build build
# The longest come first.
# shellcheck disable=SC2086 # words
[ -z "$PACKAGES" ] || run packages measure packages env CGO_ENABLED=1 "$GO" test -p 3 $TESTFLAGS $PACKAGES
run integration-once integration auto -test.run
for e in $ENGINES; do run "integration-$e" integration "$e" -test.skip; done
skip='^$'
for e in $ENGINES; do
	for s in $SESSIONS; do
		for n in $(seq 0 $((SHARES - 1))); do run "$s-$e-$n" session "$e" "$skip" "$s" "$n"; done
	done
	skip=$PURE
done
[ -z "$PLATFORMS" ] || run platforms measure platforms platforms
run unraced measure unraced unraced
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
