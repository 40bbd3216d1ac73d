#!/bin/sh
# Runs each fuzz target of every module for FUZZTIME, one after the other.
set -eu
: "${GO:=go}" "${FUZZTIME:=30s}"
grep -rlE '^func Fuzz[A-Z]' --include='*_test.go' . | sort | while read -r file; do
	sed -nE 's/^func (Fuzz[A-Za-z0-9_]+)\(.*/\1/p' "$file" | while read -r target; do
		echo "fuzz $(dirname "$file") $target for $FUZZTIME"
		"$GO" test -run '^$' -fuzz "^$target\$" -fuzztime "$FUZZTIME" "$(dirname "$file")" </dev/null
	done
done
