package pgtest

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// minMajor is the oldest server version that the tests support: the oldest that the PostgreSQL project
// supported in 2025.
const minMajor = 13

// install tells how to install a server, by system.
const install = "install one with scripts/test-deps.sh, or by hand: " +
	"Debian/Ubuntu apt-get install postgresql postgresql-contrib; Fedora dnf install postgresql-server postgresql-contrib; " +
	"Alpine apk add postgresql postgresql-contrib; macOS brew install postgresql; or set PGTEST_BIN to the directory of initdb and postgres"

// errNoServer means that no usable PostgreSQL server is installed.
var errNoServer = errors.New("no PostgreSQL server found")

// server is an installed PostgreSQL.
type server struct {
	bin     string // directory of initdb and postgres
	version string // "15.14"
	major   int
}

// findServer looks for an installed server once per process: PGTEST_BIN, PATH, the
// directories distributions use (newest major first), then pg_config.
var findServer = sync.OnceValues(func() (server, error) {
	var seen []string
	for _, dir := range candidates() {
		s, err := inspect(dir)
		if err != nil {
			continue
		}
		if s.major >= minMajor {
			return s, nil
		}
		seen = append(seen, fmt.Sprintf("%s in %s", s.version, s.bin))
	}
	if len(seen) > 0 {
		return server{}, fmt.Errorf("%w: only %s, but %d or newer is needed; %s",
			errNoServer, strings.Join(seen, ", "), minMajor, install)
	}
	return server{}, fmt.Errorf("%w; %s", errNoServer, install)
})

// candidates lists directories that may hold the server's programs, best first.
func candidates() []string {
	if dir := os.Getenv("PGTEST_BIN"); dir != "" {
		return []string{dir}
	}
	var dirs []string
	if p, err := exec.LookPath("initdb"); err == nil {
		if target, err := filepath.EvalSymlinks(p); err == nil {
			dirs = append(dirs, filepath.Dir(target))
		}
	}
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin",           // Debian, Ubuntu
		"/usr/pgsql-*/bin",                    // PostgreSQL's own RPMs
		"/usr/libexec/postgresql*",            // Alpine
		"/usr/lib/postgresql*/bin",            // openSUSE
		"/opt/homebrew/opt/postgresql*/bin",   // Homebrew on Apple silicon
		"/usr/local/opt/postgresql*/bin",      // Homebrew on Intel
		"/usr/local/pgsql/bin",                // built from source
		"/Applications/Postgres.app/*/*/*bin", // Postgres.app
	} {
		found, _ := filepath.Glob(pattern) // the pattern is constant and valid
		slices.SortFunc(found, func(a, b string) int { return cmp.Compare(number(b), number(a)) })
		dirs = append(dirs, found...)
	}
	if out, err := exec.Command("pg_config", "--bindir").Output(); err == nil {
		dirs = append(dirs, strings.TrimSpace(string(out)))
	}
	return dirs
}

var (
	digits  = regexp.MustCompile(`\d+`)
	version = regexp.MustCompile(`PostgreSQL\) ((\d+)\S*)`)
)

// number returns the first number in a path, which is the major version there.
func number(path string) int {
	n, _ := strconv.Atoi(digits.FindString(path)) // no digits: 0, sorted last
	return n
}

// inspect returns the server in dir, or an error if one of its programs is missing.
func inspect(dir string) (server, error) {
	if _, err := os.Stat(filepath.Join(dir, "initdb")); err != nil {
		return server{}, err
	}
	out, err := exec.Command(filepath.Join(dir, "postgres"), "--version").Output()
	if err != nil {
		return server{}, err
	}
	m := version.FindSubmatch(out)
	if m == nil {
		return server{}, fmt.Errorf("%s/postgres --version said %q", dir, out)
	}
	major, err := strconv.Atoi(string(m[2]))
	return server{bin: dir, version: string(m[1]), major: major}, err
}
