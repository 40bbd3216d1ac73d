package pgproxy_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/headpond/headpond/internal/enginetest"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
	"github.com/headpond/headpond/upstream"
)

// vanishing is a connection whose peer's machine is gone when its peer has closed it: keep-alive
// probes are not answered.
type vanishing struct{ net.Conn }

func (c vanishing) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err == io.EOF { //nolint:errorlint // as net.Conn returns it
		err = &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", syscall.ETIMEDOUT)}
	}
	return n, err
}

// TestServerVanishes lets the machine of a server go away while it owes an answer.
func TestServerVanishes(t *testing.T) {
	for what, mode := range map[string]func(*pgproxy.Config, *pgproxy.PostgresConfig){"transaction": transaction, "session": session} {
		g, f := startFake(t, func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) {
			mode(c, pc)
			pc.Dial = func(ctx context.Context, endpoint string) (net.Conn, error) {
				conn, err := enginetest.Dial(ctx, endpoint)
				return vanishing{conn}, err
			}
		})
		logged := make(chan *wire, 1)
		go func() { logged <- g.dial(t) }()
		srv := <-f.conns
		w := <-logged
		w.send(&pgwire.Parse{Query: "select 1"}, &pgwire.Flush{})
		for typ := byte(0); typ != pgwire.TypeFlush; {
			typ, _ = srv.read()
		}
		_ = srv.Close()
		if types, body := w.until(pgwire.TypeErrorResponse); types != "E" || !has(body, "C08006\x00") {
			t.Errorf("%s: the client got %s %q", what, types, body)
		}
	}
}

// TestTornCopyDataInWholePieces is TestTornCopyData with a message that ends where the gateway has
// just sent all it had read.
func TestTornCopyDataInWholePieces(t *testing.T) {
	db := pgtest.Shared(t)
	db.Exec(t, "create table if not exists torn (a int)")
	g := start(t, db, small)
	const piece = 16 << 10 // the most that the gateway reads at once
	for range 10 {
		w := g.pipe(t).login()
		w.send(query("copy torn from stdin"))
		w.until(pgwire.TypeCopyInResponse)
		torn := pgwire.AppendHeader(bytesOf(&pgwire.CopyData{Data: []byte("not a number\n")}), pgwire.TypeCopyData, 1<<20)
		torn = append(torn, make([]byte, 2*piece-len(torn))...)
		g.leaveTorn(t, w, torn)
	}
}

// TestPartOfADateStyle gives a client a DateStyle of which one half is the default's: not the one
// another client has chosen on the same server connection.
func TestPartOfADateStyle(t *testing.T) {
	g := start(t, pgtest.Shared(t), small)
	other := g.connect(t, "datestyle='SQL, DMY'")
	do(t, other, "select 1")
	for range 2 { // the second time it is known
		conn := g.connect(t, "datestyle=ISO")
		if got := one[string](t, conn, "show datestyle"); got != "ISO, MDY" {
			t.Errorf("DateStyle is %s", got)
		}
		do(t, other, "select 1")
	}
}

// TestSessionAfterTransactions leaves state that transaction mode cannot see, and then uses the
// server connection in session mode.
func TestSessionAfterTransactions(t *testing.T) {
	db := pgtest.Shared(t)
	g := start(t, db, func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		c.OnState, pc.Limits.MaxSize = pgproxy.ResetState, 1
	})
	sessions := start(t, db, func(c *pgproxy.Config, _ *pgproxy.PostgresConfig) {
		c.Mode, c.Databases = pgproxy.Session, map[string]pgproxy.Backend{"*": g.backend}
	})
	conn := g.connect(t, "")
	pid := one[int](t, conn, "select pg_backend_pid()")
	do(t, conn, "create temp table secrets (a int); select pg_advisory_lock(4711); select set_config('work_mem','13MB',false)", pgx.QueryExecModeSimpleProtocol)
	next := sessions.connect(t, "")
	if got := one[int](t, next, "select pg_backend_pid()"); got != pid {
		t.Fatal("another server connection")
	}
	for look, want := range map[string]string{
		"select count(*)::text from pg_class where relname='secrets'":                            "0",
		"select count(*)::text from pg_locks where locktype='advisory' and pid=pg_backend_pid()": "0",
		"select current_setting('work_mem')":                                                     "4MB",
	} {
		if got := one[string](t, next, look, pgx.QueryExecModeSimpleProtocol); got != want {
			t.Errorf("%s: %s, want %s", look, got, want)
		}
	}
}

// TestStatementLostUnseen loses prepared statements by means the gateway does not see.
func TestStatementLostUnseen(t *testing.T) {
	g := start(t, pgtest.Shared(t), small)
	conn := g.connect(t, "")
	if _, err := conn.PgConn().Prepare(t.Context(), "s", "select 7", nil); err != nil {
		t.Fatal(err)
	}
	do(t, conn, "do $$ begin execute 'deallocate all'; end $$", pgx.QueryExecModeSimpleProtocol)
	if r := conn.PgConn().ExecPrepared(t.Context(), "s", nil, nil, nil).Read(); r.Err != nil && sqlstate(r.Err) != "26000" {
		t.Fatal(r.Err)
	}
	if r := conn.PgConn().ExecPrepared(t.Context(), "s", nil, nil, nil).Read(); r.Err != nil {
		t.Errorf("the second time: %v", r.Err)
	}
}

// TestQueryEndsPipeline sends a Query in place of the Sync: its ReadyForQuery is the end of all.
func TestQueryEndsPipeline(t *testing.T) {
	g := start(t, pgtest.Shared(t), small)
	w, other := g.dial(t), g.connect(t, "")
	for range 2 {
		w.send(&pgwire.Parse{Query: "select 1"}, &pgwire.Bind{}, &pgwire.Execute{}, query("select 2"))
		types, bodies := w.until(pgwire.TypeReadyForQuery)
		if types != "12DCTDCZ" {
			t.Fatal(types)
		}
		if strings.HasSuffix(bodies, "T") { // PostgreSQL 18: the pipeline's transaction is open until the next Sync
			w.send(&pgwire.Sync{})
			w.until(pgwire.TypeReadyForQuery)
		}
		if got := one[int](t, other, "select 3"); got != 3 {
			t.Fatal(got)
		}
	}
	w.send(&pgwire.Parse{Query: "selec"}, query("select 2"), &pgwire.Sync{})
	if types, _ := w.until(pgwire.TypeReadyForQuery); types != "EZ" {
		t.Fatal(types)
	}
	w.send(query("select 1"), &pgwire.Parse{Query: "select 1"}, &pgwire.Flush{})
	if types, _ := w.until(pgwire.TypeParseComplete); types != "TDCZ1" {
		t.Fatal(types)
	}
}

// TestCancelWithoutPlace cancels when there is no place for another client.
func TestCancelWithoutPlace(t *testing.T) { withAndWithoutTLS(t, cancelWithoutPlace) }

func cancelWithoutPlace(t *testing.T, secure *tls.Config, sslmode string) {
	g := start(t, pgtest.Shared(t), func(c *pgproxy.Config, _ *pgproxy.PostgresConfig) {
		c.TLS = secure
		c.Listener.MaxConns, c.Listener.MaxQueue = 1, -1
	})
	conn := g.connect(t, sslmode)
	over := make(chan error, 1)
	go func() {
		_, err := conn.Exec(t.Context(), "select pg_sleep(61)")
		over <- err
	}()
	waitFor(t, g, "pg_sleep(61)")
	if err := conn.PgConn().CancelRequest(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-over; sqlstate(err) != "57014" {
		t.Error(err)
	}
}

// TestCancelGoesToTheSameServer cancels where the name of the server stands for another one since.
func TestCancelGoesToTheSameServer(t *testing.T) {
	db := pgtest.Shared(t)
	var dialed sync.Map
	g := start(t, db, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		name := "localhost:" + itoa(db.Port())
		pc.Endpoints, pc.Limits.MaxSize = upstream.Endpoints(name), 1
		pc.Dial = func(ctx context.Context, endpoint string) (net.Conn, error) {
			if _, again := dialed.LoadOrStore(endpoint, true); again {
				return nil, errors.New("another server")
			}
			return enginetest.Dial(ctx, db.Addr())
		}
	})
	w := g.dial(t)
	w.send(query("select pg_sleep(63)"))
	waitFor(t, g, "pg_sleep(63)")
	conn, err := net.Dial("tcp", g.addr)
	if err != nil {
		t.Fatal(err)
	}
	newWire(t, conn).send(&pgwire.CancelRequest{ProcessID: w.key.ProcessID, Key: w.key.Key})
	if _, body := w.until(pgwire.TypeReadyForQuery); !has(body, "C57014\x00") {
		t.Errorf("%q", body)
	}
}

// TestManySettings gives more settings at startup than anybody needs.
func TestManySettings(t *testing.T) {
	g := start(t, pgtest.Shared(t), nil)
	m := &pgwire.StartupMessage{Params: []pgwire.Param{{Name: "user", Value: "app"}}}
	for i := range 500 {
		m.Params = append(m.Params, pgwire.Param{Name: "a." + itoa(i), Value: "1"})
	}
	conn, err := net.Dial("tcp", g.addr)
	if err != nil {
		t.Fatal(err)
	}
	w := newWire(t, conn)
	if _, err := w.Write(m.Append(nil)); err != nil {
		t.Fatal(err)
	}
	if typ, body := w.read(); typ != pgwire.TypeErrorResponse || !has(body, "C54000\x00") {
		t.Errorf("%c %q", typ, body)
	}
}
