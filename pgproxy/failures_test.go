package pgproxy_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
)

// TestFailedLogins guesses passwords by each method.
func TestFailedLogins(t *testing.T) {
	db := pgtest.Shared(t)
	for _, method := range []string{"scram-sha-256", "md5", "password"} {
		t.Run(method, func(t *testing.T) {
			g := ruled(t, db, func(c *pgproxy.Config, _ *pgproxy.PostgresConfig) {
				c.Users = pgproxy.Users{"ada": "of ada", "bob": "of bob"}
				c.FailedLogins = pgproxy.FailedLogins{Attempts: 3, Per: time.Hour}
			}, "host all all all "+method)
			for range 20 {
				if got := g.logsIn(t, "ada", "of ada"); got != "" {
					t.Fatalf("the right password, with no failure before: %s", got)
				}
			}
			var codes []string
			for range 5 {
				codes = append(codes, g.logsIn(t, "ada", "guess"))
			}
			if got := strings.Join(codes, " "); got != "28P01 28P01 28P01 53300 53300" {
				t.Errorf("guesses are answered by %s", got)
			}
			if got := g.logsIn(t, "ada", "of ada"); got != "53300" {
				t.Errorf("the right password after too many guesses: %s; the next guess would be as good", got)
			}
			if got := g.logsIn(t, "bob", "of bob"); got != "" {
				t.Errorf("another user of the address: %s", got)
			}
			for i := range 27 { // ten times as many of all users
				if got := g.logsIn(t, fmt.Sprint("nobody", i), "guess"); got != "28P01" {
					t.Fatalf("guess %d: %s", i, got)
				}
			}
			if got := g.logsIn(t, "another", "guess"); got != "53300" {
				t.Errorf("a guess for one more name: %s", got)
			}
			if n := g.Stats().Errors["rate_limited"]; n < 3 {
				t.Errorf("counted as rate_limited: %d", n)
			}
		})
	}
}

// TestFailedLoginsAtOnce guesses on many connections at the same time.
func TestFailedLoginsAtOnce(t *testing.T) {
	const allowed, guesses = 5, 60
	g := ruled(t, pgtest.Shared(t), func(c *pgproxy.Config, _ *pgproxy.PostgresConfig) {
		c.Users = pgproxy.Users{"ada": "of ada"}
		c.FailedLogins = pgproxy.FailedLogins{Attempts: allowed, Per: time.Hour}
	}, "host all all all password")
	var mu sync.Mutex
	var all sync.WaitGroup
	checked := 0
	for range guesses {
		all.Go(func() {
			cfg, err := pgx.ParseConfig(g.dsn("user=ada password=guess"))
			if err != nil {
				t.Error(err)
				return
			}
			_, err = pgx.ConnectConfig(t.Context(), cfg)
			if said, ok := errors.AsType[*pgconn.PgError](err); !ok || said.Code != "28P01" && said.Code != "53300" {
				t.Error(err)
			} else if said.Code == "28P01" {
				mu.Lock()
				defer mu.Unlock()
				checked++
			}
		})
	}
	all.Wait()
	if checked < allowed || checked > guesses/2 { // some more run on each processor
		t.Errorf("%d of %d passwords were checked, want about %d", checked, guesses, allowed)
	}
}

// from logs in from an address as ada, and returns the SQLSTATE of the error, "" for none.
func (g *gateway) from(t *testing.T, addr, password string) string {
	t.Helper()
	return g.fromAs(t, addr, "ada", password)
}

// fromAs is from for any user.
func (g *gateway) fromAs(t *testing.T, addr, user, password string) string {
	t.Helper()
	cfg, err := pgx.ParseConfig(g.dsn("user=" + user + " password='" + password + "'"))
	if err != nil {
		t.Fatal(err)
	}
	cfg.DialFunc = func(ctx context.Context, network, to string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, to)
		if err == nil {
			_, err = fmt.Fprintf(conn, "PROXY TCP4 %s 192.0.2.9 1 2\r\n", addr)
		}
		return conn, err
	}
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if err == nil {
		err = conn.Close(context.Background())
	} else if sqlstate(err) == "" {
		t.Fatal(err)
	}
	return sqlstate(err)
}

// challenge begins a login by SCRAM, and returns the server's first message.
func (g *gateway) challenge(t *testing.T, user string) string {
	t.Helper()
	conn, err := net.Dial("tcp", g.addr)
	if err != nil {
		t.Fatal(err)
	}
	w := newWire(t, conn)
	w.send(&pgwire.StartupMessage{Version: pgwire.Version30, Params: []pgwire.Param{{Name: "user", Value: user}}})
	w.until(pgwire.TypeAuthentication)
	w.send(&pgwire.SASLInitialResponse{Mechanism: pgwire.MechanismSCRAM, Data: []byte("n,,n=,r=abc")})
	_, challenge := w.until(pgwire.TypeAuthentication)
	return challenge
}

// TestFailedLoginsWait has somebody guess without a pause, on some connections at a time. Logins with the right password from the
// same address wait for their turn, and succeed.
func TestFailedLoginsWait(t *testing.T) {
	for _, method := range []string{"scram-sha-256", "md5", "password"} {
		t.Run(method, func(t *testing.T) {
			g := ruled(t, pgtest.Shared(t), func(c *pgproxy.Config, _ *pgproxy.PostgresConfig) {
				c.Users = pgproxy.Users{"ada": "of ada"}
				c.FailedLogins = pgproxy.FailedLogins{Attempts: 2, Per: 200 * time.Millisecond}
			}, "host all all all "+method)
			var guesses atomic.Int64
			var guessing sync.WaitGroup
			stop := make(chan struct{})
			for range 4 {
				guessing.Go(func() {
					for {
						select {
						case <-stop:
							return
						default:
						}
						if got := g.logsIn(t, "ada", "guess"); got != "28P01" {
							t.Errorf("a guess: %s", got)
						}
						guesses.Add(1)
					}
				})
			}
			conntest.Eventually(t, "the limit is reached", func() bool { return guesses.Load() > 4 })
			for range 3 {
				if got := g.logsIn(t, "ada", "of ada"); got != "" {
					t.Errorf("the right password: %s", got)
				}
			}
			close(stop)
			guessing.Wait()
		})
	}
}

// TestFailedLoginsInTime has a login wait for its turn, and for no longer than a login may take.
func TestFailedLoginsInTime(t *testing.T) {
	g := ruled(t, pgtest.Shared(t), func(c *pgproxy.Config, _ *pgproxy.PostgresConfig) {
		c.Users, c.LoginTimeout = pgproxy.Users{"ada": "of ada"}, 2*time.Second
		c.FailedLogins = pgproxy.FailedLogins{Attempts: 1, Per: 5 * time.Second}
	}, "host all all all password")
	if got := g.logsIn(t, "ada", "guess"); got != "28P01" {
		t.Fatalf("a guess: %s", got)
	}
	if got := g.logsIn(t, "ada", "of ada"); got != "53300" {
		t.Errorf("a login whose turn comes after its time: %q, want 53300", got)
	}
}

// TestFailedLoginsEnd waits for the next attempt. Nobody else is affected.
func TestFailedLoginsEnd(t *testing.T) {
	g := ruled(t, pgtest.Shared(t), func(c *pgproxy.Config, _ *pgproxy.PostgresConfig) {
		c.Users = pgproxy.Users{"ada": "of ada"}
		c.FailedLogins = pgproxy.FailedLogins{Attempts: 1, Per: 50 * time.Millisecond}
		c.Listener.AcceptProxy, c.Listener.TrustedProxies = true, []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	}, "host all all all password")
	if got := g.from(t, "10.0.0.1", "guess"); got != "28P01" {
		t.Fatalf("a guess: %s", got)
	}
	if got := g.from(t, "10.0.0.2", "of ada"); got != "" {
		t.Errorf("another address: %s", got)
	}
	for deadline := time.Now().Add(30 * time.Second); ; {
		got := g.from(t, "10.0.0.1", "of ada")
		if got == "" {
			break
		}
		if got != "53300" || time.Now().After(deadline) {
			t.Fatalf("the right password later: %s", got)
		}
	}
}

// TestIterationsOfUnknownUsers asks for the challenge of SCRAM, as somebody would who looks for names.
func TestIterationsOfUnknownUsers(t *testing.T) {
	secret := func(iterations int) string {
		v, err := pgwire.NewScramVerifier("secret", nil, iterations)
		if err != nil {
			t.Fatal(err)
		}
		return v.String()
	}
	for name, c := range map[string]struct {
		users pgproxy.Users
		want  string
	}{
		"passwords":      {pgproxy.Users{"a": "x", "b": "y", "c": secret(9000)}, "i=4096"},
		"more":           {pgproxy.Users{"a": secret(9000), "b": secret(9000), "c": "x"}, "i=9000"},
		"none by SCRAM":  {pgproxy.Users{"a": pgwire.MD5Secret("a", "x")}, "i=4096"},
		"without others": {pgproxy.Users{"a": secret(10000)}, "i=10000"},
	} {
		g := ruled(t, pgtest.Shared(t), func(c0 *pgproxy.Config, _ *pgproxy.PostgresConfig) { c0.Users = c.users }, "host all all all scram-sha-256")
		if got := g.challenge(t, "nobody"); !strings.HasSuffix(got, c.want) {
			t.Errorf("%s: an unknown user's challenge ends with %q, want %s", name, got, c.want)
		}
	}
}

// TestCancelFlood sends cancel requests for nobody, which need no login, until the log leaves some out.
func TestCancelFlood(t *testing.T) {
	g := start(t, pgtest.Shared(t), transaction)
	conntest.Eventually(t, "the log leaves some out", func() bool {
		for range 40 {
			conn, err := net.Dial("tcp", g.addr)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := conn.Write((&pgwire.CancelRequest{ProcessID: 1, Key: []byte("nope")}).Append(nil)); err != nil {
				t.Fatal(err)
			}
			_, _ = io.ReadAll(conn) // until the gateway closes it
			_ = conn.Close()
		}
		return g.log.Line("cancel request for no client", "unlogged_before=") != ""
	})
}
