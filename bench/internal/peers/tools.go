package peers

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Tool is a program that a benchmark needs.
type Tool struct {
	Name    string
	Path    string // empty if it is not installed
	Version string
	Advice  string // how to get it
}

// Tools are the installed programs.
type Tools struct {
	HAProxy, Nginx, PgBouncer, Postgres Tool
	// KubeAPIServer and Etcd are for one suite only, which says if they are missing.
	KubeAPIServer, Etcd Tool
	// StreamModule is the file of nginx's stream module, "" if it is built in. NoStream tells how to install it.
	StreamModule, NoStream string
}

// Missing lists the programs that are not installed and how to install them, one per line.
func (t Tools) Missing() []string {
	var lines []string
	for _, tool := range []Tool{t.HAProxy, t.Nginx, t.PgBouncer, t.Postgres} {
		if tool.Path == "" {
			lines = append(lines, fmt.Sprintf("%s is not installed: %s", tool.Name, tool.Advice))
		}
	}
	if _, err := exec.LookPath("strace"); err != nil {
		lines = append(lines, "strace is not installed, so that no system calls are counted: apt-get install strace | dnf install strace | apk add strace")
	}
	if t.Nginx.Path != "" && t.NoStream != "" {
		lines = append(lines, "nginx has no stream module: "+t.NoStream)
	}
	return lines
}

// Versions returns the versions of the installed programs.
func (t Tools) Versions() map[string]string {
	v := map[string]string{}
	for _, tool := range []Tool{t.HAProxy, t.Nginx, t.PgBouncer, t.Postgres, t.KubeAPIServer, t.Etcd} {
		if tool.Path != "" {
			v[tool.Name] = tool.dated()
		}
	}
	return v
}

// Find looks for all programs.
func Find() Tools {
	t := Tools{
		HAProxy:   find("haproxy", "-v", `ersion (\d[\w.]*)`, "apt-get install haproxy | dnf install haproxy | apk add haproxy"),
		Nginx:     find("nginx", "-v", `nginx/(\S+)`, "apt-get install nginx-light | dnf install nginx | apk add nginx"),
		PgBouncer: find("pgbouncer", "--version", `PgBouncer (\S+)`, "apt-get install pgbouncer | dnf install pgbouncer | apk add pgbouncer"),
		Postgres:  findPostgres(),

		KubeAPIServer: findKubeAPIServer(),
		Etcd:          find("etcd", "--version", `etcd Version: (\S+)`, "apt-get install etcd-server | dnf install etcd"),
	}
	t.findStream()
	return t
}

// find looks in PATH and in the directories of system programs.
func find(name, flag, version, advice string) Tool {
	t := Tool{Name: name, Advice: advice}
	for _, candidate := range []string{name, "/usr/sbin/" + name, "/usr/local/sbin/" + name, "/sbin/" + name} {
		path, err := exec.LookPath(candidate)
		if err != nil {
			continue
		}
		t.Path = path
		t.Version = ask(path, flag, version)
		return t
	}
	return t
}

// ask runs a program to read its version; "unknown" if it prints none.
func ask(path, flag, pattern string) string {
	out, err := exec.Command(path, flag).CombinedOutput()
	if m := regexp.MustCompile(pattern).FindSubmatch(out); m != nil && err == nil {
		return string(m[1])
	}
	return "unknown"
}

var digits = regexp.MustCompile(`\d+`)

// findKubeAPIServer looks in PATH, and for the newest that `make test-kube` has built and kept, under a name with its version.
func findKubeAPIServer() Tool {
	t := find("kube-apiserver", "--version", `Kubernetes v(\S+)`, "make test-kube builds it")
	if t.Path != "" {
		return t
	}
	cache, err := os.UserCacheDir()
	if dir := os.Getenv("CACHE"); dir != "" {
		cache, err = dir, nil
	} else {
		cache = filepath.Join(cache, "headpond")
	}
	built, _ := filepath.Glob(filepath.Join(cache, "kube-apiserver-*"))
	built = slices.DeleteFunc(built, func(path string) bool { return filepath.Ext(path) == ".new" })
	if err != nil || len(built) == 0 {
		return t
	}
	t.Path = slices.MaxFunc(built, func(a, b string) int { return slices.Compare(numbers(a), numbers(b)) })
	t.Version = strings.TrimPrefix(filepath.Base(t.Path), "kube-apiserver-")
	return t
}

// findPostgres returns the newest server that comes with initdb and pgbench; Path is their
// directory.
func findPostgres() Tool {
	t := Tool{Name: "postgres", Advice: "apt-get install postgresql postgresql-contrib | dnf install postgresql-server postgresql-contrib | apk add postgresql postgresql-contrib"}
	dirs, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	for _, pattern := range []string{"/usr/pgsql-*/bin", "/usr/libexec/postgresql*", "/usr/lib/postgresql*/bin", "/usr/local/pgsql/bin"} {
		more, _ := filepath.Glob(pattern)
		dirs = append(dirs, more...)
	}
	slices.SortFunc(dirs, func(a, b string) int { return cmp.Compare(number(b), number(a)) })
	if p, err := exec.LookPath("initdb"); err == nil {
		dirs = append([]string{filepath.Dir(p)}, dirs...)
	}
	for _, dir := range dirs {
		if isFile(filepath.Join(dir, "initdb")) && isFile(filepath.Join(dir, "pgbench")) {
			t.Path = dir
			t.Version = ask(filepath.Join(dir, "postgres"), "--version", `PostgreSQL\) (\S+)`)
			break
		}
	}
	return t
}

// atLeast reports whether a version such as "1.18.0" is that or a later one.
func atLeast(version string, major, minor int) bool {
	var a, b int
	if n, _ := fmt.Sscanf(version, "%d.%d", &a, &b); n < 2 {
		return false
	}
	return a > major || a == major && b >= minor
}

// newest are the current versions at the time of writing. Debian 12 has HAProxy 2.6, nginx 1.22 and PgBouncer 1.18.
var newest = map[string][2]int{"haproxy": {3, 4}, "nginx": {1, 31}, "pgbouncer": {1, 25}}

// dated returns a note for the reader if the version is older than newest.
func (t Tool) dated() string {
	if n, ok := newest[t.Name]; ok && t.Version != "unknown" && !atLeast(t.Version, n[0], n[1]) {
		return fmt.Sprintf("%s (old: %d.%d is out)", t.Version, n[0], n[1])
	}
	return t.Version
}

func number(path string) int {
	n, _ := strconv.Atoi(digits.FindString(path))
	return n
}

// numbers returns the numbers in a file's name.
func numbers(path string) (all []int) {
	for _, text := range digits.FindAllString(filepath.Base(path), -1) {
		n, _ := strconv.Atoi(text)
		all = append(all, n)
	}
	return all
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// findStream looks for nginx's stream module, built in or loadable.
func (t *Tools) findStream() {
	if t.Nginx.Path == "" {
		return
	}
	out, _ := exec.Command(t.Nginx.Path, "-V").CombinedOutput()
	if regexp.MustCompile(`--with-stream(\s|$)`).Match(out) {
		return
	}
	for _, path := range []string{"/usr/lib/nginx/modules/ngx_stream_module.so", "/usr/lib64/nginx/modules/ngx_stream_module.so"} {
		if isFile(path) {
			t.StreamModule = path
			return
		}
	}
	t.NoStream = "apt-get install libnginx-mod-stream | dnf install nginx-mod-stream | apk add nginx-mod-stream"
}
