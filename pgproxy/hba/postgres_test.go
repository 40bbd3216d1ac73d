package hba_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pgproxy/hba"
)

// theirs are in lines that only PostgreSQL takes: it looks up names of hosts, has more methods, and overlooks some mistakes. hostgssenc it takes if it was built with GSSAPI.
var theirs = []string{"example.com", " gss", " ident", " ldap", " pam", " radius", "hostgssenc", `"open`, "clientname=dn", "clientcert=1"}

// lines are tried one by one.
var lines = strings.Split(strings.TrimSpace(`
local all all trust
local all all
local all
local
host all all 127.0.0.1/32 trust
host all all 127.0.0.1/32
host all all 127.0.0.1 255.255.255.255 trust
host all all 127.0.0.1 255.0.255.0 trust
host all all 127.0.0.1 trust
host all all 127.0.0.1
host all all 127.0.0.1 ffff:: trust
host all all 127.0.0.1/33 trust
host all all 127.0.0.1/-1 trust
host all all 127.0.0.1/x trust
host all all 127.0.0.1/ trust
host all all ::1/128 trust
host all all ::1/129 trust
host all all ::1 ffff:: trust
host all all ::ffff:10.0.0.1/128 trust
host all all 256.0.0.1/32 trust
host all all all trust
host all all "all" 255.255.255.255 trust
host all all samehost trust
host all all samenet trust
host all all example.com trust
host all all .example.com trust
host all all example.com/32 trust
host all all 10.0.0.0/8,11.0.0.0/8 trust
hostssl all all all cert
hostnossl all all all cert
host all all all cert
local all all cert
hostnossl all all all trust
hostnogssenc all all all trust
hostgssenc all all all trust
hostz all all all trust
Host all all all trust
"host" "all" "all" "127.0.0.1/32" "trust"
local,host all all trust
local a,b, c d trust
local a,,b , c trust
local ,a b trust
local a, trust
local "a b" "c,d" trust
local "a""b" """" trust
local a"b c"d e trust
local "" "" trust
local all all trust # a comment
local all all trust#another
local al#l all trust
local "a#b" all trust
local "open all trust
local all all trust trust
local all all trust,md5
local all all nothing
local all all "trust"
local all all Trust
local all all password
local all all md5
local all all scram-sha-256
local all all reject
local all all peer
local all all ident
host all all all peer
host all all all ident
host all all all gss
host all all all ldap
host all all all pam
host all all all radius
local all all peer map=m
local all all peer map="a map"
local all all peer "map=a b"
local all all peer map=
local all all peer map
local all all peer Map=m
local all all peer map=a,map=b
local all all trust map=m
hostssl all all all cert map=m clientname=DN
hostssl all all all cert clientname=dn
hostssl all all all cert clientcert=verify-full
hostssl all all all cert clientcert=verify-ca
hostssl all all all md5 clientcert=verify-ca
hostssl all all all md5 clientcert=verify-full
hostssl all all all md5 clientcert=1
host all all all md5 clientcert=verify-ca
host all all all md5 clientname=CN
local all all md5 other=1
local all +admins trust
local +admins all trust
local samerole all trust
local samegroup all trust
local "samerole" "+admins" trust
local @dbs all trust
local all @users trust
local "@dbs" "@users" trust
local sameuser,replication all trust
	local	all	all	trust	
`), "\n")

// TestLinesOfPostgreSQL asks a server which lines are valid, and what it reads.
func TestLinesOfPostgreSQL(t *testing.T) {
	db := pgtest.Start(t, pgtest.WithTLS()) // its directory has the socket
	text := strings.Join(lines, "\n") + "\nlocal all all \\\ntrust\nlocal \\\n"
	if err := os.WriteFile(filepath.Join(db.SocketDir(), "pg_hba.conf"), []byte(text), 0o644); err != nil { // read by the view; the server keeps its own
		t.Fatal(err)
	}
	rows, err := db.Connect(t).Query(t.Context(), "select line_number, coalesce(error, ''), coalesce(auth_method, '') from pg_hba_file_rules")
	if err != nil {
		t.Fatal(err)
	}
	all := append(strings.Split(text, "\n"), "")
	var number, n int
	var problem, method string
	_, err = pgx.ForEachRow(rows, []any{&number, &problem, &method}, func() error {
		n++
		line := all[number-1]
		if number > len(lines) {
			line += "\n" + all[number]
		}
		rules, err := hba.Parse("file", line, os.ReadFile)
		known := false
		for _, part := range theirs {
			known = known || strings.Contains(line, part)
		}
		if !known && (err == nil) != (problem == "") {
			t.Errorf("%q: PostgreSQL says %q, we say %v", line, problem, err)
		}
		if err == nil && problem == "" && !known && rules[0].Method.String() != method {
			t.Errorf("%q: PostgreSQL says %s, we say %s", line, method, rules[0].Method)
		}
		return nil
	})
	if err != nil || n != len(lines)+2 {
		t.Errorf("%d lines of %d: %v", n, len(lines)+2, err)
	}
}

// decisions is a pg_hba.conf with a case for each user.
const decisions = `
host    all              u1               127.0.0.1/32            reject
host    all              u2               127.0.0.0/8             reject
host    all              u3               127.255.0.9/8           reject
host    all              u4               128.0.0.0/1             reject
host    all              u5               126.0.0.0/7             reject
host    all              u6               127.0.0.1 255.255.255.255 reject
host    all              u7               127.7.7.1 255.0.0.255   reject
host    all              u8               127.7.7.2 255.0.0.255   reject
host    all              u9               ::1/128                 reject
host    all              u10              ::ffff:127.0.0.1/128    reject
host    all              u11              0.0.0.0/0               reject
host    all              u12              ::/0                    reject
host    all              u13              all                     reject
host    all              u14              samehost                reject
host    all              u15              samenet                 reject
local   all              u16                                      reject
hostssl all              u17              all                     reject
hostnossl all            u18              all                     reject
hostnogssenc all         u19              all                     reject
host    sameuser         u20              all                     reject
host    "sameuser"       u21              all                     reject
host    a,b              u22              all                     reject
host    a, b             u23              all                     reject
host    "a,b"            u24              all                     reject
host    "all"            u25              all                     reject
host    replication      u26              all                     reject
host    "replication"    u27              all                     reject
host    a                u28,"u29",u3x    all                     reject
host    all              u28              all                     trust
host    all              "u 30"           all                     reject
host    all              u31"x"           all                     reject
host    all              U32              all                     reject
host    all              "u33"            all                     md5
host    all              u34              all                     trust
local   all              u34                                      peer
hostssl all              u35              all                     cert
hostssl all              u36              all                     trust clientcert=verify-ca
local   all              u37                                      md5
host    all              u38              all                     scram-sha-256
hostnossl all            u39              all                     password
host    all              /^u4             all                     reject
`

// outcomes of an attempt to log in, by what a server says.
var outcomes = []struct{ said, method string }{
	{"no pg_hba.conf entry", "none"}, {"pg_hba.conf rejects", "reject"}, {"password authentication failed", "password"},
	{"Peer authentication failed", "peer"}, {"requires a valid client certificate", "cert"},
	{"does not exist", "trust"}, // the role, or the database
}

// ask tries to log in to a server, and returns the method by which it decides.
func ask(t *testing.T, db *pgtest.Cluster, where string, req *hba.Request) string {
	t.Helper()
	cfg, err := pgx.ParseConfig(db.DSN("x", "wrong", "x"))
	if err != nil {
		t.Fatal(err)
	}
	cfg.User, cfg.Database, cfg.Fallbacks = req.User, req.Database, nil
	if req.Local {
		cfg.Host = db.SocketDir()
	}
	if req.TLS {
		cfg.TLSConfig = &tls.Config{InsecureSkipVerify: true}
	}
	if req.Replication {
		cfg.RuntimeParams["replication"] = "true"
	}
	conn, err := pgconn.ConnectConfig(t.Context(), &cfg.Config)
	if err == nil {
		_ = conn.Close(context.Background())
		return "trust"
	}
	said, _ := errors.AsType[*pgconn.PgError](err)
	for _, o := range outcomes {
		if said != nil && strings.Contains(said.Message, o.said) {
			return o.method
		}
	}
	t.Errorf("%s, user %s, database %s: %v", where, req.User, req.Database, err)
	return ""
}

// TestDecisionsOfPostgreSQL asks a server for its decisions.
func TestDecisionsOfPostgreSQL(t *testing.T) {
	text := strings.TrimSpace(decisions)
	text = text[:strings.LastIndexByte(text, '\n')] // version 15 has no regular expressions
	db := pgtest.Start(t, pgtest.WithTLS(), pgtest.WithHBA(strings.Split(text, "\n")...), pgtest.WithSetting("ssl_ca_file", "server.crt"),
		pgtest.WithSetting("wal_level", "replica"), pgtest.WithSetting("max_wal_senders", "5"))
	whole, err := os.ReadFile(filepath.Join(db.SocketDir(), "pg_hba.conf")) // with a last line for all others
	if err != nil {
		t.Fatal(err)
	}
	rules, err := hba.Parse("pg_hba.conf", string(whole), nil)
	if err != nil {
		t.Fatal(err)
	}
	compare := func(where string, req hba.Request) {
		want, got := ask(t, db, where, &req), "none"
		if r := rules.Find(&req); r != nil {
			switch got = r.Method.String(); {
			case r.Method.AsksPassword():
				got = "password"
			case r.ClientCert != hba.AnyCert:
				got = "cert"
			}
		}
		if got != want {
			t.Errorf("%s, %+v: PostgreSQL decides by %s, we by %s", where, req, want, got)
		}
	}
	users := []string{"u 30", "u31x", "u32", "U32", "u3x", "all"}
	for i := range 40 {
		users = append(users, fmt.Sprint("u", i+1))
	}
	loopback := netip.MustParseAddr("127.0.0.1")
	for _, user := range users {
		compare("tcp", hba.Request{Addr: loopback, User: user, Database: "a"})
	}
	for _, user := range []string{"u1", "u16", "u17", "u18", "u19", "u34", "u35", "u36", "u37", "u38", "u39"} {
		compare("tls", hba.Request{Addr: loopback, User: user, Database: "b", TLS: true})
		compare("socket", hba.Request{Local: true, User: user, Database: "a"})
	}
	for _, user := range []string{"u13", "u20", "u21", "u22", "u23", "u24", "u25", "u26", "u27"} {
		for _, database := range []string{"all", "sameuser", "replication", "a,b", "b", user} {
			compare("tcp", hba.Request{Addr: loopback, User: user, Database: database})
		}
		compare("replication", hba.Request{Addr: loopback, User: user, Database: "a", Replication: true})
	}
}

// TestMapsOfPostgreSQL has a server map the user who runs this test.
func TestMapsOfPostgreSQL(t *testing.T) {
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	name := me.Username
	half := len(name) / 2
	cases := []struct{ system, user, as string }{
		{name, "ada", "ada"}, {name, "ada", "bob"}, {"other", "ada", "ada"}, {`"` + name + `"`, `"a da"`, "a da"},
		{"/^" + name[:half], "ada", "ada"}, {"/" + name[half:], "ada", "ada"}, {"/^" + name[half:] + "$", "ada", "ada"},
		{"/^(.*)$", `\1`, name}, {"/^(.*)$", `x\1y\1`, "x" + name + `y\1`}, {"/^(.*)$", `"x\1"`, "x" + name}, {"/^(.*)$", `\1`, "bob"},
		{"/(" + name[:2] + "?)", `\1`, name[:2]}, {"/(" + name[:2] + "?)", `\1`, name[:1]},
		{"/^(" + name[:2] + "|x|[0-9]+)(.*)$", `\1`, name[:2]}, {"/^(" + name[:2] + "?)(.*)$", `\1`, name[:2]},
		{"/" + name[:1] + "(z)*", `x\1`, "x"}, {`/^([[:alpha:]]+)$`, `\1`, name}, {"/^" + strings.ToUpper(name) + "$", "ada", "ada"},
	}
	var rules []string
	ident := ""
	for i, c := range cases {
		rules = append(rules, fmt.Sprintf("local d%d all peer map=m%[1]d", i))
		ident += fmt.Sprintf("m%d %s %s\n", i, c.system, c.user)
	}
	db := pgtest.Start(t, pgtest.WithHBA(rules...))
	if err := os.WriteFile(filepath.Join(db.SocketDir(), "pg_ident.conf"), []byte(ident), 0o600); err != nil {
		t.Fatal(err)
	}
	db.Restart(t)
	maps, err := hba.ParseMaps("pg_ident.conf", ident)
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range cases {
		want := ask(t, db, c.system+" "+c.user, &hba.Request{Local: true, Database: fmt.Sprint("d", i), User: c.as}) == "trust"
		if got := maps.Allow(fmt.Sprint("m", i), name, c.as); got != want {
			t.Errorf("m%d %s %s: %s as %s: PostgreSQL says %v, we say %v", i, c.system, c.user, name, c.as, want, got)
		}
	}
}
