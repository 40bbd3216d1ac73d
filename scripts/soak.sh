#!/bin/sh
# Runs the soaks of mux, tunnels and the gateway for SOAK each, one after the other (TestSoak of integration twice as long: with the race detector
# and without), and writes what they say to dist/soak.txt.
set -eu
: "${GO:=go}" "${SOAK:=30m}"
mkdir -p dist
{
	date -u '+%Y-%m-%d %H:%M UTC'
	echo "headpond $(git describe --tags --always --dirty), $($GO version)"
	echo "$(getconf _NPROCESSORS_ONLN) processors, $(uname -sr)"
	echo "SOAK=$SOAK HEADPOND_ENGINE=${HEADPOND_ENGINE:-auto}"
} >dist/soak.txt
failed=0
for package in mux tunnel integration; do
	echo "soak $package for $SOAK"
	CGO_ENABLED=1 HEADPOND_SOAK=$SOAK "$GO" test -race -v -count 1 -timeout 0 -run '^TestSoak' "./$package" >dist/soak.log 2>&1 || failed=1
	grep -v '^=== ' dist/soak.log | tee -a dist/soak.txt
done
exit $failed
