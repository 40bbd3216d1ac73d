package integration

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/headpond/headpond/internal/pgtest"
)

// load runs workers until it is stopped. A worker calls a function for each operation. Errors are
// counted, and the worker continues.
type load struct {
	stop   context.CancelFunc
	wg     sync.WaitGroup
	ok     atomic.Int64
	failed atomic.Int64
	last   atomic.Pointer[error]
}

// loadPause is between two operations of a worker. A test needs operations under way at every moment, not a busy machine.
const loadPause = 5 * time.Millisecond

func startLoad(t testing.TB, workers int, op func(ctx context.Context) error) *load {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	l := &load{stop: cancel}
	for range workers {
		l.wg.Go(func() { l.work(ctx, op) })
	}
	t.Cleanup(l.end)
	return l
}

func (l *load) work(ctx context.Context, op func(ctx context.Context) error) {
	for ctx.Err() == nil {
		err := op(ctx)
		switch {
		case err == nil:
			l.ok.Add(1)
		case ctx.Err() == nil:
			l.failed.Add(1)
			l.last.Store(&err)
		}
		pause(ctx, loadPause)
	}
}

// end stops the workers and waits for them.
func (l *load) end() {
	l.stop()
	l.wg.Wait()
}

func (l *load) lastError() error {
	if p := l.last.Load(); p != nil {
		return *p
	}
	return nil
}

// awaitMore waits until n more operations have succeeded.
func (l *load) awaitMore(t testing.TB, n int64) {
	t.Helper()
	l.await(t, "clients", l.ok.Load()+n)
}

// await waits until this many operations have succeeded. The time limit is for each operation, because machines differ
// in speed.
func (l *load) await(t testing.TB, who string, want int64) {
	t.Helper()
	for done := l.ok.Load(); done < want; done = l.ok.Load() {
		eventually(t, fmt.Sprintf("%s: one more operation of %d succeeds", who, want-done), func() error {
			if l.ok.Load() == done {
				return fmt.Errorf("none has; last error: %w", l.lastError())
			}
			return nil
		})
	}
}

// opTimeout is the longest that an operation may take: a client must get an answer, even if it is an error.
const opTimeout = 40 * time.Second

// session connects, calls do and disconnects.
func session(dsn string, do func(ctx context.Context, conn *pgx.Conn) error) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, opTimeout)
		defer cancel()
		conn, err := pgx.Connect(ctx, dsn)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close(context.Background()) }()
		return do(ctx, conn)
	}
}

// errWrong is an answer that no fault explains.
var errWrong = errors.New("another's answer")

// query sends two queries, like a short-lived client.
func query(dsn string) func(context.Context) error {
	return session(dsn, func(ctx context.Context, conn *pgx.Conn) error {
		for i := range 2 {
			var got int
			if err := conn.QueryRow(ctx, "select $1::int", i).Scan(&got); err != nil {
				return err
			}
			if got != i {
				return fmt.Errorf("%w: asked for %d, got %d", errWrong, i, got)
			}
		}
		return nil
	})
}

func TestPostgresKilledUnderLoadAndBack(t *testing.T) {
	server := pgtest.Start(t, pgtest.WithAuth(pgtest.SCRAM))
	db := newDatabase(t, server, "crash")
	listen := address(t)
	g := startGateway(t, db.pgConfig(t, listen, "transaction", "min_idle: 2, max_size: 5, acquire_timeout: 2s"))
	before := g.footprint()
	l := startLoad(t, 16, query(db.dsn(listen)))
	for range 2 {
		l.awaitMore(t, 100)
		server.Kill(t)
		failed := l.failed.Load()
		eventually(t, "clients get the error", func() error {
			if l.failed.Load() < failed+16 {
				return fmt.Errorf("%d errors", l.failed.Load()-failed)
			}
			return nil
		})
		server.Restart(t)
		l.awaitMore(t, 200)
	}
	l.end()
	m := g.scrape()
	if m.errors("db", "upstream_unavailable")+m.errors("db", "backend_gone") == 0 {
		t.Errorf("no counter tells that the backend was gone")
	}
	t.Logf("%d operations succeeded, %d were told the backend was gone", l.ok.Load(), l.failed.Load())
	g.awaitFootprint(before)
}

func TestHTTPBackendsComeAndGoUnderLoad(t *testing.T) {
	steady, flaky := startHTTP(t), startHTTP(t)
	listen := address(t)
	g := startGateway(t, httpConfig(listen, "max_size: 16", steady.addr(), flaky.addr()))
	before := g.footprint()
	client := httpClient(t)
	l := startLoad(t, 8, func(ctx context.Context) error {
		code, body, err := get(client, "http://"+listen+"/")
		if err == nil && code != http.StatusOK {
			err = fmt.Errorf("%d %s", code, body)
		}
		return err
	})
	l.awaitMore(t, 200)
	flaky.CloseClientConnections()
	flaky.Close()
	// One endpoint is left. Requests that find the other one down use it.
	l.awaitMore(t, 1000)
	failed := l.failed.Load()
	l.awaitMore(t, 1000)
	if n := l.failed.Load() - failed; n > 0 {
		t.Errorf("%d requests failed while one of two backends was up: %v", n, l.lastError())
	}
	l.end()
	client.CloseIdleConnections()
	g.awaitFootprint(before)
}
