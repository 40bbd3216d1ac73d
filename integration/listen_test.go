package integration

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/headpond/headpond/internal/clienttest"
	"github.com/headpond/headpond/internal/pgtest"
)

var listeners = flag.Int("listeners", 200, "how many clients TestListenersThroughRestart has")

// Drivers hear notifications in transaction mode as on a direct connection: in order, their own with the process ID that they know.
func TestListenDrivers(t *testing.T) {
	_, g, at := startListenGateway(t)
	url := "postgresql://me@" + at + "/me?sslmode=disable"
	for name, cmd := range map[string]*exec.Cmd{
		"asyncpg": clienttest.Python(t, clienttest.Program(t, "listen.py"), "asyncpg", url),
		"psycopg": clienttest.Python(t, clienttest.Program(t, "listen.py"), "psycopg", url),
		"node-pg": clienttest.Node(t, clienttest.Program(t, "listen.cjs"), "postgres://me@"+at+"/me"),
	} {
		t.Run(name, func(t *testing.T) {
			p := start(t, cmd)
			if code := p.awaitEnd(t, 3*time.Minute); code != 0 || !strings.Contains(p.out.String(), "ok\n") {
				t.Errorf("exit code %d\n%s", code, tail(p.out.String(), 40))
			}
		})
	}
	g.awaitListeners(0)
}

// awaitListeners returns once n clients listen.
func (g *gateway) awaitListeners(n int) {
	g.t.Helper()
	eventually(g.t, fmt.Sprintf("%d clients listen", n), func() error {
		if got := g.scrape().sum("headpond_listener_sessions_listening"); got != float64(n) {
			return fmt.Errorf("%v do", got)
		}
		return nil
	})
}

// startListenGateway starts a server with user and database me, and a gateway in front of it at an address.
func startListenGateway(t *testing.T) (server *pgtest.Cluster, g *gateway, at string) {
	t.Helper()
	server, at = pgtest.Start(t), address(t)
	server.CreateUser(t, "me", "")
	server.CreateDatabase(t, "me", "me")
	return server, startGateway(t, listenConfig(at, server)), at
}

func listenConfig(at string, server *pgtest.Cluster) string {
	return fmt.Sprintf(`listeners:
  - {name: db, protocol: postgres, listen: %s, postgres: {auth: trust, databases: {me: pg}}}
upstreams:
  pg: {endpoints: [%s], pool: {max_size: 5, acquire_timeout: 1m}, postgres: {user: me, dbname: me}}
`, at, server.Addr())
}

// Many clients listen with five server connections. When the server restarts, each is told: it connects and listens again.
func TestListenersThroughRestart(t *testing.T) {
	server, g, at := startListenGateway(t)
	ctx, stop := context.WithTimeout(t.Context(), 5*time.Minute)
	defer stop()
	var heard, lost, ends sync.WaitGroup
	heard.Add(*listeners)
	lost.Add(*listeners)
	places := make(chan struct{}, 20) // that many connect at once
	for i := range *listeners {
		ends.Go(func() {
			err := listensUntilLost(ctx, places, at, heard.Done)
			if lost.Done(); err == nil {
				err = listensAgain(ctx, places, at)
			}
			if err != nil {
				t.Errorf("listener %d: %v", i, err)
				stop()
			}
		})
	}
	g.notify(ctx, server, "before")
	heard.Wait()
	server.Restart(t)
	lost.Wait()
	g.notify(ctx, server, "after")
	ends.Wait()
}

// notify sends a notification once all listen.
func (g *gateway) notify(ctx context.Context, server *pgtest.Cluster, payload string) {
	g.t.Helper()
	g.awaitListeners(*listeners)
	if n := server.Backends(g.t); n > 6 { // five, and the one that listens
		g.t.Errorf("%d server connections", n)
	}
	conn, err := pgx.Connect(ctx, server.DSN("me", "", "me"))
	if err != nil {
		g.t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(ctx, "select pg_notify('news', $1)", payload); err != nil {
		g.t.Fatal(err)
	}
}

// listensUntilLost hears one notification, after which it calls heard in any case, and that its connection ends.
func listensUntilLost(ctx context.Context, places chan struct{}, at string, heard func()) error {
	conn, err := listen(ctx, places, at)
	if err == nil {
		err = hears(ctx, conn, "before")
	}
	if heard(); err != nil {
		return err
	}
	_, err = conn.WaitForNotification(ctx)
	if pe, ok := errors.AsType[*pgconn.PgError](err); ok && pe.Code == "57P01" || err != nil && conn.IsClosed() && ctx.Err() == nil {
		return nil
	}
	return fmt.Errorf("at the restart: %w", err)
}

func listensAgain(ctx context.Context, places chan struct{}, at string) error {
	conn, err := listen(ctx, places, at)
	if err == nil {
		err = hears(ctx, conn, "after")
	}
	if err != nil {
		return fmt.Errorf("after the restart: %w", err)
	}
	return conn.Close(ctx)
}

// listen connects and listens. The server may be starting.
func listen(ctx context.Context, places chan struct{}, at string) (*pgx.Conn, error) {
	places <- struct{}{}
	defer func() { <-places }()
	for {
		conn, err := pgx.Connect(ctx, "postgres://me@"+at+"/me?sslmode=disable")
		if err == nil {
			if _, err = conn.Exec(ctx, "listen news"); err == nil {
				return conn, nil
			}
			_ = conn.Close(ctx)
		}
		if ctx.Err() != nil {
			return nil, err
		}
	}
}

// hears wants one notification.
func hears(ctx context.Context, conn *pgx.Conn, payload string) error {
	n, err := conn.WaitForNotification(ctx)
	if err == nil && n.Payload != payload {
		err = fmt.Errorf("heard %q, want %q", n.Payload, payload)
	}
	return err
}
