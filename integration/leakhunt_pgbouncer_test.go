package integration

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	accounts "os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// startPgBouncer starts a PgBouncer with a pool of one connection for each kind.
func (h *hunt) startPgBouncer(mode string) *huntTarget {
	target := &huntTarget{name: "pgbouncer-" + mode, addr: address(h.t), kind: "pgbouncer", shares: mode == "transaction"}
	host, port, err := net.SplitHostPort(target.addr)
	if err != nil {
		h.t.Fatal(err)
	}
	var ini strings.Builder
	ini.WriteString("[databases]\n")
	for _, k := range h.kinds {
		fmt.Fprintf(&ini, "%s = host=127.0.0.1 port=%d dbname=%s user=%s\n", k.role(), h.server.Port(), huntDatabase, k.role())
	}
	fmt.Fprintf(&ini, `[pgbouncer]
listen_addr = %s
listen_port = %s
unix_socket_dir =
auth_type = any
pool_mode = %s
default_pool_size = 1
max_client_conn = 500
query_wait_timeout = 5
server_login_retry = 1
ignore_startup_parameters = extra_float_digits
log_connections = 0
log_disconnections = 0
`, host, port, mode)
	file := filepath.Join(sharedDir(h.t), "pgbouncer.ini")
	if err := os.WriteFile(file, []byte(ini.String()), 0o644); err != nil {
		h.t.Fatal(err)
	}
	startPgBouncer(h.t, file, target.addr)
	return target
}

// startPgBouncer starts a PgBouncer with a configuration file, and waits until it listens at an address.
func startPgBouncer(t testing.TB, file, addr string) {
	t.Helper()
	program := pgBouncer()
	if program == "" {
		t.Fatal("this test needs PgBouncer (install the package pgbouncer)")
	}
	cmd := exec.Command(program, file)
	if os.Getuid() == 0 { // it refuses to run as root
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: nobody(t)}
	}
	p := start(t, cmd)
	eventually(t, "PgBouncer listens", func() error {
		if p.Ended() {
			t.Fatalf("PgBouncer ended:\n%s", p.out)
		}
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			err = conn.Close()
		}
		return err
	})
}

// pgBouncer returns the installed PgBouncer, "" without one.
func pgBouncer() string {
	for _, program := range []string{"pgbouncer", "/usr/sbin/pgbouncer"} {
		if path, err := exec.LookPath(program); err == nil {
			return path
		}
	}
	return ""
}

func nobody(t testing.TB) *syscall.Credential {
	t.Helper()
	u, err := accounts.Lookup("nobody")
	if err != nil {
		t.Fatal(err)
	}
	uid, err1 := strconv.Atoi(u.Uid)
	gid, err2 := strconv.Atoi(u.Gid)
	if err1 != nil || err2 != nil {
		t.Fatal(u)
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}

// pgBouncerVersion returns PgBouncer's name in the table, such as "PgBouncer 1.18".
func pgBouncerVersion() string {
	out, err := exec.Command(pgBouncer(), "--version").Output()
	line, _, _ := strings.Cut(string(out), "\n")
	if err != nil || !strings.HasPrefix(line, "PgBouncer ") {
		return ""
	}
	parts := strings.SplitN(line, ".", 3)
	return parts[0] + "." + parts[1]
}
