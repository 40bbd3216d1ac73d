package pgproxy_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/headpond/headpond/internal/certs"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/freeport"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
	"github.com/headpond/headpond/upstream"
)

// users has one secret of each form; the password is always "secret".
func users(t *testing.T) pgproxy.Users {
	t.Helper()
	v, err := pgwire.NewScramVerifier("secret", nil, pgwire.ScramIterations)
	if err != nil {
		t.Fatal(err)
	}
	u, err := pgproxy.ParseUsers(strings.NewReader("; comment\n\"plain\" \"secret\"\n\"scram\" \"" + v.String() + "\"\n"))
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func TestPasswords(t *testing.T) {
	db := pgtest.Shared(t)
	for _, auth := range []pgproxy.Auth{pgproxy.AuthSCRAM, pgproxy.AuthMD5} {
		g := start(t, db, func(c *pgproxy.Config, _ *pgproxy.PostgresConfig) {
			c.Auth, c.Users = auth, users(t)
			if auth == pgproxy.AuthMD5 {
				c.Users["hashed"] = pgwire.MD5Secret("hashed", "secret")
			}
		})
		try := func(user, password string) error {
			conn, err := pgx.Connect(t.Context(), g.dsn("user="+user+" password="+password))
			if err == nil {
				err = conn.Close(t.Context())
			}
			return err
		}
		for _, user := range []string{"plain", "scram", "hashed", "nobody"} {
			exists := user != "nobody" && (user != "hashed" || auth == pgproxy.AuthMD5)
			if err := try(user, "secret"); (err == nil) != exists {
				t.Errorf("%s: user %s with the right password: %v", auth, user, err)
			}
			err := try(user, "wrong")
			if sqlstate(err) != "28P01" || !has(err.Error(), `password authentication failed for user "`+user+`"`) {
				t.Errorf("%s: user %s with a wrong password: %v", auth, user, err)
			}
		}
		conntest.Eventually(t, "the failures are counted", func() bool { return g.Stats().Errors[listener.ReasonAuthFailed] >= 4 })
		if has(g.log.String(), "secret") {
			t.Error("the log shows a password")
		}
	}
}

func TestUnknownDatabase(t *testing.T) {
	g := start(t, pgtest.Shared(t), func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		b, err := pgproxy.NewPostgres(*pc)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(b.Close)
		c.Databases = map[string]pgproxy.Backend{"known": b}
	})
	_, err := pgx.Connect(t.Context(), g.dsn("dbname=unknown"))
	if sqlstate(err) != "3D000" {
		t.Fatalf("unknown database: %v", err)
	}
	conntest.Eventually(t, "it is counted, and in the log", func() bool {
		return g.Stats().Errors[listener.ReasonUnknownDatabase] == 1 && has(g.log.String(), "sqlstate=3D000")
	})
}

func TestExhausted(t *testing.T) {
	g := start(t, pgtest.Shared(t), func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Limits.MaxSize = 1 })
	holder, other := g.connect(t, ""), g.connect(t, "")
	do(t, holder, "begin")
	g.setAcquireTimeout(t, 200*time.Millisecond)
	for range 2 { // by the extended protocol and by the simple one
		_, err := other.Exec(t.Context(), "select $1::int", 1)
		if sqlstate(err) != "53300" || !has(err.Error(), `upstream "pg": no server connection became free in`) || !has(err.Error(), "in use: 1 of max_size 1") {
			t.Fatalf("exhausted pool: %v", err)
		}
		if _, err := other.Exec(t.Context(), "select 1", pgx.QueryExecModeSimpleProtocol); sqlstate(err) != "53300" {
			t.Fatalf("exhausted pool: %v", err)
		}
	}
	g.setAcquireTimeout(t, conntest.Patience)
	do(t, holder, "commit")
	if n := one[int](t, other, "select 3"); n != 3 {
		t.Fatal("the client cannot go on")
	}
	conntest.Eventually(t, "four are counted", func() bool { return g.Stats().Errors[listener.ReasonPoolExhausted] == 4 })
}

// TestFloodOfFailures: the log names a cause, and not each of thousands of statements that fail for it. With an access log each has its line.
func TestFloodOfFailures(t *testing.T) {
	for _, access := range []bool{false, true} {
		g := start(t, pgtest.Shared(t), func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) {
			c.Listener.AccessLog = access
			pc.Limits.MaxSize, pc.Limits.MaxWaiters = 1, -1
		})
		holder, other := g.connect(t, ""), g.connect(t, "")
		do(t, holder, "begin")
		fail := func() {
			if _, err := other.Exec(t.Context(), "select 1", pgx.QueryExecModeSimpleProtocol); sqlstate(err) != "53300" {
				t.Fatalf("exhausted pool: %v", err)
			}
		}
		if !access {
			conntest.Eventually(t, "a line says how many were omitted", func() bool {
				for range 30 {
					fail()
				}
				return g.log.Line("no server connection", "client=", "application_name=", "upstream=pg", "sqlstate=53300", "unlogged_before=") != ""
			})
			continue
		}
		for range 30 {
			fail()
		}
		conntest.Eventually(t, "each has a line", func() bool { return strings.Count(g.log.String(), "no server connection") == 30 })
	}
}

func TestTooManyClients(t *testing.T) {
	server, _ := certs.New().Configs()
	g := start(t, pgtest.Shared(t), func(c *pgproxy.Config, _ *pgproxy.PostgresConfig) {
		c.TLS = server
		c.Listener.MaxConns, c.Listener.MaxQueue = 1, -1
	})
	g.connect(t, "")
	for _, sslmode := range []string{"disable", "prefer", "require", "require sslnegotiation=direct"} {
		conntest.Eventually(t, "a second client is told why it is refused", func() bool { // the gateway takes a second at most to say so
			_, err := pgx.Connect(t.Context(), g.dsn("sslmode="+sslmode))
			if err == nil {
				t.Fatal("there is a second client")
			}
			return sqlstate(err) == "53300"
		})
	}
}

func TestBackendDown(t *testing.T) {
	port, err := freeport.Get()
	if err != nil {
		t.Fatal(err)
	}
	g := start(t, pgtest.Shared(t), func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		pc.Endpoints = upstream.Endpoints("127.0.0.1:" + itoa(port))
	})
	endpoint := "127.0.0.1:" + itoa(port)
	_, err = pgx.Connect(t.Context(), g.dsn(""))
	if sqlstate(err) != "08006" || !has(err.Error(), `upstream "pg": no server connection: connection refused`) || has(err.Error(), endpoint) {
		t.Fatalf("backend down: %v", err)
	}
	conntest.Eventually(t, "it is counted, and the log says where", func() bool {
		return g.Stats().Errors[listener.ReasonUpstreamUnavailable] == 1 && has(g.log.String(), endpoint)
	})
}

// TestGarbage sends packets that are no PostgreSQL startup, and checks that others are served.
func TestGarbage(t *testing.T) {
	g := start(t, pgtest.Shared(t), nil)
	for name, c := range map[string]struct {
		send  string
		reply bool
	}{
		"http":                {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", true},
		"oversized":           {"\x00\x00\x40\x00\x00\x03\x00\x00", true},
		"too short":           {"\x00\x00\x00\x04", true},
		"truncated":           {"\x00\x00\x00\x20\x00\x03\x00\x00user", true},
		"unterminated":        {"\x00\x00\x00\x0d\x00\x03\x00\x00user\x00", true},
		"version 2":           {"\x00\x00\x00\x08\x00\x02\x00\x00", true},
		"no user":             {"\x00\x00\x00\x09\x00\x03\x00\x00\x00", true},
		"nothing":             {"", false},
		"cancel for nobody":   {"\x00\x00\x00\x10\x04\xd2\x16\x2e\x00\x00\x00\x01\x00\x00\x00\x02", false},
		"ssl, ssl, ssl":       {strings.Repeat("\x00\x00\x00\x08\x04\xd2\x16\x2f", 4), true},
		"unknown message":     {string((&pgwire.StartupMessage{Params: []pgwire.Param{{Name: "user", Value: "a"}}}).Append(nil)) + "?\x00\x00\x00\x04", true},
		"replication":         {string((&pgwire.StartupMessage{Params: []pgwire.Param{{Name: "user", Value: "a"}, {Name: "replication", Value: "true"}}}).Append(nil)), true},
		"random bytes inside": {string((&pgwire.StartupMessage{Params: []pgwire.Param{{Name: "user", Value: "a"}}}).Append(nil)) + "Q\x00\x00\x00\x00xxx", true},
	} {
		conn, err := net.Dial("tcp", g.addr)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = conn.Write([]byte(c.send))
		_ = conn.(*net.TCPConn).CloseWrite()
		got, err := io.ReadAll(conn)
		_ = conn.Close()
		if c.send == "" && errors.Is(err, syscall.ECONNRESET) { // it had left before it was accepted
			err = nil
		}
		if err != nil || bytes.Contains(got, []byte("FATAL")) != c.reply {
			t.Errorf("%s: answer %q, %v", name, got, err)
		}
	}
	if n := one[int](t, g.connect(t, ""), "select 1"); n != 1 {
		t.Error(n)
	}
	conntest.Eventually(t, "they are counted", func() bool { return g.Stats().Errors[listener.ReasonProtocol] >= 5 })
}

func TestStartupParameters(t *testing.T) {
	g := start(t, pgtest.Shared(t), func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Limits.MaxSize = 1 })
	a := g.connect(t, "application_name=first timezone=Asia/Tokyo options='-c statement_timeout=1234ms --search_path=pg_catalog,public'")
	b := g.connect(t, "application_name=second extra_float_digits=0")
	show := func(c *pgx.Conn, name, want string) {
		t.Helper()
		if got := one[string](t, c, "select current_setting($1)", name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	for range 3 {
		show(a, "application_name", "first")
		show(a, "TimeZone", "Asia/Tokyo")
		show(a, "statement_timeout", "1234ms")
		show(a, "search_path", "pg_catalog,public")
		show(b, "application_name", "second")
		show(b, "statement_timeout", "0")
		show(b, "extra_float_digits", "0")
		do(t, b, "set work_mem = '11MB'") // of no interest to a
		show(a, "work_mem", "4MB")
		do(t, b, "set datestyle = 'German'") // reported by the server: follows the client
		show(b, "DateStyle", "German, DMY")
		show(a, "DateStyle", "ISO, MDY")
	}
	for params, code := range map[string]string{
		"no_such_parameter=1": "42704", "statement_timeout=never": "22023", "options='-x'": "42601", "options='-c user=postgres'": "42704", "options='--Database=template1'": "42704",
		"options='-c replication=database'": "42704", "options='-c options=-x'": "42704", "options='-c x;y=1'": "22023",
	} {
		if _, err := pgx.Connect(t.Context(), g.dsn(params)); sqlstate(err) != code {
			t.Errorf("%s: %v, want %s", params, err, code)
		}
	}
}

func TestTLS(t *testing.T) {
	db := pgtest.Start(t, pgtest.WithTLS(), pgtest.WithAuth(pgtest.SCRAM))
	cert, err := tls.LoadX509KeyPair(db.CAFile(), filepath.Join(filepath.Dir(db.CAFile()), "server.key"))
	if err != nil {
		t.Fatal(err)
	}
	g := start(t, db, func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		c.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
		pc.TLS = &tls.Config{InsecureSkipVerify: true} //nolint:gosec // a throw-away certificate
	})
	conn := g.connect(t, "sslmode=require")
	if !one[bool](t, conn, "select ssl from pg_stat_ssl where pid=pg_backend_pid()") {
		t.Error("no TLS to the server")
	}
	for range 3 {
		if n := one[int](t, conn, "select 4"); n != 4 {
			t.Fatal(n)
		}
	}
	out, err := g.run(t, db, "psql", "-X", "-c", `\conninfo`, "sslmode=require")
	if err != nil || !has(out, "SSL connection") {
		t.Fatalf("psql: %v %s", err, out)
	}
	if _, err := os.Stat(db.CAFile()); err != nil {
		t.Fatal(err)
	}
}

// TestDirectTLS begins with TLS, for the right protocol, for another, and for none.
func TestDirectTLS(t *testing.T) {
	server, client := certs.New().Configs()
	g := start(t, pgtest.Shared(t), func(c *pgproxy.Config, _ *pgproxy.PostgresConfig) { c.TLS = server })
	for _, c := range []struct {
		protocols []string
		ok        bool
	}{{[]string{"postgresql"}, true}, {[]string{"h2", "http/1.1"}, false}, {nil, false}} {
		secure := client.Clone()
		secure.NextProtos = c.protocols
		conn, err := tls.Dial("tcp", g.addr, secure)
		if err == nil {
			w := newWire(t, conn)
			_, _ = w.Write(bytesOf(&pgwire.StartupMessage{Params: []pgwire.Param{{Name: "user", Value: "app"}}}))
			_, _, err = w.try()
		}
		if (err == nil) != c.ok {
			t.Errorf("protocols %q: %v", c.protocols, err)
		}
	}
	out, err := g.run(t, pgtest.Shared(t), "psql", "-X", "-c", `\conninfo`, "sslmode=require") // SSLRequest
	if err != nil || !has(out, "SSL connection") {
		t.Errorf("psql: %v %s", err, out)
	}
}

// TestRequireTLS refuses clients without TLS.
func TestRequireTLS(t *testing.T) {
	server, _ := certs.New().Configs()
	g := start(t, pgtest.Shared(t), func(c *pgproxy.Config, _ *pgproxy.PostgresConfig) {
		c.TLS, c.RequireTLS = server, true
	})
	if _, err := pgx.Connect(t.Context(), g.dsn("sslmode=disable")); sqlstate(err) != "28000" || !has(err.Error(), "TLS is required") {
		t.Errorf("without TLS: %v", err)
	}
	if n := one[int](t, g.connect(t, "sslmode=require"), "select 1"); n != 1 {
		t.Errorf("with TLS: %d", n)
	}
	cfg := pgproxy.Config{RequireTLS: true, Auth: pgproxy.AuthTrust}
	if err := cfg.Verify(); !errors.Is(err, pgproxy.ErrConfig) || !has(err.Error(), "RequireTLS needs TLS") {
		t.Errorf("without a certificate: %v", err)
	}
}

func TestServerAuthentication(t *testing.T) {
	for auth, hba := range map[pgtest.Auth]string{pgtest.SCRAM: "", pgtest.MD5: "", "password": "host all all 127.0.0.1/32 password"} {
		options := []pgtest.Option{pgtest.WithHBA(hba)}
		if hba == "" {
			options = []pgtest.Option{pgtest.WithAuth(auth)}
		} else {
			options = append(options, pgtest.WithAuth(pgtest.SCRAM))
		}
		db := pgtest.Start(t, options...)
		g := start(t, db, nil)
		if n := one[int](t, g.connect(t, ""), "select 1"); n != 1 {
			t.Error(auth)
		}
		bad := start(t, db, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Password = "not it" })
		_, err := pgx.Connect(t.Context(), bad.dsn(""))
		if sqlstate(err) != "28P01" || !has(err.Error(), "password authentication failed for user") || has(err.Error(), "not it") || !has(hint(err), "user and password of this upstream") {
			t.Errorf("%s: wrong password of the gateway: %v", auth, err)
		}
		unset := start(t, db, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Password = "" })
		_, err = pgx.Connect(t.Context(), unset.dsn(""))
		if sqlstate(err) != "28P01" || !has(err.Error(), "the server asks for a password, and the upstream has none") || !has(hint(err), "environment variable") {
			t.Errorf("%s: no password of the gateway: %v, hint %q", auth, err, hint(err))
		}
	}
}

// hint is the hint in an error.
func hint(err error) string {
	e, _ := errors.AsType[*pgconn.PgError](err)
	if e == nil {
		return ""
	}
	return e.Hint
}

// TestNoFilesLeft: the error says whose shortage it is.
func TestNoFilesLeft(t *testing.T) {
	g := start(t, pgtest.Shared(t), func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		pc.Endpoints = upstream.Endpoints("10.1.2.3:5432")
		pc.Dial = func(context.Context, string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Err: os.NewSyscallError("socket", syscall.EMFILE)}
		}
	})
	_, err := pgx.Connect(t.Context(), g.dsn(""))
	if sqlstate(err) != "08006" || !has(err.Error(), "the gateway has no file descriptors left") || has(err.Error(), "10.1.2.3") {
		t.Error(err)
	}
}
