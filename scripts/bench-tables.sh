#!/bin/sh
# Draws the benchmark tables of the README and of docs/benchmarks from the committed results; nobody types a figure.
# With a results.json of `make bench-engine` it first makes that the committed one:
#
#	scripts/bench-tables.sh dist/bench-engine/results.json
set -eu
cd "$(dirname "$0")/.."
: "${GO:=go}"
[ $# = 0 ] || cp "$1" docs/benchmarks/engine.json
"$GO" run ./bench/cmd/headpond-bench tables README.md docs/benchmarks/*.md
