package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestImport: the configuration of a PgBouncer passes the check, and passwords are in files of their own.
func TestImport(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	write := func(name, text string) {
		if err := os.WriteFile(path(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const ini = "[databases]\napp = host=127.0.0.1 user=app password='of app'\n[pgbouncer]\nlisten_addr = 127.0.0.1\nunix_socket_dir =\nauth_type = md5\nauth_file = userlist.txt\nserver_tls_sslmode = disable\n"
	write("userlist.txt", "\"alice\" \"of alice\"\n")
	write("pgbouncer.ini", ini)
	write("lossy.ini", ini+"disable_pqexec = 1\nmax_user_connections = 0\nlog_stats = 1\n")
	write("broken.ini", ini+"listen_prot = 1\n")
	const cfg = "frontend f\n mode http\n bind 127.0.0.1:8080\n default_backend b\nbackend b\n mode http\n server s 127.0.0.1:9000\n"
	write("haproxy.cfg", cfg)
	write("nginx.conf", "http { server { listen 127.0.0.1:8080; location / { proxy_pass http://127.0.0.1:9000; } } }\n")
	write("lossy.conf", cfg+" filter x\n nonsense\n")
	write("login.cfg", cfg+" http-request auth unless { http_auth(u) }\nuserlist u\n user ann insecure-password of-ann\n")
	write("tls.cfg", strings.Replace(cfg, "8080", "8080 ssl crt nowhere.pem", 1))
	write("nousers.ini", strings.Replace(ini, "userlist", "nowhere", 1))
	for _, c := range []struct {
		args   string
		code   int
		stdout string // of it; "": nothing
		stderr string
	}{
		{"pgbouncer.ini", 0, `password: "${HEADPOND_PASSWORD_APP}"`, "HEADPOND_PASSWORD_APP: set this variable"},
		{"-port 7000 pgbouncer.ini", 0, "listen: \"127.0.0.1:7000\" # listen_port is 6432", "0 not supported"},
		{"lossy.ini", 3, "users_file: " + path("userlist.txt"), path("lossy.ini") + ":9: disable_pqexec: NOT SUPPORTED: "},
		{"lossy.ini", 3, "max_size: 20", path("lossy.ini") + ":11: log_stats: not needed: "},
		{"broken.ini", 1, "", path("broken.ini") + `:9: unknown setting "listen_prot"; did you mean "listen_port"?`},
		{"nousers.ini", 1, "users_file", "cannot read"},
		{"nowhere.ini", 1, "", path("nowhere.ini") + ": cannot read "},
		{"nowhere.cfg", 1, "", path("nowhere.cfg") + ": cannot read "},
		{"-port 70000 pgbouncer.ini", 2, "", "want a port"},
		{"haproxy.cfg", 0, "upstream: b", "0 not supported"},
		{"haproxy haproxy.cfg", 0, "# haproxy.cfg:3", "0 not supported"},
		{"nginx.conf", 0, "upstream: \"127.0.0.1-9000\"", "0 not supported"},
		{"nginx haproxy.cfg", 1, "", path("haproxy.cfg") + ":"},
		{"-port 7000 haproxy.cfg", 2, "", "-port is for PgBouncer"},
		{"lossy.conf", 2, "", "whose configuration is this?"},
		{"haproxy lossy.conf", 3, "# - lossy.conf:8: filter: ", path("lossy.conf") + ":8: filter: NOT SUPPORTED: "},
		{"haproxy pgbouncer.ini", 1, "", path("pgbouncer.ini") + ":1: "},
		{"tls.cfg", 1, "cert: ", "nowhere.pem"},
		{"tls.cfg", 1, "cert: ", "the result does not pass check yet"},
		{"login.cfg", 3, `deny: ["0.0.0.0/0", "::/0"]`, "-passwords DIR"},
		{"-passwords " + path("lists") + " login.cfg", 0, "file: " + path("lists/u"), "the passwords of userlist u"},
		{"-passwords " + path("secrets") + " -o " + path("new.yaml") + " pgbouncer.ini", 0, "", path("secrets/app") + `: the password of user "app" of database "app"`},
		{"-o " + path("new.yaml") + " pgbouncer.ini", 1, "", "new.yaml exists, and is not replaced"},
		{"-passwords " + path("secrets") + " pgbouncer.ini", 1, "", "secrets/app exists, and is not replaced"},
	} {
		args := strings.Fields(c.args)
		args[len(args)-1] = path(args[len(args)-1])
		code, stdout, stderr := execute(append([]string{"import"}, args...)...)
		if code != c.code || !strings.Contains(stdout, c.stdout) || c.stdout == "" && stdout != "" || !strings.Contains(stderr, c.stderr) || strings.Contains(stdout+stderr, "of app") {
			t.Errorf("%s: exit %d\n%s%s\nwant exit %d, %q and %q", c.args, code, stdout, stderr, c.code, c.stdout, c.stderr)
		}
	}
	if code, stdout, stderr := execute("check", path("new.yaml")); code != 0 || !strings.Contains(stdout, "1 listener, 1 upstream") {
		t.Errorf("check: exit %d\n%s%s", code, stdout, stderr)
	}
	secret, err := os.ReadFile(path("secrets/app"))
	info, err2 := os.Stat(path("secrets/app"))
	if err != nil || err2 != nil || string(secret) != "of app\n" || info.Mode().Perm() != 0o600 {
		t.Errorf("the file of the password: %q, %v, %v, %v", secret, info.Mode(), err, err2)
	}
}
