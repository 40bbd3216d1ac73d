#!/bin/sh
# The part of test-package.sh that runs in the copy of the system.
set -eu
cd /
deb=/tmp/headpond.deb log=/tmp/headpond.log config=/etc/headpond/headpond.yaml

# installed lists what a package could leave behind.
installed() {
	find /etc /usr/bin /usr/lib/headpond /usr/lib/systemd /usr/share /var/lib /var/log -path /var/lib/dpkg -prune -o -print 2>/dev/null | sort
	cat /etc/passwd /etc/group
}
# within COMMAND… runs a command until it succeeds, for a minute.
within() {
	for _ in $(seq 120); do
		if "$@" >/dev/null 2>&1; then return 0; fi
		sleep 0.5
	done
	echo "test-package: this did not succeed within a minute: $*" >&2
	cat $log >&2
	return 1
}

# ended reports whether both processes have.
ended() { [ "$(grep -c msg=stopped $log)" = 2 ]; }

rm -f /var/lib/man-db/auto-update # man-db would read every manual anew, three times
installed >/tmp/before
dpkg -i $deb
[ "$(stat -c '%U:%G %a' $config)" = "root:headpond 640" ]
mv $config /tmp/kept
dpkg -i $deb # an administrator may have the configuration elsewhere
[ ! -e $config ]
mv /tmp/kept $config
setpriv --reuid headpond --regid headpond --clear-groups headpond check $config
setpriv --reuid headpond --regid headpond --clear-groups --no-new-privs /usr/bin/headpond serve $config >$log 2>&1 &
within headpond ctl health
old=$(pgrep -u headpond -x headpond)
dpkg -i $deb # an upgrade
kill -USR2 "$old"
within grep -q 'msg="upgraded' $log
within headpond ctl health
kill "$(pgrep -n -u headpond -x headpond)"
within ended
man -w headpond
dpkg -r headpond
[ -e $config ]
dpkg -P headpond
installed >/tmp/after
diff /tmp/before /tmp/after
echo "test-package: ok"
