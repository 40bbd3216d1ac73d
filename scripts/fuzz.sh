#!/bin/sh
# Runs each fuzz target of every module for FUZZTIME, one after the other. Without -fuzzminimizetime Go takes up to a minute to
# make each new input smaller, and a target whose coverage varies a little from run to run does nothing else.
set -eu
: "${GO:=go}" "${FUZZTIME:=30s}"
grep -rlE '^func Fuzz[A-Z]' --include='*_test.go' . | sort | while read -r file; do
	sed -nE 's/^func (Fuzz[A-Za-z0-9_]+)\(.*/\1/p' "$file" | while read -r target; do
		echo "fuzz $(dirname "$file") $target for $FUZZTIME"
		"$GO" test -run '^$' -fuzz "^$target\$" -fuzztime "$FUZZTIME" -fuzzminimizetime 20x "$(dirname "$file")" </dev/null
	done
done
