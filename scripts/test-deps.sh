#!/bin/sh
# Installs what `make test` needs and this machine has not: a PostgreSQL server with psql
# and pgbench, nginx, a C compiler (for -race), curl and nc; psycopg and Chromium too where they are packaged.
# Does nothing when all is there. Starts no service: the tests run servers of their own.
set -eu

has() { command -v "$1" >/dev/null 2>&1; }

# has_server looks where internal/pgtest looks.
has_server() {
	has initdb && return 0
	for f in /usr/lib/postgresql/*/bin/initdb /usr/pgsql-*/bin/initdb /usr/libexec/postgresql*/initdb \
		/opt/homebrew/opt/postgresql*/bin/initdb /usr/local/opt/postgresql*/bin/initdb /usr/local/pgsql/bin/initdb; do
		[ -x "$f" ] && return 0
	done
	has pg_config && [ -x "$(pg_config --bindir)/initdb" ]
}

# has_psycopg asks the Python on PATH and the system's, which packages are installed for.
has_psycopg() { python3 -c 'import psycopg' 2>/dev/null || /usr/bin/python3 -c 'import psycopg' 2>/dev/null; }

# has_chromium looks for what `make test-report` takes.
has_chromium() { has chromium || has chromium-browser || has google-chrome; }

missing=
# lacks reports whether the word is among the missing.
lacks() { case " $missing " in *" $1 "*) true ;; *) false ;; esac; }

has_server || missing="$missing postgresql"
has psql && has pgbench || missing="$missing client"
has cc || has gcc || missing="$missing cc"
has curl || missing="$missing curl"
has nc || missing="$missing nc"
has nginx || [ -x /usr/sbin/nginx ] || missing="$missing nginx"
has_psycopg || missing="$missing psycopg"
has_chromium || missing="$missing chromium"
[ -n "$missing" ] || exit 0

if [ "$(id -u)" = 0 ]; then
	as_root() { "$@"; }
elif has sudo; then
	# For what is optional nobody is asked for a password.
	ask=-n
	for m in $missing; do
		[ "$m" = psycopg ] || [ "$m" = chromium ] || ask=
	done
	as_root() { sudo $ask "$@"; }
else
	as_root() {
		echo "test-deps: not root and no sudo; run as root: $*" >&2
		return 1
	}
fi

# apt_no_cluster keeps Debian's package from creating and starting a server on port 5432.
apt_no_cluster() {
	apt install -y --no-install-recommends postgresql-common
	conf=/etc/postgresql-common/createcluster.conf
	as_root cp "$conf" "$conf.headpond"
	as_root sh -c "echo 'create_main_cluster = false' >>$conf"
}

apt_restore() { as_root mv /etc/postgresql-common/createcluster.conf.headpond /etc/postgresql-common/createcluster.conf; }

# apt_unstarted installs a package and keeps Debian from starting its service.
apt_unstarted() {
	policy=/usr/sbin/policy-rc.d
	if [ -e $policy ]; then
		apt install -y --no-install-recommends "$@"
		return
	fi
	as_root sh -c "printf '#!/bin/sh\nexit 101\n' >$policy && chmod 755 $policy"
	status=0
	apt install -y --no-install-recommends "$@" || status=$?
	as_root rm -f $policy
	[ $status = 0 ] || exit $status
}

# apt installs packages without a question and without waiting long for a dead network.
apt() {
	as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -o Acquire::http::Timeout=20 -o Acquire::Retries=1 "$@" </dev/null
}

install_apt() {
	apt update || echo "test-deps: apt-get update failed; trying with the package lists there are" >&2
	if lacks postgresql || lacks client; then
		apt_no_cluster
		status=0
		apt install -y --no-install-recommends postgresql postgresql-contrib || status=$?
		apt_restore
		[ $status = 0 ] || exit $status
	fi
	pkgs=
	if lacks cc; then pkgs="$pkgs gcc libc6-dev"; fi
	if lacks curl; then pkgs="$pkgs curl"; fi
	if lacks nc; then pkgs="$pkgs netcat-openbsd"; fi
	[ -z "$pkgs" ] || apt install -y --no-install-recommends $pkgs
	if lacks nginx; then apt_unstarted nginx-light; fi
	optional psycopg apt install -y --no-install-recommends python3-psycopg
	optional chromium apt install -y --no-install-recommends chromium
}

# optional NAME COMMAND installs what one test alone uses, if the distribution has it.
optional() {
	name=$1
	shift
	if lacks "$name"; then
		"$@" || echo "test-deps: no $name here; the test that uses it will be skipped" >&2
	fi
}

install_dnf() {
	pkgs=
	if lacks postgresql || lacks client; then pkgs="$pkgs postgresql postgresql-server postgresql-contrib"; fi
	if lacks cc; then pkgs="$pkgs gcc"; fi
	if lacks curl; then pkgs="$pkgs curl"; fi
	if lacks nc; then pkgs="$pkgs nmap-ncat"; fi
	if lacks nginx; then pkgs="$pkgs nginx"; fi
	[ -z "$pkgs" ] || as_root dnf install -y -q $pkgs </dev/null
	optional psycopg as_root dnf install -y -q python3-psycopg3
	optional chromium as_root dnf install -y -q chromium
}

install_apk() {
	pkgs=
	if lacks postgresql || lacks client; then pkgs="$pkgs postgresql postgresql-client postgresql-contrib"; fi
	if lacks cc; then pkgs="$pkgs gcc musl-dev"; fi
	if lacks curl; then pkgs="$pkgs curl"; fi
	if lacks nc; then pkgs="$pkgs netcat-openbsd"; fi
	if lacks nginx; then pkgs="$pkgs nginx"; fi
	[ -z "$pkgs" ] || as_root apk add -q $pkgs </dev/null
	optional psycopg as_root apk add -q py3-psycopg
	optional chromium as_root apk add -q chromium
}

install_brew() {
	if lacks postgresql || lacks client; then brew install -q postgresql@17 && brew link -q --force postgresql@17; fi
	if lacks cc; then xcode-select --install; fi
	if lacks nginx; then brew install -q nginx; fi
}

echo "test-deps: installing:$missing" >&2
if has apt-get; then
	install_apt
elif has dnf; then
	install_dnf
elif has apk; then
	install_apk
elif has brew; then
	install_brew
else
	echo "test-deps: no apt-get, dnf, apk or brew here; please install by hand:$missing" >&2
	exit 1
fi
