package gateway_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/headpond/headpond/gateway"
	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/internal/certs"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/gatewaytest"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/upstream"
)

const everythingText = `
engine: {engine}
admin: 127.0.0.1:0
drain_timeout: 300ms
listeners:
  - {name: raw, protocol: tcp, listen: "{raw}", upstream: echo, access_log: {log}, max_conns: {most}}
  - {name: sealed, protocol: tcp, listen: "{sealed}", upstream: echo, tls: {cert: "{dir}/cert", key: "{dir}/key"}, access_log: {log}}
  - {name: web, protocol: http, listen: "{web}", upstream: web, access_log: {log}}
  - {name: secure, protocol: http, listen: "{secure}", upstream: web, tls: {cert: "{dir}/cert", key: "{dir}/key"}, max_conns: {most}}
  - {name: db, protocol: postgres, listen: "{db}", upstream: pg, postgres: {databases: {"*": pg}, auth: trust, show_statements: {log}}}
  - {name: lite, protocol: postgres, listen: "{lite}", upstream: lite, postgres: {databases: {"*": lite}, auth: trust}}
  - {name: dns, protocol: udp, listen: "{dns}", upstream: dns, access_log: {log}}
  - {name: peers, protocol: tunnel, listen: "{peers}", tunnel: {psk: a key of these two gateways, upstreams: [offered], max_streams: {most}}}
  - {name: through, protocol: tcp, listen: "{through}", upstream: through}
tunnels:
  self: {connect: "{peers}", as: self, psk: a key of these two gateways}
upstreams:
  echo: {endpoints: [{echoes}], health: {tcp: true, interval: 10ms}, on_removed: close, pool: {min_idle: 1, max_size: {most}}}
  web: {endpoints: [{webs}], pool: {max_size: {few}, acquire_timeout: 10s}}
  pg: {endpoints: ["{pg}"], postgres: {user: "{user}", dbname: postgres}, pool: {max_size: {few}, acquire_timeout: 10s}}
  lite: {endpoints: ["sqlite:{dir}/app.db"], pool: {acquire_timeout: 10s}}
  dns: {endpoints: ["{parrot}"]}
  offered: {endpoints: [{echoes}]}
  through: {endpoints: ["upstream:offered"], tunnel: self}
`

// errCrossed: a client got what is not its own.
var errCrossed = errors.New("this is another client's")

// outcomes count what has become of clients.
type outcomes struct {
	served atomic.Int64
	failed atomic.Pointer[error] // why the last one was not
}

// everything is a gateway of all protocols, its clients, and operators.
type everything struct {
	*gatewaytest.Gateway
	t     *testing.T
	pairs []string
	echo  [2]string
	web   [2]string
	tls   *tls.Config // of clients
	at    map[string]string

	over   chan struct{} // closed by end
	end    func()        // ends clients and operators
	work   sync.WaitGroup
	counts map[string]*outcomes // by the kind of clients
	killed atomic.Int64
}

// TestEverythingIsWatched has operators do all they can, again and again, while clients do all they can: nobody gets what is another's,
// also in the list of sessions, and in the end nothing is left and nothing is held. (The race detector, and what gatewaytest does, watch, too.)
func TestEverythingIsWatched(t *testing.T) {
	db := pgtest.Start(t)
	for _, engine := range engineKinds {
		t.Run(engine, func(t *testing.T) {
			e := newEverything(t, db, engine)
			e.clients()
			e.operators()
			length, _ := conntest.SoakLength(t, 0)
			<-time.After(length)
			conntest.Eventually(t, "clients of all kinds are served, and some are not", e.served)
			e.Stop() // while clients and operators go on
			if err := <-e.Result; err != nil && !errors.Is(err, gateway.ErrCutOff) {
				t.Error(err)
			}
			e.end()
			e.nothingIsLeft()
		})
	}
}

func newEverything(t *testing.T, db *pgtest.Cluster, engine string) *everything {
	t.Helper()
	ca, dir := certs.New(), t.TempDir()
	cert, key := certs.PEM(ca.Certificate)
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "cert"), cert, 0o600), os.WriteFile(filepath.Join(dir, "key"), key, 0o600)); err != nil {
		t.Fatal(err)
	}
	e := &everything{t: t, at: map[string]string{}, over: make(chan struct{}), counts: map[string]*outcomes{}}
	_, e.tls = ca.Configs()
	e.pairs = []string{"{engine}", engine, "{dir}", dir, "{pg}", db.Addr(), "{user}", db.Superuser(), "{parrot}", udpEcho(t, "")}
	for _, name := range []string{"raw", "sealed", "web", "secure", "db", "lite", "peers", "through"} {
		e.at[name] = conntest.FreeAddress(t)
	}
	e.at["dns"] = freePort(t)
	for name, address := range e.at {
		e.pairs = append(e.pairs, "{"+name+"}", address)
	}
	for i := range e.echo {
		e.echo[i] = echoServer(t)
		s := httptest.NewServer(http.HandlerFunc(serveEverything))
		t.Cleanup(s.Close)
		e.web[i] = s.Listener.Addr().String()
	}
	e.Gateway = run(t, e.config(0))
	e.end = sync.OnceFunc(func() {
		close(e.over)
		e.work.Wait()
		for kind, n := range e.counts {
			if err := n.failed.Load(); t.Failed() && err != nil {
				t.Logf("%s: %d were served, the last one that was not: %v", kind, n.served.Load(), *err)
			}
		}
	})
	t.Cleanup(e.end)
	return e
}

// config returns the configurations between which the gateway is reloaded.
func (e *everything) config(i int) *config.Config {
	echoes, webs := `"`+strings.Join(e.echo[:1+i%2], `", "`)+`"`, `"`+strings.Join(e.web[:1+i/2%2], `", "`)+`"`
	return parse(e.t, everythingText, append(e.pairs, "{echoes}", echoes, "{webs}", webs, "{log}", fmt.Sprint(i%2 == 0), "{most}", fmt.Sprint(20+i%3), "{few}", fmt.Sprint(2+i%2))...)
}

// serveEverything is the backend of web.
func serveEverything(w http.ResponseWriter, r *http.Request) {
	tag := strings.TrimPrefix(r.URL.Path, "/")
	if r.Header.Get("Upgrade") != "" {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err == nil {
			defer conn.Close()
			_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
			_, _ = io.Copy(conn, rw)
		}
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil || string(body) != tag || r.Host != tag+".test" || r.UserAgent() != tag {
		tag = fmt.Sprintf("%s, but host %q, agent %q, body %q, %v", tag, r.Host, r.UserAgent(), body, err)
	}
	if r.URL.RawQuery == "events" {
		w.Header().Set("Content-Type", "text/event-stream")
		for range 3 {
			_, _ = io.WriteString(w, tag)
			_ = http.NewResponseController(w).Flush()
			<-time.After(8 * time.Millisecond)
		}
		return
	}
	_, _ = io.WriteString(w, strings.Repeat(tag, 3))
}

// several has n clients of a kind, each with a tag of its own, do something again and again.
func (e *everything) several(kind string, n int, do func(tag string) error) {
	all := &outcomes{}
	e.counts[kind] = all
	for i := range n {
		e.again(time.Millisecond, func() {
			switch err := do(fmt.Sprintf("%s%d", kind, i)); {
			case err == nil:
				all.served.Add(1)
			case errors.Is(err, errCrossed):
				e.t.Errorf("%s: %v", kind, err)
			default:
				all.failed.Store(&err)
			}
		})
	}
}

// again does something until everything is over, with pauses.
func (e *everything) again(pause time.Duration, do func()) {
	e.work.Go(func() {
		for {
			do()
			select {
			case <-e.over:
				return
			case <-time.After(pause):
			}
		}
	})
}

func (e *everything) clients() {
	e.several("raw", 3, func(tag string) error { return e.overTCP("raw", tag) })
	e.several("through", 3, func(tag string) error { return e.overTCP("through", tag) })
	e.several("sealed", 3, func(tag string) error {
		c, err := tls.Dial("tcp", e.at["sealed"], e.tls)
		if err != nil {
			return err
		}
		return tagged(c, tag)
	})
	e.several("upgraded", 2, e.upgraded)
	e.several("dns", 2, e.datagram)
	plain, secure := &http.Transport{}, &http.Transport{TLSClientConfig: e.tls.Clone(), ForceAttemptHTTP2: true}
	e.t.Cleanup(plain.CloseIdleConnections)
	e.t.Cleanup(secure.CloseIdleConnections)
	e.several("web", 3, func(tag string) error { return request(plain, "http://"+e.at["web"], tag) })
	e.several("secure", 4, func(tag string) error { return request(secure, "https://"+e.at["secure"], tag) })
	e.several("db", 4, func(tag string) error { return e.transactions("db", tag) })
	e.several("lite", 2, func(tag string) error { return e.transactions("lite", tag) })
}

func (e *everything) overTCP(listener, tag string) error {
	c, err := net.Dial("tcp", e.at[listener])
	if err != nil {
		return err
	}
	return tagged(c, tag)
}

// tagged sends a tag, and wants it back, some times.
func tagged(c net.Conn, tag string) error {
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(conntest.Patience))
	for i := range 3 {
		text := fmt.Sprintf("%s %d", tag, i)
		if _, err := io.WriteString(c, text); err != nil {
			return err
		}
		got := make([]byte, len(text))
		if _, err := io.ReadFull(c, got); err != nil {
			return err
		}
		if string(got) != text {
			return fmt.Errorf("%w: %q of %q", errCrossed, got, text)
		}
	}
	return nil
}

func (e *everything) upgraded(tag string) error {
	c, err := net.Dial("tcp", e.at["web"])
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(conntest.Patience))
	_, _ = fmt.Fprintf(c, "GET /%s HTTP/1.1\r\nHost: %[1]s.test\r\nUser-Agent: %[1]s\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n", tag)
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		return errors.Join(err, errors.New("no upgrade"))
	}
	return tagged(c, tag)
}

func (e *everything) datagram(tag string) error {
	c, err := net.Dial("udp", e.at["dns"])
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(3 * time.Second)) // datagrams of sessions that are killed are lost
	for range 3 {
		if _, err := io.WriteString(c, tag); err != nil {
			return err
		}
		got := make([]byte, 100)
		n, err := c.Read(got)
		if err != nil {
			return err
		}
		if string(got[:n]) != tag {
			return fmt.Errorf("%w: %q of %q", errCrossed, got[:n], tag)
		}
	}
	return nil
}

// request posts a tag, and wants it back three times; some clients do not wait for all of it.
func request(tr http.RoundTripper, url, tag string) error {
	ctx, cancel := context.WithTimeout(context.Background(), conntest.Patience)
	defer cancel()
	for _, query := range []string{"", "events"} {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/"+tag+"?"+query, strings.NewReader(tag))
		if err != nil {
			return err
		}
		r.Host = tag + ".test"
		r.Header.Set("User-Agent", tag)
		resp, err := tr.RoundTrip(r)
		if err != nil {
			return err
		}
		if query != "" && rand.N(4) == 0 {
			return resp.Body.Close()
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err == nil && resp.StatusCode == http.StatusOK && string(body) != strings.Repeat(tag, 3) {
			return fmt.Errorf("%w: %q of %q", errCrossed, body, tag)
		}
		if err != nil || resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%d, %w", resp.StatusCode, err)
		}
	}
	return nil
}

// transactions runs statements with a tag in each; some clients leave in the middle.
func (e *everything) transactions(listener, tag string) error {
	ctx, cancel := context.WithTimeout(context.Background(), conntest.Patience)
	defer cancel()
	c, err := pgx.Connect(ctx, fmt.Sprintf("postgres://%s@%s/postgres?sslmode=disable&application_name=%[1]s", tag, e.at[listener]))
	if err != nil {
		return err
	}
	defer func() {
		if rand.N(2) == 0 {
			_ = c.PgConn().Conn().Close()
		}
		_ = c.Close(ctx)
	}()
	steps := []string{"begin", "commit", "begin", "rollback"}
	if listener == "db" {
		steps = []string{"begin", "commit", "set work_mem = '1MB'", "listen " + tag, "notify " + tag, "select pg_sleep(0.01)", "select 1/0", "create temp table t" + tag + " (a int)", "begin", "rollback"}
	}
	for _, sql := range steps {
		if _, err := c.Exec(ctx, sql+" /* "+tag+" */"); err != nil && c.IsClosed() {
			return err
		}
		var got string
		if err := c.QueryRow(ctx, "select cast($1 as text) /* "+tag+" */", tag).Scan(&got); err != nil {
			return err
		}
		if got != tag {
			return fmt.Errorf("%w: %q of %q", errCrossed, got, tag)
		}
	}
	return nil
}

// operators list and kill sessions, reload, and change and pause upstreams.
func (e *everything) operators() {
	e.again(3*time.Millisecond, func() {
		for _, s := range e.Sessions() {
			if err := mixed(s); err != nil {
				e.t.Errorf("%v: %+v", err, s)
			}
		}
	})
	e.again(5*time.Millisecond, func() {
		if all := e.Sessions(); len(all) > 0 && e.total() > 5*e.killed.Load() && e.Kill(all[rand.N(len(all))].ID) {
			e.killed.Add(1) // so that clients are served on a slow machine, too
		}
	})
	turn := 0
	e.again(100*time.Millisecond, func() {
		turn++
		if err := e.Reload(e.config(turn)); err != nil && !errors.Is(err, gateway.ErrClosed) {
			e.t.Error(err)
		}
	})
	e.again(100*time.Millisecond, func() {
		for _, do := range []upstream.Action{upstream.AddEndpoint, upstream.DrainEndpoint, upstream.RemoveEndpoint, upstream.AddEndpoint} {
			_ = e.ChangeEndpoint("echo", upstream.Change{Action: do, Endpoint: upstream.Endpoint{Address: e.echo[1]}}) // which a reload may have just added
		}
		for _, name := range []string{"web", "pg", "echo"} {
			if e.PauseUpstream(name, time.Hour) == nil {
				_ = e.ResumeUpstream(name)
			}
		}
	})
}

// mixed returns an error for a row that has something of two clients.
func mixed(s listener.Info) error {
	tag := s.Application
	switch s.Listener {
	case "web", "secure":
		if s.Host != "" && (s.Host != tag+".test" || s.Path != "/"+tag) {
			return errCrossed
		}
	case "db", "lite":
		if tag != s.User || strings.Contains(s.Statement, "/*") && !strings.Contains(s.Statement, "/* "+tag+" */") {
			return errCrossed
		}
	}
	return nil
}

// total is how many clients were served.
func (e *everything) total() (n int64) {
	for _, all := range e.counts {
		n += all.served.Load()
	}
	return n
}

// served reports whether enough has happened.
func (e *everything) served() bool {
	for _, n := range e.counts {
		if n.served.Load() == 0 {
			return false
		}
	}
	return e.killed.Load() >= 10
}

// nothingIsLeft checks what a gateway that has ended still knows.
func (e *everything) nothingIsLeft() {
	e.t.Helper()
	if left := e.Sessions(); len(left) > 0 {
		e.t.Errorf("sessions are left: %+v", left)
	}
	s, killed := e.Snapshot(), uint64(0)
	for _, l := range s.Listeners {
		killed += l.Errors[listener.ReasonKilled]
		if l.Active != 0 || l.Queued != 0 || l.Pinned != 0 || l.Listening != 0 || l.Buffered != 0 || l.Errors[listener.ReasonInternal] != 0 {
			e.t.Errorf("%+v", l)
		}
	}
	if asked := e.killed.Load(); killed == 0 || killed > uint64(asked) { //nolint:gosec // not negative
		e.t.Errorf("%d sessions were killed, %d are counted", asked, killed)
	}
	for _, u := range s.Upstreams {
		for _, end := range u.Endpoints {
			p := end.Pool
			if p.InUse != 0 || p.Idle != 0 || p.Opening != 0 || p.Busy != 0 || p.Waiting != 0 || p.Direct != 0 || end.Leases != 0 || p.Acquired != p.Released+p.Discarded {
				e.t.Errorf("%s at %s: %d leases, %+v", u.Name, end.Address, end.Leases, p)
			}
		}
	}
}
