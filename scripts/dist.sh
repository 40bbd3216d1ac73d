#!/bin/sh
# Builds the archives of a release into dist/: headpond and, beside it where `headpond bench` looks, headpond-bench.
#
#	VERSION=v0.1.0 LDFLAGS='-s -w -X main.version=v0.1.0' scripts/dist.sh linux/amd64 linux/arm64
set -eu
: "${GO:=go}" "${VERSION:=unknown}" "${LDFLAGS:=-s -w -X main.version=$VERSION}"
cd "$(dirname "$0")/.."
mkdir -p dist
archives=
for platform in "$@"; do
	export GOOS="${platform%/*}" GOARCH="${platform#*/}" CGO_ENABLED=0
	name="headpond-$VERSION-$GOOS-$GOARCH"
	exe=
	[ "$GOOS" != windows ] || exe=.exe
	echo "dist/$name.tar.gz"
	rm -rf "dist/$name"
	mkdir "dist/$name"
	"$GO" build -trimpath -buildvcs=false -ldflags "$LDFLAGS" -o "dist/$name/headpond$exe" ./peers/cmd/headpond
	"$GO" build -trimpath -buildvcs=false -ldflags "$LDFLAGS" -o "dist/$name/headpond-bench$exe" ./bench/cmd/headpond-bench
	cp LICENSE README.md CHANGELOG.md "dist/$name/"
	tar -C dist -czf "dist/$name.tar.gz" "$name"
	rm -rf "dist/$name"
	archives="$archives $name.tar.gz"
done
cd dist
sha256sum $archives >"headpond-$VERSION.sha256"
