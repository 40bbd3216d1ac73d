//go:build unix

package gateway_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"
)

const liteText = `
admin: 127.0.0.1:0
drain_timeout: 10s
listeners:
  - {name: raw, protocol: tcp, listen: "127.0.0.1:0", upstream: echo}
  - {name: db, protocol: postgres, listen: "127.0.0.1:0", upstream: lite}
upstreams:
  echo: {endpoints: ["{echo}"]}
  lite: {endpoints: ["sqlite:{dir}/app.db"], pool: {acquire_timeout: {patience}}}
`

// stallFile makes a SQLite file that does not open until the returned function is called: in place of its journal there
// is a pipe without a writer.
func stallFile(t *testing.T, path string) (goOn func()) {
	t.Helper()
	conn, err := sqlite.OpenConn(path, sqlite.OpenReadWrite, sqlite.OpenCreate)
	if err != nil {
		t.Fatal(err)
	}
	if err := sqlitex.ExecuteTransient(conn, "create table t (a)", nil); err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(path+"-journal", 0o600); err != nil {
		t.Fatal(err)
	}
	goOn = sync.OnceFunc(func() {
		pipe, err := os.OpenFile(path+"-journal", os.O_RDWR, 0) // waiting readers continue, and read nothing
		if err != nil {
			t.Error(err)
			return
		}
		if err := os.Remove(path + "-journal"); err != nil {
			t.Error(err)
		}
		_ = pipe.Close()
	})
	t.Cleanup(goOn)
	return goOn
}

// TestSQLiteFileThatIsSlowToOpen: while one stalls, the gateway starts, serves all other clients and shows on its pages
// what it waits for; clients of the file wait. Once the file opens it is served.
func TestSQLiteFileThatIsSlowToOpen(t *testing.T) {
	dir := t.TempDir()
	goOn := stallFile(t, filepath.Join(dir, "app.db"))
	g := run(t, parse(t, liteText, "{echo}", echoServer(t), "{dir}", dir, "{patience}", "1m"))
	served := make(chan error, 1)
	go func() {
		conn, err := pgx.Connect(context.Background(), "postgres://me@"+g.Addr("db")+"/app")
		if err == nil {
			err = conn.Close(context.Background())
		}
		served <- err
	}()
	admin := "http://" + g.Addr("admin")
	for waits := ""; !strings.Contains(waits, `upstream "lite": the sqlite file is still being opened`); {
		code, body, err := get(client(t), admin+"/readyz")
		if err != nil || code != 200 {
			t.Fatalf("readyz: %d %q %v", code, body, err)
		}
		waits = body
		select {
		case err := <-served:
			t.Fatalf("the client was answered while the file stalls: %v; readyz says %q", err, body)
		default:
		}
	}
	echo(t, dial(t, g.Addr("raw")), "hello")
	if code, body, err := get(client(t), admin+"/metrics"); err != nil || code != 200 || !strings.Contains(body, `headpond_upstream_endpoint_healthy{endpoint="sqlite:`+dir+`/app.db",protocol="postgres",upstream="lite"} 0`) {
		t.Errorf("metrics: %d %v\n%s", code, err, body)
	}
	goOn()
	if err := <-served; err == nil || !strings.Contains(err.Error(), "58030") { // a pipe is no journal
		t.Errorf("the client that waited: %v", err)
	}
	for { // not before reopenAfter
		conn, err := pgx.Connect(context.Background(), "postgres://me@"+g.Addr("db")+"/app")
		if err == nil {
			_ = conn.Close(context.Background())
			break
		}
		if !strings.Contains(err.Error(), "58030") {
			t.Fatal(err)
		}
	}
	if _, body, err := get(client(t), admin+"/readyz"); err != nil || body != "ready\n" {
		t.Errorf("readyz once it is open: %q %v", body, err)
	}
}

// TestSQLiteFileThatDoesNotOpen: its clients get an error within acquire_timeout, and a gateway that ends does not wait
// for it.
func TestSQLiteFileThatDoesNotOpen(t *testing.T) {
	dir := t.TempDir()
	goOn := stallFile(t, filepath.Join(dir, "app.db"))
	g := run(t, parse(t, liteText, "{echo}", echoServer(t), "{dir}", dir, "{patience}", "10ms"))
	_, err := pgx.Connect(context.Background(), "postgres://me@"+g.Addr("db")+"/app")
	if err == nil || !strings.Contains(err.Error(), "58030") {
		t.Errorf("a client of a file that does not open: %v", err)
	}
	g.Stop()
	if err := <-g.Result; err != nil {
		t.Error(err)
	}
	goOn()
}
