#!/bin/sh
# Builds a release into dist/: for each platform an archive with headpond and, beside it where `headpond bench` looks, headpond-bench; for
# Linux also packages for dpkg and rpm, and container images; the Helm chart; and the checksums of all. WHAT names what to make of these.
#
#	VERSION=v0.1.0 LDFLAGS='-s -w -X main.version=v0.1.0' WHAT='archive package image chart' scripts/dist.sh linux/amd64 linux/arm64
#
# The times in them are that of the commit, or SOURCE_DATE_EPOCH.
set -eu
: "${GO:=go}" "${VERSION:=unknown}" "${LDFLAGS:=-s -w -X main.version=$VERSION}" "${WHAT:=archive package image chart}"
cd "$(dirname "$0")/.."
top=$PWD
: "${SOURCE_DATE_EPOCH:=$(git log -1 --format=%ct 2>/dev/null || echo 0)}"
mkdir -p dist
work=$(mktemp -d "$top/dist/work.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
export CGO_ENABLED=0

# program PACKAGE FILE builds a program for GOOS and GOARCH.
program() { "$GO" build -trimpath -buildvcs=false -ldflags "$LDFLAGS" -o "$2" "$1"; }

# licenses PACKAGE… lists what packaging's option of that name wants: the packages that are linked in, those of Go first.
licenses() {
	echo "Go $("$GO" env GOVERSION) $("$GO" env GOROOT) $("$GO" env GOROOT)/src"
	"$GO" list -deps -f '{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}} {{.Dir}} {{$.Dir}}{{end}}{{end}}' "$@" | sort -u
}

# packaging runs the program of that folder, which has a module of its own.
packaging() (cd packaging && "$work/packaging" "$@" -time "$SOURCE_DATE_EPOCH")

# files PROGRAM FOLDER PACKAGE… collects in FOLDER what belongs to an installation of PROGRAM, which is linked of PACKAGEs.
files() {
	program=$1 folder=$2
	shift 2
	licenses "$@" >"$work/licenses"
	packaging files -program "$program" -manual "$work/headpond" -licenses "$work/licenses" -out "$folder"
}

# archive makes the archive of a platform, with the program that is built in the folder NAME.
archive() {
	program ./bench/cmd/headpond-bench "$work/$name/headpond-bench$exe"
	files "$work/$name/headpond$exe" "$work/files" ./peers/cmd/headpond ./bench/cmd/headpond-bench
	rm "$work/files/headpond" "$work/files/ca-certificates.crt"
	mkdir "$work/$name/extra"
	mv "$work/files/third-party-licenses.txt" "$work/$name/"
	mv "$work/files"/* "$work/$name/extra/"
	cp LICENSE README.md CHANGELOG.md "$work/$name/"
	# The names and times in the archive are the same wherever it is made. GNU tar; others leave the times as they are.
	if tar --version 2>/dev/null | grep -q GNU; then
		tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -cf - "$name"
	else
		tar -C "$work" -cf - "$name"
	fi | gzip -n >"$work/made/$name.tar.gz"
}

(cd packaging && GOWORK=off "$GO" build -trimpath -buildvcs=false -o "$work/packaging" .)
program ./peers/cmd/headpond "$work/headpond"
for platform in "$@"; do
	export GOOS="${platform%/*}" GOARCH="${platform#*/}"
	name="headpond-$VERSION-$GOOS-$GOARCH"
	exe=
	[ "$GOOS" != windows ] || exe=.exe
	mkdir "$work/$name"
	program ./peers/cmd/headpond "$work/$name/headpond$exe"
	rm -rf "$work/made"
	mkdir "$work/made"
	for what in $WHAT; do
		rm -rf "$work/files"
		case $what/$GOOS in
		archive/*) archive ;;
		chart/*) ;; # below: it is the same for all
		*/linux)
			files "$work/$name/headpond" "$work/files" ./peers/cmd/headpond
			packaging "$what" -files "$work/files" -arch "$GOARCH" -version "$VERSION" -out "$work/made"
			;;
		esac
	done
	for f in "$work/made"/*; do
		[ -e "$f" ] || continue
		echo "dist/${f##*/}"
		mv "$f" dist/
		echo "${f##*/}" >>"$work/list"
	done
	rm -rf "${work:?}/$name"
done
case " $WHAT " in
*" chart "*)
	packaging chart -version "$VERSION" -out "$top/dist"
	echo "dist/headpond-chart-$VERSION.tgz"
	echo "headpond-chart-$VERSION.tgz" >>"$work/list"
	;;
esac
cd dist
# shellcheck disable=SC2046 # names without spaces
sha256sum $(cat "$work/list") >"headpond-$VERSION.sha256"
