#!/bin/sh
# Installs a package for dpkg in a copy of this system that nobody else sees, runs and upgrades the service's program there as its user, and
# removes and purges the package: nothing may be left. Needs root and a Debian. systemd does not run there, so that its part is not tested.
#
#	scripts/test-package.sh dist/headpond_0.1.0-1_amd64.deb
set -eu
deb=$(readlink -f "$1")
dir=$(mktemp -d)
trap 'rmdir "$dir"' EXIT
trap 'exit 1' HUP INT TERM
export dir deb
# A mount namespace for the copy, and one of the network, so that ports are free.
unshare --mount --propagation private --net --pid --fork sh -euc '
	ip link set lo up
	mount -t tmpfs tmpfs "$dir"
	mkdir "$dir/upper" "$dir/work" "$dir/root"
	mount -t overlay overlay -o "lowerdir=/,upperdir=$dir/upper,workdir=$dir/work" "$dir/root"
	mount -t proc proc "$dir/root/proc"
	mount --rbind /dev "$dir/root/dev"
	cp "$deb" "$dir/root/tmp/headpond.deb"
	cp "$0" "$dir/root/tmp/inside.sh"
	exec chroot "$dir/root" sh /tmp/inside.sh
' "$(dirname "$0")/test-package-inside.sh"
