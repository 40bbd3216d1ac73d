package integration

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/headpond/headpond/internal/pgtest"
)

// imported is a gateway with the configuration of a PgBouncer, and that PgBouncer, if it is installed.
type imported struct {
	t        *testing.T
	dir      string // of sockets and files
	programs []pooler
}

type pooler struct{ name, addr, port string }

// psql runs a command through a pooler, by TCP or a Unix socket, and returns its output and exit code.
func (i *imported) psql(p pooler, user, password, database, command string, socket bool) (string, int) {
	i.t.Helper()
	host := "127.0.0.1"
	if socket {
		host = i.dir
	}
	return psql(i.t, fmt.Sprintf("host=%s port=%s user=%s password='%s' dbname=%s connect_timeout=20", host, p.port, user, strings.ReplaceAll(password, "'", `\'`), database), command)
}

// TestImportedFromPgBouncer: with the configuration that `headpond import` makes of a pgbouncer.ini, the same users log
// in to the same databases as the same users of the server, and the console answers them.
func TestImportedFromPgBouncer(t *testing.T) {
	i := importAndStart(t)
	const who = "select current_user, current_database(), current_setting('search_path'), current_setting('datestyle')"
	for _, c := range []struct {
		user, password, database string
		want                     string // "": the login fails
	}{
		{"alice", "alice-secret", "app", `alice|shop|"$user", public|ISO, MDY`},
		{"bob", "bob's", "app", `bob|shop|"$user", public|ISO, MDY`},
		{"alice", "alice-secret", "shop", `alice|shop|"$user", public|ISO, MDY`}, // by the fallback
		{"alice", "alice-secret", "postgres", `alice|postgres|"$user", public|ISO, MDY`},
		{"alice", "alice-secret", "forced", `owner|shop|"$user", public|German, DMY`},
		{"bob", "bob's", "own", `alice|shop|"$user", public|ISO, MDY`}, // with the password of auth_file
		{"carol", "carol-secret", "app", `carol|shop|"$user", public|ISO, MDY`},
		{"alice", "bob's", "app", ""},
		{"dave", "dave-secret", "app", ""},                                  // by a rule
		{"owner", "own ' er", "app", `owner|shop|"$user", public|ISO, MDY`}, // by auth_query
		{"nobody", "x", "app", ""},
		{"alice", "alice-secret", "nowhere", ""},
	} {
		for _, socket := range []bool{false, true}[:1+strings.Count(c.database, "app")] {
			for _, p := range i.programs {
				out, code := i.psql(p, c.user, c.password, c.database, who, socket)
				if ok := code == 0; ok != (c.want != "") || ok && out != c.want {
					t.Errorf("%s at %s, socket %v: %s: %d, %q, want %q", c.user, c.database, socket, p.name, code, out, c.want)
				}
			}
		}
	}
	i.console()
}

// console compares the consoles.
func (i *imported) console() {
	i.t.Helper()
	for _, c := range []struct {
		user, password, command string
		ok                      bool
	}{
		{"alice", "alice-secret", "show pools", true},
		{"alice", "alice-secret", "resume", false}, // nothing is paused
		{"alice", "alice-secret", "reload", true},
		{"bob", "bob's", "show databases", true},
		{"bob", "bob's", "reload", false},
		{"carol", "carol-secret", "show pools", false},
	} {
		for _, p := range i.programs {
			out, code := i.psql(p, c.user, c.password, "pgbouncer", c.command, false)
			if (code == 0) != c.ok || c.command == "show databases" && !strings.Contains("\n"+out, "\nforced|127.0.0.1|") {
				i.t.Errorf("console of %s: %s by %s: %d, %s", p.name, c.command, c.user, code, out)
			}
		}
	}
}

func importAndStart(t *testing.T) *imported {
	t.Helper()
	server := pgtest.Start(t, pgtest.WithAuth(pgtest.SCRAM))
	for user, password := range map[string]string{"alice": "alice-secret", "bob": "bob''s", "carol": "carol-secret", "dave": "dave-secret", "owner": "own '' er", "lookup": "lookup-secret"} {
		server.Exec(t, fmt.Sprintf("CREATE ROLE %s LOGIN PASSWORD '%s'", user, password))
	}
	server.CreateDatabase(t, "shop", "owner")
	for _, name := range []string{"postgres", "shop"} { // PgBouncer asks in the database that the client asks for
		if out, code := psql(t, server.DSN(server.Superuser(), server.Password(), name), "CREATE FUNCTION public.find(INOUT name text, OUT secret text) LANGUAGE sql "+
			"SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS 'SELECT rolname::text, rolpassword FROM pg_authid WHERE rolname = $1'"); code != 0 {
			t.Fatal(out)
		}
	}
	i := &imported{t: t, dir: sharedDir(t)}
	if err := os.Chmod(i.dir, 0o777); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"the gateway", "PgBouncer"} {
		addr := address(t)
		_, port, _ := net.SplitHostPort(addr)
		i.programs = append(i.programs, pooler{name, addr, port})
	}
	pgbouncer := i.programs[1]
	ini := filepath.Join(i.dir, "pgbouncer.ini")
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(i.dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	to := "host=127.0.0.1 port=" + strconv.Itoa(server.Port())
	write("userlist.txt", "; by hand\n\"alice\" \"alice-secret\" \"\"\n\"bob\" \"bob's\"\n\"carol\" \"carol-secret\"\n\"dave\" \"dave-secret\"\n\"lookup\" \"lookup-secret\"\n")
	write("hba.conf", "# by hand\nlocal all dave reject\nhost all dave 0.0.0.0/0 reject\nhost all all 127.0.0.1/32 md5\nlocal all all scram-sha-256\n")
	write("databases.ini", fmt.Sprintf("app = %s dbname=shop\nforced = %s dbname=shop user=owner password='own '' er' datestyle='German, DMY'\n"+
		"own = %s dbname=shop user=alice pool_size=3 min_pool_size=1\n* = %s\n", to, to, to, to))
	write("pgbouncer.ini", fmt.Sprintf(`[databases]
%%include %s/databases.ini
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %s
unix_socket_dir = %s
auth_type = hba
auth_hba_file = %s/hba.conf
auth_file = %s/userlist.txt
auth_user = lookup
auth_query = SELECT name, secret FROM public.find($1)
pool_mode = transaction
admin_users = alice
stats_users = bob
max_client_conn = 50
default_pool_size = 4
query_wait_timeout = 30
server_login_retry = 1
ignore_startup_parameters = extra_float_digits
server_reset_query = DISCARD ALL
`, i.dir, pgbouncer.port, i.dir, i.dir, i.dir))
	startGateway(t, i.importFile(ini))
	startPgBouncer(t, ini, pgbouncer.addr)
	return i
}

// importFile runs `headpond import` and `headpond check`, and returns the configuration.
func (i *imported) importFile(ini string) string {
	t, result := i.t, filepath.Join(i.dir, "headpond.yaml")
	t.Helper()
	headpond := built(t, gatewayBinary)
	arguments := []string{"import", "-port", i.programs[0].port, "-passwords", filepath.Join(i.dir, "secrets"), "-o", result, ini}
	if out, code := run(t, patience, headpond, arguments...); code != 0 || strings.Contains(out, "NOT SUPPORTED") {
		t.Fatalf("import: %d\n%s", code, out)
	}
	if out, code := run(t, patience, headpond, "check", result); code != 0 {
		t.Fatalf("check: %d\n%s", code, out)
	}
	text := readFile(t, result)
	for _, secret := range []string{"alice-secret", "lookup-secret", "own ' er"} {
		if strings.Contains(text, secret) {
			t.Errorf("the password %q is in the configuration\n%s", secret, text)
		}
	}
	return text
}
