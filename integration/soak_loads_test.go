package integration

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/pgtest"
)

// soak is a gateway with listeners of every protocol, its backends, and their faults.
type soak struct {
	g      *gateway
	db     database
	users  string // file
	dir    string // of certificates and the SQLite file
	web    *httpBackend
	mortal *mortal // a second one, which is killed and restarted
	echo   string
	peers  string  // tunnel listener of the far gateway
	cut    *cutter // in front of peers
	listen map[string]string
	loads  map[string]*load
	steady map[string]bool // loads whose backends have no faults: they must not fail
	ends   []func()        // close the clients that keep connections
	pace   time.Duration   // longPace or shortPace
}

// Listeners. Names that end in s have TLS, names that begin with t use a tunnel.
var soakListeners = []string{"web", "webs", "db", "dbs", "lite", "raw", "raws", "front", "tweb", "traw"}

func newSoak(t *testing.T) *soak {
	t.Helper()
	s := &soak{
		db: newDatabase(t, pgtest.Start(t, pgtest.WithAuth(pgtest.SCRAM)), "soak"), dir: sharedDir(t), web: startHTTP(t),
		listen: map[string]string{}, loads: map[string]*load{}, steady: map[string]bool{}, pace: shortPace,
	}
	if _, long := conntest.SoakLength(t, 0); long {
		s.pace = longPace
	}
	s.users = s.db.usersFile(t)
	s.mortal = startMortal(t, s.web.Config.Handler)
	s.echo, _ = startEcho(t)
	s.peers = address(t)
	startGateway(t, farConfig(s.peers, `"`+s.web.addr()+`"`, map[string]string{"echo": s.echo}))
	s.cut = startCutter(t, s.peers)
	for _, name := range soakListeners {
		s.listen[name] = address(t)
	}
	issue(t, s.dir, "ca", "soak")
	return s
}

// config has both web servers, or only the one that is never killed.
func (s *soak) config(both bool) string {
	cert := fmt.Sprintf("tls: {cert: %s/ca-soak.crt, key: %[1]s/ca-soak.key}", s.dir)
	pg := fmt.Sprintf("protocol: postgres, postgres: {mode: transaction, users_file: %s, databases: {%s: pg}}", s.users, s.db.name)
	text := "listeners:\n"
	for name, what := range map[string]string{
		"web": "protocol: http, upstream: api", "webs": "protocol: http, upstream: api, " + cert,
		"db": pg, "dbs": pg + ", " + cert, "lite": "protocol: postgres, upstream: file",
		"raw": "protocol: tcp, upstream: echo", "raws": "protocol: tcp, upstream: echo, " + cert, "front": "protocol: tcp, upstream: front",
		"tweb": "protocol: http, upstream: tapi", "traw": "protocol: tcp, upstream: techo",
	} {
		text += fmt.Sprintf("  - {name: %s, listen: \"%s\", %s}\n", name, s.listen[name], what)
	}
	api := s.web.addr()
	if both {
		api += `", "` + s.mortal.addr
	}
	text += fmt.Sprintf("tunnels:\n  far: {connect: \"%s\", as: near, psk: %s}\n", s.cut.addr, tunnelPSK)
	return text + fmt.Sprintf(`upstreams:
  api: {endpoints: ["%[9]s"], pool: {max_size: 64, acquire_timeout: 5s}}
  tapi: {endpoints: ["%[1]s"], tunnel: far, connect_timeout: 30s, pool: {max_size: 8, acquire_timeout: 30s}}
  techo: {endpoints: ["upstream:echo"], tunnel: far, %[10]s}
  front: {endpoints: ["%[1]s", "%[2]s"], pool: {max_size: 64}}
  echo: {endpoints: ["%[3]s"], connect_timeout: 30s, pool: {max_size: 100, acquire_timeout: 30s}}
  file: {endpoints: ["sqlite:%[4]s"], pool: {max_size: 3, acquire_timeout: 30s}}
  pg:
    endpoints: ["%[5]s"]
    pool: {max_size: 4, acquire_timeout: 30s}
    postgres: {user: %[6]s, password: %[7]s, dbname: %[8]s}
`, s.web.addr(), s.mortal.addr, s.echo, filepath.Join(s.dir, "soak.db"), s.db.server.Addr(), s.db.user, s.db.password, s.db.name, api, patient)
}

// How long a client is idle after each operation: the test needs many faults, not many requests. In a single round every load only has to
// work before, during and after the faults.
const (
	longPace  = 30 * time.Millisecond
	shortPace = 300 * time.Millisecond
)

// run adds a load.
func (s *soak) run(t *testing.T, name string, workers int, op func(ctx context.Context) error) {
	s.loads[name] = startLoad(t, workers, func(ctx context.Context) error {
		err := op(ctx)
		if errors.Is(err, errWrong) {
			t.Errorf("%s: %v", name, err)
		}
		pause(ctx, s.pace)
		return err
	})
}

// pause waits, unless ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// start starts the gateway with all loads.
func (s *soak) start(t *testing.T) {
	t.Helper()
	for proto, at := range map[string]string{
		"http1": "http://" + s.listen["web"], "h2c": "http://" + s.listen["web"],
		"https1": "https://" + s.listen["webs"], "h2": "https://" + s.listen["webs"],
	} {
		client := func() *http.Client {
			c, end := webClient(proto)
			s.ends = append(s.ends, end)
			return c
		}
		s.run(t, proto+" get", 2, fetch(client(), at, 100_000))
		s.run(t, proto+" upload", 1, upload(client(), at))
		s.run(t, proto+" half upload", 1, halfUpload(client(), at))
		s.run(t, proto+" reset", 1, giveUp(client(), at))
		s.run(t, proto+" slow", 1, readSlowly(client(), at))
		s.run(t, proto+" stop", 1, stopReading(proto, at))
		s.run(t, proto+" idle", 1, idleBetween(proto, at))
	}
	s.run(t, "vanish", 1, func(context.Context) error { return vanishOnce(s.listen["web"]) })
	s.run(t, "sql", 2, query(s.db.dsn(s.listen["db"])))
	s.run(t, "sql tls", 1, query(s.tlsDSN()))
	s.run(t, "sql each way", 2, askEachWay(s.db.dsn(s.listen["db"])))
	s.run(t, "sql stay", 1, stay(s.tlsDSN()))
	s.run(t, "sql vanish", 1, vanishInRows(s.db.dsn(s.listen["db"])))
	s.run(t, "sql cancel", 1, giveUpQuery(s.db.dsn(s.listen["db"])))
	s.run(t, "lite", 2, s.lite())
	s.run(t, "tcp", 2, func(context.Context) error { return echoOnce(s.listen["raw"]) })
	s.run(t, "tcp bulk", 1, func(context.Context) error { return echoSum(s.listen["raw"], 1<<rand.IntN(22)) })
	s.run(t, "tcp tls", 1, func(context.Context) error { return echoTLS(s.listen["raws"]) })
	s.run(t, "tcp stop", 1, func(context.Context) error { return sendAndVanish(s.listen["raw"]) })
	front, _ := webClient("http1")
	front.Transport.(*http.Transport).DisableKeepAlives = true
	s.run(t, "front", 1, fetch(front, "http://"+s.listen["front"], 300_000))
	through, end := webClient("http1")
	s.ends = append(s.ends, end)
	s.run(t, "tunnel get", 2, fetch(through, "http://"+s.listen["tweb"], 100_000))
	s.run(t, "tunnel upload", 1, upload(through, "http://"+s.listen["tweb"]))
	s.run(t, "tunnel reset", 1, giveUp(through, "http://"+s.listen["tweb"]))
	s.run(t, "tunnel vanish", 1, func(context.Context) error { return vanishOnce(s.listen["tweb"]) })
	s.run(t, "tunnel bulk", 2, func(context.Context) error { return echoSum(s.listen["traw"], 1<<rand.IntN(20)) })
	for _, name := range []string{"lite", "tcp", "tcp bulk", "tcp tls", "tunnel bulk"} {
		s.steady[name] = true
	}
}

func (s *soak) tlsDSN() string {
	return fmt.Sprintf("postgres://%s:%s@%s/%s?sslmode=require", s.db.user, s.db.password, s.listen["dbs"], s.db.name)
}

// round waits until every load works and injects some of the faults in random order, while loads that the faults cannot
// stop continue. Then it waits until every load works again. The first round injects all faults.
func (s *soak) round(t *testing.T, first bool) {
	t.Helper()
	s.awaitMore(t, 2, func(string) bool { return true })
	mend := func() {}
	faults := []func(){
		func() {
			s.db.server.Kill(t)
			and := mend
			mend = func() { and(); s.db.server.Restart(t) }
		},
		func() {
			s.mortal.kill()
			and := mend
			mend = func() { and(); s.mortal.revive(t) }
		},
		s.web.cut,
		s.cut.cut,
		func() { s.g.write(s.config(rand.IntN(2) == 0)); s.g.signal(syscall.SIGHUP) },
	}
	for _, i := range rand.Perm(len(faults)) {
		if first || rand.IntN(2) == 0 {
			faults[i]()
			pause(t.Context(), rand.N(200*time.Millisecond))
		}
	}
	s.awaitMore(t, 5, func(name string) bool { // one of two web servers is left
		return s.steady[name] || strings.HasSuffix(name, "get") || strings.HasSuffix(name, "upload")
	})
	mend()
	s.awaitMore(t, 2, func(string) bool { return true })
}

// awaitMore waits until n more operations of each of the loads have succeeded.
func (s *soak) awaitMore(t *testing.T, n int64, which func(name string) bool) {
	t.Helper()
	until := map[string]int64{}
	for name, l := range s.loads {
		if which(name) {
			until[name] = l.ok.Load() + n
		}
	}
	for name, want := range until {
		s.loads[name].await(t, name, want)
	}
}

// mortal is an HTTP server that can be killed and restarted at its address.
type mortal struct {
	addr    string
	handler http.Handler
	server  *http.Server
	serving sync.WaitGroup
}

func startMortal(t *testing.T, handler http.Handler) *mortal {
	t.Helper()
	m := &mortal{addr: address(t), handler: handler}
	m.revive(t)
	t.Cleanup(m.kill)
	return m
}

func (m *mortal) revive(t *testing.T) {
	t.Helper()
	l, err := net.Listen("tcp", m.addr)
	if err != nil {
		t.Fatal(err)
	}
	m.server = &http.Server{Handler: m.handler}
	m.serving.Go(func() { _ = m.server.Serve(l) })
}

// kill closes its listener and all connections.
func (m *mortal) kill() {
	_ = m.server.Close()
	m.serving.Wait()
}

// webClient returns a client of one protocol, and a function that closes its idle connections and resets the others.
func webClient(proto string) (client *http.Client, end func()) {
	protocols := new(http.Protocols)
	switch proto {
	case "h2":
		protocols.SetHTTP2(true)
	case "h2c":
		protocols.SetUnencryptedHTTP2(true)
	default:
		protocols.SetHTTP1(true)
	}
	var mu sync.Mutex
	var conns []net.Conn
	const window = 128 << 10 // small, so that a client that stops reading is noticed soon
	transport := &http.Transport{
		Protocols: protocols, MaxIdleConnsPerHost: 64, TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		HTTP2: &http.HTTP2Config{MaxReceiveBufferPerStream: window},
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			var d net.Dialer
			c, err := d.DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			mu.Lock()
			defer mu.Unlock()
			conns = append(conns, c)
			return c, c.(*net.TCPConn).SetReadBuffer(window)
		},
	}
	return &http.Client{Transport: transport, Timeout: opTimeout}, func() {
		transport.CloseIdleConnections()
		mu.Lock()
		defer mu.Unlock()
		for _, c := range conns {
			_ = c.(*net.TCPConn).SetLinger(0)
			_ = c.Close()
		}
	}
}

// ask sends a request and requires status 200.
func ask(ctx context.Context, client *http.Client, method, url string, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err == nil && resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		err = fmt.Errorf("%s %s: %s", resp.Proto, resp.Status, text)
	}
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// fetch downloads a body of n bytes.
func fetch(client *http.Client, at string, n int64) func(context.Context) error {
	return func(ctx context.Context) error {
		resp, err := ask(ctx, client, http.MethodGet, fmt.Sprintf("%s/bytes/%d", at, n), nil)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		got, err := io.Copy(io.Discard, resp.Body)
		if err == nil && got != n {
			err = fmt.Errorf("%d bytes of %d", got, n)
		}
		return err
	}
}

// upload sends a body and requires its length as the answer.
func upload(client *http.Client, at string) func(context.Context) error {
	return func(ctx context.Context) error {
		n := rand.Int64N(400_000)
		resp, err := ask(ctx, client, http.MethodPost, at+"/upload", io.LimitReader(zeros{}, n))
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err == nil && string(text) != strconv.FormatInt(n, 10) {
			err = fmt.Errorf("sent %d bytes, the server got %q", n, text)
		}
		return err
	}
}

var errHalf = errors.New("that is enough")

// failing is a body whose reader fails.
type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errHalf }

// halfUpload sends a part of a body: in HTTP/2 the stream is then reset, in HTTP/1.1 the connection closed.
func halfUpload(client *http.Client, at string) func(context.Context) error {
	return func(ctx context.Context) error {
		resp, err := ask(ctx, client, http.MethodPost, at+"/upload", io.MultiReader(io.LimitReader(zeros{}, 1+rand.Int64N(200_000)), failing{}))
		if err == nil {
			_ = resp.Body.Close()
			return errors.New("half an upload was taken for a whole one")
		}
		if errors.Is(err, syscall.ECONNREFUSED) {
			return err
		}
		return nil
	}
}

// giveUp reads the beginning of a body and cancels the request.
func giveUp(client *http.Client, at string) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		resp, err := ask(ctx, client, http.MethodGet, at+"/bytes/5000000", nil)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		_, err = io.CopyN(io.Discard, resp.Body, rand.Int64N(300_000))
		return err
	}
}

// readSlowly reads a body in small pieces.
func readSlowly(client *http.Client, at string) func(context.Context) error {
	const size, piece = 400_000, 8 << 10
	return func(ctx context.Context) error {
		resp, err := ask(ctx, client, http.MethodGet, fmt.Sprintf("%s/bytes/%d", at, size), nil)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		for got := int64(0); got < size; {
			n, err := io.CopyN(io.Discard, resp.Body, min(piece, size-got))
			if got += n; err != nil {
				return err
			}
			pause(ctx, time.Millisecond)
		}
		return nil
	}
}

// stopReading requests large bodies and does not read them, sends other requests meanwhile (in HTTP/2 on the same
// connection), and resets the connections.
func stopReading(proto, at string) func(context.Context) error {
	return func(ctx context.Context) error {
		client, end := webClient(proto)
		defer end()
		for range 3 {
			resp, err := ask(ctx, client, http.MethodGet, at+"/bytes/20000000", nil)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
		}
		err := fetch(client, at, 10_000)(ctx)
		pause(ctx, 500*time.Millisecond)
		end()
		return err
	}
}

// idleBetween leaves a connection idle until its session has given up its stack.
func idleBetween(proto, at string) func(context.Context) error {
	return func(ctx context.Context) error {
		client, end := webClient(proto)
		defer end()
		for range 2 {
			if err := fetch(client, at, 1000)(ctx); err != nil {
				return err
			}
			pause(ctx, 300*time.Millisecond)
		}
		return nil
	}
}

// stay sends queries on one connection, in transactions and with pauses.
func stay(dsn string) func(context.Context) error {
	return session(dsn, func(ctx context.Context, conn *pgx.Conn) (err error) {
		for i := 0; i < 5 && err == nil; i++ {
			pause(ctx, time.Duration(rand.IntN(300))*time.Millisecond)
			err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
				var n int
				return tx.QueryRow(ctx, "select count(*) from generate_series(1, $1)", rand.IntN(100)).Scan(&n)
			})
		}
		return err
	})
}

// askEachWay sends twenty queries on one connection: by a prepared statement, the unnamed one, and as a simple query.
func askEachWay(dsn string) func(context.Context) error {
	ways := []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol}
	return session(dsn, func(ctx context.Context, conn *pgx.Conn) error {
		for range 20 {
			size := rand.IntN(3000)
			want := strings.Repeat(string(rune('a'+rand.IntN(26))), size)
			var got string
			if err := conn.QueryRow(ctx, "select $1::text || '-'", ways[rand.IntN(len(ways))], want).Scan(&got); err != nil {
				return err
			}
			if got != want+"-" {
				return fmt.Errorf("%w: %d bytes instead of %d", errWrong, len(got), size+1)
			}
		}
		return nil
	})
}

// vanishInRows resets a connection in the middle of a result.
func vanishInRows(dsn string) func(context.Context) error {
	return session(dsn, func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, "select repeat('x', 1000) from generate_series(1, 100000)")
		for i := 0; err == nil && i < 100 && rows.Next(); i++ {
		}
		raw := conn.PgConn().Conn()
		_ = raw.(*net.TCPConn).SetLinger(0)
		return errors.Join(err, raw.Close())
	})
}

// giveUpQuery cancels a query.
func giveUpQuery(dsn string) func(context.Context) error {
	return session(dsn, func(ctx context.Context, conn *pgx.Conn) error {
		asked := make(chan error, 1)
		go func() {
			_, err := conn.PgConn().Exec(ctx, "select pg_sleep(60)").ReadAll()
			asked <- err
		}()
		for {
			pause(ctx, 50*time.Millisecond)
			select {
			case err := <-asked:
				if err == nil {
					return errors.New("a minute's sleep has ended")
				}
				return nil // cancelled, or the server was killed
			default:
				_ = conn.PgConn().CancelRequest(ctx) // the request may arrive too early
			}
		}
	})
}

// lite reads and writes the SQLite file.
func (s *soak) lite() func(context.Context) error {
	return session(sqliteDSN(s.listen["lite"]), func(ctx context.Context, conn *pgx.Conn) error {
		key := rand.IntN(100)
		for _, text := range []string{
			"create table if not exists soak (id integer primary key, n int)",
			fmt.Sprintf("insert into soak values (%d, 1) on conflict (id) do update set n = n + 1", key),
			fmt.Sprintf("select n from soak where id = %d", key),
		} {
			if _, err := conn.Exec(ctx, text); err != nil {
				return err
			}
		}
		return nil
	})
}

// echoTLS is echoOnce with TLS.
func echoTLS(addr string) error {
	d := tls.Dialer{NetDialer: &net.Dialer{Timeout: opTimeout}, Config: &tls.Config{InsecureSkipVerify: true}}
	c, err := d.DialContext(context.Background(), "tcp", addr)
	if err != nil {
		return err
	}
	return echoLine(c)
}

// sendAndVanish sends to an echo server without reading until all buffers are full, and resets the connection.
func sendAndVanish(addr string) error {
	c, err := net.DialTimeout("tcp", addr, opTimeout)
	if err != nil {
		return err
	}
	_ = c.(*net.TCPConn).SetReadBuffer(64 << 10)
	_ = c.SetWriteDeadline(time.Now().Add(300 * time.Millisecond))
	_, err = io.Copy(c, io.LimitReader(zeros{}, 64<<20))
	if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() {
		err = nil
	}
	return errors.Join(err, c.(*net.TCPConn).SetLinger(0), c.Close())
}
