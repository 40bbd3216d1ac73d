package pgproxy_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/headpond/headpond/internal/certs"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/enginetest"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgproxy/hba"
	"github.com/headpond/headpond/pgwire"
)

// rulesOf parses lines of a pg_hba.conf.
func rulesOf(t testing.TB, lines ...string) hba.Rules {
	t.Helper()
	rules, err := hba.Parse("pg_hba.conf", strings.Join(lines, "\n"), nil)
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

// ruled runs a proxy with rules; the password of all users is "secret".
func ruled(t *testing.T, db *pgtest.Cluster, change func(*pgproxy.Config, *pgproxy.PostgresConfig), lines ...string) *gateway {
	t.Helper()
	return start(t, db, func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		c.Users = users(t)
		c.Users["hashed"] = pgwire.MD5Secret("hashed", "secret")
		c.Rules = rulesOf(t, lines...)
		if change != nil {
			change(c, pc)
		}
	})
}

// socket has the proxy serve a Unix socket, too, and returns its directory, as libpq's host takes it. Its port is 5432.
func (g *gateway) socket(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	raw, err := net.Listen("unix", filepath.Join(dir, ".s.PGSQL.5432"))
	if err != nil {
		t.Fatal(err)
	}
	l, err := enginetest.Listener(raw)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = g.Serve(l)
	}()
	t.Cleanup(func() { _ = l.Close(); <-served })
	return dir
}

// try logs in with a connection string.
func try(t *testing.T, dsn string) error {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err == nil {
		err = conn.Close(context.Background())
	}
	return err
}

// wantIn checks a login: want is the code and the message of the error, "" for none.
func wantIn(t *testing.T, dsn, want string) {
	t.Helper()
	err := try(t, dsn)
	if code, message, _ := strings.Cut(want, " "); want == "" && err != nil || want != "" && (sqlstate(err) != code || !has(err.Error(), message)) {
		t.Errorf("%s: %v, want %q", dsn, err, want)
	}
}

func TestRules(t *testing.T) {
	server, _ := certs.New().Configs()
	g := ruled(t, pgtest.Shared(t), func(c *pgproxy.Config, _ *pgproxy.PostgresConfig) { c.TLS = server },
		"host all rejected all reject",
		"host shop trusted 127.0.0.1/32 trust",
		"host all scram,hashed samehost scram-sha-256",
		"hostssl all plain all scram-sha-256",
		"hostnossl all plain all password",
		"local all plain md5",
		"host replication plain all reject",
	)
	const refused, wrong = "28000 no pg_hba.conf entry for ", "28P01 password authentication failed for user "
	tcp, encrypted := strings.Replace(g.dsn(""), "dbname=app", "dbname=shop", 1), strings.Replace(g.dsn(""), "sslmode=disable", "sslmode=require", 1)
	for more, want := range map[string]string{
		tcp + "user=trusted": "", tcp + "user=trusted dbname=till": refused + `host "127.0.0.1", user "trusted", database "till", no encryption`,
		encrypted + "user=nobody":          refused + `host "127.0.0.1", user "nobody", database "app", SSL encryption`,
		tcp + "user=rejected":              `28000 pg_hba.conf rejects connection for host "127.0.0.1", user "rejected", database "shop", no encryption`,
		tcp + "user=scram password=secret": "", tcp + "user=scram password=other": wrong + `"scram"`, tcp + "user=hashed password=secret": wrong + `"hashed"`,
		tcp + "user=plain password=secret": "", tcp + "user=plain password=other": wrong + `"plain"`, encrypted + "user=plain password=secret": "",
		"host=" + g.socket(t) + " port=5432 user=plain password=secret dbname=shop": "",
		"host=" + g.socket(t) + " port=5432 user=scram password=secret dbname=shop": refused + `host "[local]", user "scram", database "shop", no encryption`,
	} {
		wantIn(t, more, want)
	}
	log := g.log.String()
	const unfit = "the user has an md5 secret, which auth scram-sha-256 cannot verify: store the password or a SCRAM-SHA-256 secret"
	if !has(log, "pg_hba.conf:1") || !has(log, unfit) || has(strings.ReplaceAll(log, unfit, ""), "secret") {
		t.Error("the log does not name the rule, or the reason, or it shows a password")
	}
	w := dialTo(t, g.addr)
	w.send(&pgwire.StartupMessage{Version: pgwire.Version30, Params: []pgwire.Param{{Name: "user", Value: "plain"}, {Name: "replication", Value: "true"}}})
	if _, said := w.until(pgwire.TypeErrorResponse); !has(said, `pg_hba.conf rejects replication connection for host "127.0.0.1", user "plain", no encryption`) {
		t.Errorf("a replication connection: %q", said)
	}
}

// dialTo opens a connection to an address.
func dialTo(t *testing.T, addr string) *wire {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	return newWire(t, conn)
}

// Every form of a secret can be compared with a password in clear text.
func TestCleartextPasswords(t *testing.T) {
	g := ruled(t, pgtest.Shared(t), nil, "host all all all password")
	for _, user := range []string{"plain", "scram", "hashed"} {
		wantIn(t, g.dsn("password=secret user="+user), "")
		for _, password := range []string{"other", "''", "md5"} {
			wantIn(t, g.dsn("password='"+strings.Trim(password, "'")+"' user="+user), "28P01 password authentication failed for user")
		}
	}
	wantIn(t, g.dsn("password=secret user=nobody"), `28P01 password authentication failed for user "nobody"`)
}

// TestUnknownUsersLookKnown compares what a client sees of a user that does not exist with what it sees of one that does.
func TestUnknownUsersLookKnown(t *testing.T) {
	for _, method := range []string{"scram-sha-256", "md5", "password"} {
		g := ruled(t, pgtest.Shared(t), nil, "host all all all "+method)
		var seen []string
		for _, user := range []string{"plain", "unknow"} { // of the same length
			w := dialTo(t, g.addr)
			w.send(&pgwire.StartupMessage{Version: pgwire.Version30, Params: []pgwire.Param{{Name: "user", Value: user}}})
			_, said := w.read()
			if method == "scram-sha-256" {
				w.send(&pgwire.SASLInitialResponse{Mechanism: pgwire.MechanismSCRAM, Data: []byte("n,,n=,r=abc")})
				_, challenge := w.read()
				nonce, rest, _ := strings.Cut(challenge[len("\x00\x00\x00\x0br="):], ",")
				said += fmt.Sprint(len(nonce), len(rest), rest[strings.LastIndexByte(rest, ','):])
				w.send(&pgwire.SASLResponse{Data: []byte("c=biws,r=" + nonce + ",p=" + strings.Repeat("A", 43) + "=")})
			} else {
				said = said[:4] // the salt is random
				w.send(&pgwire.PasswordMessage{Password: "wrong"})
			}
			_, end := w.until(pgwire.TypeErrorResponse)
			seen = append(seen, strings.ReplaceAll(said+end, user, "USER"))
		}
		if seen[0] != seen[1] {
			t.Errorf("%s: a user sees %q, an unknown one %q", method, seen[0], seen[1])
		}
	}
}

// announced logs in as a client whose address a PROXY header says.
func announced(t *testing.T, network, addr, header string) (said string) {
	t.Helper()
	conn, err := net.Dial(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, header); err != nil {
		t.Fatal(err)
	}
	w := newWire(t, conn)
	w.send(&pgwire.StartupMessage{Version: pgwire.Version30, Params: []pgwire.Param{{Name: "user", Value: "plain"}, {Name: "database", Value: "app"}}})
	typ, body := w.read()
	return string(typ) + body
}

const (
	letIn   = "R\x00\x00\x00\x00"
	askedPW = "R\x00\x00\x00\x03"
)

// TestRulesSeeAnnouncedAddresses has clients that send the same startup packet from places with different rules, one after the
// other: what one of them is allowed must not be remembered for the next.
func TestRulesSeeAnnouncedAddresses(t *testing.T) {
	g := ruled(t, pgtest.Shared(t), func(c *pgproxy.Config, _ *pgproxy.PostgresConfig) {
		c.Listener.AcceptProxy, c.Listener.TrustedProxies = true, []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	}, "local all all trust", "host all all 127.0.0.1/32 trust", "host all all 192.0.2.1/32 trust", "host all all 192.0.2.2/32 password", "host all all 2001:db8::/32 trust")
	socket := filepath.Join(g.socket(t), ".s.PGSQL.5432")
	for range 2 {
		for _, c := range []struct{ header, want string }{
			{"PROXY TCP4 192.0.2.1 192.0.2.9 1 2\r\n", letIn},
			{"PROXY TCP4 192.0.2.2 192.0.2.9 1 2\r\n", askedPW},
			{"PROXY TCP4 192.0.2.3 192.0.2.9 1 2\r\n", `no pg_hba.conf entry for host "192.0.2.3", user "plain", database "app", no encryption`},
			{"PROXY TCP6 2001:db8::1 2001:db8::9 1 2\r\n", letIn},
			{"PROXY TCP6 ::ffff:192.0.2.1 2001:db8::9 1 2\r\n", letIn},
			{"PROXY TCP6 ::2 2001:db8::9 1 2\r\n", `no pg_hba.conf entry for host "::2"`},
		} {
			for network, addr := range map[string]string{"tcp": g.addr, "unix": socket} {
				if said := announced(t, network, addr, c.header); !has(said, c.want) {
					t.Errorf("%s, %q: %q, want %q", network, c.header, said, c.want)
				}
			}
		}
	}
	// The other end of the Unix socket is a proxy, and the client came to it by a Unix socket that nobody knows.
	announcedLocal := "\r\n\r\n\x00\r\nQUIT\n\x21\x31\x00\xd8" + strings.Repeat("/x"+strings.Repeat("\x00", 106), 2)
	if said := announced(t, "unix", socket, announcedLocal); !has(said, "no pg_hba.conf entry for") {
		t.Errorf("an announced client of another Unix socket: %q", said)
	}
	// A proxy that does not know its client, and one that speaks for itself.
	const unspecified, itself = "\r\n\r\n\x00\r\nQUIT\n\x21\x00\x00\x00", "\r\n\r\n\x00\r\nQUIT\n\x20\x00\x00\x00"
	for header, want := range map[string]string{"PROXY UNKNOWN\r\n": `no pg_hba.conf entry for host "unknown"`, unspecified: `no pg_hba.conf entry for host "unknown"`, itself: letIn} {
		for network, addr := range map[string]string{"tcp": g.addr, "unix": socket} {
			if said := announced(t, network, addr, header); !has(said, want) {
				t.Errorf("%s, %q: %q, want %q", network, header, said, want)
			}
		}
	}
}

func TestRulesAfterUpdate(t *testing.T) {
	g := ruled(t, pgtest.Shared(t), nil, "host all app all trust")
	conn := g.connect(t, "")
	cfg := pgproxy.Config{
		Listener: listener.Config{Name: "db", Logger: slog.New(slog.NewTextHandler(g.log, nil))}, Rules: rulesOf(t, "host all other all trust"),
		Databases: map[string]pgproxy.Backend{"*": g.backend},
	}
	if err := g.Update(cfg); err != nil {
		t.Fatal(err)
	}
	do(t, conn, "select 1")
	wantIn(t, g.dsn(""), `28000 no pg_hba.conf entry for host "127.0.0.1", user "app"`)
	wantIn(t, g.dsn("user=other"), "")
	for _, c := range []struct {
		change func(*pgproxy.Config)
		want   string
	}{
		{func(c *pgproxy.Config) { c.Rules = rulesOf(t, "\nlocal all all peer map=m") }, `pg_hba.conf:2: there is no map "m"`},
		{func(c *pgproxy.Config) { c.Rules = rulesOf(t, "local all all md5") }, "pg_hba.conf:1: method md5 needs users"},
		{func(c *pgproxy.Config) { c.Rules, c.TLS = rulesOf(t, "hostssl all all all cert"), new(tls.Config) }, "pg_hba.conf:1: it needs certificates of clients"},
		{func(c *pgproxy.Config) {
			c.Rules, c.TLS, c.ChannelBinding = rulesOf(t, "host all all all password"), new(tls.Config), pgproxy.BindingRequire
		}, "pg_hba.conf:1: method password has no channel binding"},
	} {
		bad := cfg
		c.change(&bad)
		if err := g.Update(bad); !errors.Is(err, pgproxy.ErrConfig) || !has(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
	wantIn(t, g.dsn("user=other"), "")
}

// TestPeer has libpq and pgx connect to Unix sockets.
func TestPeer(t *testing.T) {
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	maps, err := hba.ParseMaps("pg_ident.conf", "m "+me.Username+" mapped\nm nobody other")
	if err != nil {
		t.Fatal(err)
	}
	db := pgtest.Shared(t)
	g := ruled(t, db, func(c *pgproxy.Config, _ *pgproxy.PostgresConfig) { c.Maps = maps }, "local straight all peer", "local all all peer map=m", "host all all all trust")
	at := "host=" + g.socket(t) + " port=5432"
	for login, want := range map[string]string{
		" dbname=straight user=" + me.Username: "", " dbname=straight user=mapped": `28000 Peer authentication failed for user "mapped"`,
		" dbname=x user=mapped": "", " dbname=x user=other": `28000 Peer authentication failed for user "other"`, " dbname=x user=" + me.Username: "28000 Peer authentication failed",
	} {
		wantIn(t, at+login, want)
	}
	if !has(g.log.String(), `map \"m\" does not let \"`+me.Username+`\" be this user`) {
		t.Error("the log does not say who the client is")
	}
	if out, err := exec.CommandContext(t.Context(), db.Bin("psql"), "-X", "-c", "select 1", at+" dbname=x user=mapped").CombinedOutput(); err != nil {
		t.Errorf("psql: %v: %s", err, out)
	}
	// Somebody else's socket, whatever a PROXY header says.
	proxied := ruled(t, db, func(c *pgproxy.Config, _ *pgproxy.PostgresConfig) { c.Listener.AcceptProxy = true }, "local all all peer", "host all all all reject")
	if said := announced(t, "unix", filepath.Join(proxied.socket(t), ".s.PGSQL.5432"), "PROXY TCP4 192.0.2.1 192.0.2.9 1 2\r\n"); !has(said, "pg_hba.conf rejects") {
		t.Errorf("a client behind a proxy at a Unix socket: %q", said)
	}
	conntest.Eventually(t, "the refusals are counted", func() bool { return proxied.Stats().Errors[listener.ReasonAuthFailed] == 1 })
}
