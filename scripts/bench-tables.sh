#!/bin/sh
# Draws the benchmark tables of the README and of docs/benchmarks from the committed results; nobody types a figure.
# With a results.json it first makes that the committed one of a page; without the page's name it is engine's:
#
#	scripts/bench-tables.sh dist/bench-engine/results.json         # of make bench-engine
#	scripts/bench-tables.sh pool dist/bench-pool/results.json      # of headpond bench -out dist/bench-pool pool
set -eu
cd "$(dirname "$0")/.."
: "${GO:=go}"
case $# in
0) ;;
1) cp "$1" docs/benchmarks/engine.json ;;
*) cp "$2" "docs/benchmarks/$1.json" ;;
esac
"$GO" run ./bench/cmd/headpond-bench tables README.md docs/benchmarks/*.md
