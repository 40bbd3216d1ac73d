# What test-kube.sh, test-pods.sh and test-kubeadm.sh have in common; sourced by them. KUBE_VERSION, CACHE, GO and BUILD_JOBS may be set.
# shellcheck shell=sh
KUBE_VERSION=${KUBE_VERSION:-1.35.0}
CACHE=${CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/headpond}
GO=${GO:-go}
policy= # a file that the script removes when it ends

has() { command -v "$1" >/dev/null 2>&1; }

# install_packages PACKAGE… installs packages of Debian without starting services: the tests run servers of their own.
install_packages() {
	[ $# -gt 0 ] || return 0
	echo "installing $*"
	if [ ! -e /usr/sbin/policy-rc.d ]; then
		policy=/usr/sbin/policy-rc.d
		printf '#!/bin/sh\nexit 101\n' >$policy
		chmod 755 $policy
	fi
	DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@" >/dev/null
}

# build_programs NAME… builds programs of Kubernetes from its module, each as NAME-VERSION in CACHE. Each takes two idle cores minutes, the first a
# quarter of an hour or more.
build_programs() (
	missing=
	for name; do [ -x "$CACHE/$name-$KUBE_VERSION" ] || missing="$missing $name"; done
	[ -n "$missing" ] || exit 0
	echo "building$missing of Kubernetes $KUBE_VERSION"
	mkdir -p "$CACHE"
	build=$(mktemp -d "$CACHE/build.XXXXXX")
	trap 'rm -rf "$build"' EXIT
	trap 'exit 1' HUP INT TERM
	cd "$build"
	export GOWORK=off GOFLAGS=-mod=mod CGO_ENABLED=0
	$GO mod init example.org/kubernetes 2>/dev/null
	mod=$($GO mod download -json "k8s.io/kubernetes@v$KUBE_VERSION" | sed -n 's/.*"GoMod": "\(.*\)".*/\1/p')
	# Its staging modules are released as v0.x of the same numbers.
	for m in $(sed -n 's/^[[:space:]]*\(k8s\.io\/[a-z0-9-]*\) v0\.0\.0$/\1/p' "$mod" | sort -u); do
		$GO mod edit -replace "$m=$m@v0.${KUBE_VERSION#1.}"
	done
	$GO mod edit -require "k8s.io/kubernetes@v$KUBE_VERSION"
	for name in $missing; do
		nice -n 19 $GO build -p "${BUILD_JOBS:-2}" -trimpath -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=v$KUBE_VERSION" -o "$name" "k8s.io/kubernetes/cmd/$name"
		mv "$name" "$CACHE/$name-$KUBE_VERSION"
	done
)
