#!/bin/sh
# Compares two arms of BenchmarkRoute by benchstat: many short counts, the arms in turn, so that what else the
# machine does falls on both.
#
#	./compare.sh allocated pooled [rounds] [workload]
set -eu
old=$1 new=$2 rounds=${3:-20} workload=${4:-.}
cd "$(dirname "$0")"
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
go test -c -o "$out/route.test" .
i=0
while [ "$i" -lt "$rounds" ]; do
	for arm in "$old" "$new"; do
		"$out/route.test" -test.run '^$' -test.bench "Route/$workload/$arm\$" -test.benchtime 10ms -test.cpu 1,2,4 |
			sed "s|/$arm||" >>"$out/$arm"
	done
	i=$((i + 1))
done
cd "$out"
go run golang.org/x/perf/cmd/benchstat@latest "$old" "$new"
