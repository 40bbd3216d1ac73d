#!/bin/sh
# Installs what `make test` needs and this machine has not: a PostgreSQL server with psql
# and pgbench, PgBouncer, nginx, HAProxy, MariaDB, Exim, BIND, promtool of Prometheus, a C compiler (for -race), curl, openssl and nc; Python, Node.js, a JDK and Maven, and with them the
# clients that integration/clients pins; Chromium too where it is packaged.
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

# has_venv asks for a Python that the pinned clients run on and that can make an environment for them.
has_venv() { python3 -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

# has_jdk runs the compiler: on macOS a javac without a JDK only tells where to get one.
has_jdk() { java -version 2>/dev/null && javac -version >/dev/null 2>&1; }

# has_chromium looks for what `make test-report` takes.
has_chromium() { has chromium || has chromium-browser || has google-chrome; }

missing=
# lacks reports whether the word is among the missing.
lacks() { case " $missing " in *" $1 "*) true ;; *) false ;; esac; }

has_server || missing="$missing postgresql"
has psql && has pgbench || missing="$missing client"
has cc || has gcc || missing="$missing cc"
has curl || missing="$missing curl"
has openssl || missing="$missing openssl"
has nc || missing="$missing nc"
has nginx || [ -x /usr/sbin/nginx ] || missing="$missing nginx"
has haproxy || [ -x /usr/sbin/haproxy ] || missing="$missing haproxy"
has pgbouncer || [ -x /usr/sbin/pgbouncer ] || missing="$missing pgbouncer"
has promtool || missing="$missing prometheus"
has mariadb-install-db && has mariadb || missing="$missing mariadb"
has named || [ -x /usr/sbin/named ] || missing="$missing named"
has exim4 || has exim || [ -x /usr/sbin/exim4 ] || [ -x /usr/sbin/exim ] || missing="$missing exim"
has_chromium || missing="$missing chromium"
has_venv || missing="$missing python"
has node && has npm || missing="$missing node"
has_jdk || missing="$missing jdk"
has mvn || missing="$missing maven"

if [ "$(id -u)" = 0 ]; then
	as_root() { "$@"; }
elif has sudo; then
	# For what is optional nobody is asked for a password.
	ask=-n
	for m in $missing; do
		[ "$m" = chromium ] || ask=
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
	if lacks openssl; then pkgs="$pkgs openssl"; fi
	if lacks nc; then pkgs="$pkgs netcat-openbsd"; fi
	if lacks python; then pkgs="$pkgs python3 python3-venv"; fi
	if lacks node; then has node || pkgs="$pkgs nodejs"; has npm || pkgs="$pkgs npm"; fi
	if lacks jdk; then pkgs="$pkgs default-jdk-headless"; fi
	if lacks maven; then pkgs="$pkgs maven"; fi
	if lacks mariadb; then pkgs="$pkgs mariadb-server-core mariadb-client-core"; fi
	[ -z "$pkgs" ] || apt install -y --no-install-recommends $pkgs
	if lacks nginx; then apt_unstarted nginx-light libnginx-mod-stream; fi
	if lacks haproxy; then apt_unstarted haproxy; fi
	if lacks pgbouncer; then apt_unstarted pgbouncer; fi
	if lacks exim; then apt_unstarted exim4-daemon-light; fi
	if lacks named; then apt_unstarted bind9; fi
	if lacks prometheus; then apt_unstarted prometheus; fi
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
	if lacks openssl; then pkgs="$pkgs openssl"; fi
	if lacks nc; then pkgs="$pkgs nmap-ncat"; fi
	if lacks nginx; then pkgs="$pkgs nginx"; fi
	if lacks haproxy; then pkgs="$pkgs haproxy"; fi
	if lacks pgbouncer; then pkgs="$pkgs pgbouncer"; fi
	if lacks mariadb; then pkgs="$pkgs mariadb-server mariadb"; fi
	if lacks exim; then pkgs="$pkgs exim"; fi
	if lacks named; then pkgs="$pkgs bind"; fi
	if lacks python; then pkgs="$pkgs python3"; fi
	if lacks node; then pkgs="$pkgs nodejs npm"; fi
	if lacks jdk; then pkgs="$pkgs java-devel"; fi
	if lacks maven; then pkgs="$pkgs maven"; fi
	if lacks prometheus; then pkgs="$pkgs golang-github-prometheus"; fi
	[ -z "$pkgs" ] || as_root dnf install -y -q $pkgs </dev/null
	optional chromium as_root dnf install -y -q chromium
}

install_apk() {
	pkgs=
	if lacks postgresql || lacks client; then pkgs="$pkgs postgresql postgresql-client postgresql-contrib"; fi
	if lacks cc; then pkgs="$pkgs gcc musl-dev"; fi
	if lacks curl; then pkgs="$pkgs curl"; fi
	if lacks openssl; then pkgs="$pkgs openssl"; fi
	if lacks nc; then pkgs="$pkgs netcat-openbsd"; fi
	if lacks nginx; then pkgs="$pkgs nginx"; fi
	if lacks haproxy; then pkgs="$pkgs haproxy"; fi
	if lacks pgbouncer; then pkgs="$pkgs pgbouncer"; fi
	if lacks mariadb; then pkgs="$pkgs mariadb mariadb-client"; fi
	if lacks exim; then pkgs="$pkgs exim"; fi
	if lacks named; then pkgs="$pkgs bind"; fi
	if lacks python; then pkgs="$pkgs python3"; fi
	if lacks node; then pkgs="$pkgs nodejs npm"; fi
	if lacks jdk; then pkgs="$pkgs openjdk17-jdk"; fi
	if lacks maven; then pkgs="$pkgs maven"; fi
	if lacks prometheus; then pkgs="$pkgs prometheus"; fi
	[ -z "$pkgs" ] || as_root apk add -q $pkgs </dev/null
	optional chromium as_root apk add -q chromium
}

install_brew() {
	if lacks postgresql || lacks client; then brew install -q postgresql@17 && brew link -q --force postgresql@17; fi
	if lacks cc; then xcode-select --install; fi
	if lacks openssl; then brew install -q openssl; fi
	if lacks nginx; then brew install -q nginx; fi
	if lacks haproxy; then brew install -q haproxy; fi
	if lacks pgbouncer; then brew install -q pgbouncer; fi
	if lacks mariadb; then brew install -q mariadb; fi
	if lacks exim; then brew install -q exim; fi
	if lacks named; then brew install -q bind; fi
	if lacks prometheus; then brew install -q prometheus; fi
	if lacks python; then brew install -q python; fi
	if lacks node; then brew install -q node; fi
	if lacks jdk; then brew install -q openjdk && brew link -q --force openjdk; fi
	if lacks maven; then brew install -q maven; fi
}

install_packages() {
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
}

[ -z "$missing" ] || install_packages

# The clients of integration/clients: a directory for each kind in the user's cache, named after a hash of the
# pins, where internal/clienttest finds it.
pins=$(cd "$(dirname "$0")/../integration/clients" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/headpond-test

# digest FILE... prints the first 16 digits of the SHA-256 of the files' text.
digest() { cat "$@" | if has sha256sum; then sha256sum; else shasum -a 256; fi | cut -c1-16; }

# serves reports whether a virtual environment is still of use: not after the system's Python has changed.
serves() { "$1/bin/python" -c 'import psycopg' 2>/dev/null; }

# clients KIND FILE... calls install_KIND with a new directory, unless there is one for what the files say. The
# name that tests look for is a link, made when all is installed: an interrupted or concurrent run does no harm,
# and a virtual environment, which cannot be moved, stays where it was made.
clients() {
	kind=$1
	shift
	name=$kind-$(cd "$pins" && digest "$@")
	if [ -e "$cache/$name/." ] && { [ $kind != python ] || serves "$cache/$name"; }; then return 0; fi
	echo "test-deps: installing the clients of integration/clients/$1 in $cache/$name" >&2
	mkdir -p "$cache"
	new=$(mktemp -d "$cache/$name.XXXXXX")
	if ! "install_$kind" "$new" >"$new/log" 2>&1; then
		tail -n 20 "$new/log" >&2
		rm -rf "$new"
		echo "test-deps: could not install integration/clients/$1; the tests with these clients will fail" >&2
		exit 1
	fi
	rm -f "$cache/$name"
	ln -s "$(basename "$new")" "$cache/$name"
}

install_python() {
	python3 -m venv "$1" && "$1/bin/python" -m pip install --disable-pip-version-check -r "$pins/requirements.txt"
}

install_node() {
	cp "$pins/package.json" "$pins/package-lock.json" "$1" && (cd "$1" && npm ci --ignore-scripts --no-audit --no-fund)
}

install_java() {
	mvn -B -f "$pins/pom.xml" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$1"
}

# install_go compiles programs: they are not required by a go.mod, where they would bring the gateway newer modules.
install_go() {
	while read -r program; do
		GOBIN=$1 GOFLAGS=-trimpath GOWORK=off "${GO:-go}" install "$program" || return 1
	done <"$pins/go.txt"
}

clients python requirements.txt
clients node package-lock.json package.json
clients java pom.xml
clients go go.txt
