package gateway_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/upstream"
)

// TestTransactionsUnderChanges changes the endpoints of a database all the time while clients run transactions. None may fail, and none may
// be lost or done twice.
func TestTransactionsUnderChanges(t *testing.T) {
	addrs := []string{"127.0.0.1", "127.0.0.2"}
	db := pgtest.Start(t, pgtest.WithSetting("listen_addresses", strings.Join(addrs, ",")), pgtest.WithHBA("host all all 127.0.0.0/8 trust"))
	for _, engine := range engineKinds {
		t.Run(engine, func(t *testing.T) { transactionsUnderChanges(t, db, engine, addrs) })
	}
}

func transactionsUnderChanges(t *testing.T, db *pgtest.Cluster, engine string, addrs []string) {
	db.Exec(t, "drop table if exists counters", "create table counters (client int primary key, n int not null)")
	path := filepath.Join(t.TempDir(), "set.yaml")
	write := func(addrs ...string) {
		t.Helper()
		text := ""
		for _, addr := range addrs {
			text += fmt.Sprintf("- %q\n", net.JoinHostPort(addr, strconv.Itoa(db.Port())))
		}
		if err := os.WriteFile(path+".next", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".next", path); err != nil {
			t.Fatal(err)
		}
	}
	write(addrs[0])
	gw := run(t, parse(t, `
engine: {engine}
drain_timeout: 10s
listeners:
  - {name: db, protocol: postgres, listen: "127.0.0.1:0", upstream: pg, postgres: {databases: {"*": pg}}}
upstreams:
  pg:
    discover: {file: {path: "{path}", interval: 10ms}}
    postgres: {user: "{user}", dbname: postgres}
    pool: {max_size: 3}
`, "{engine}", engine, "{path}", path, "{user}", db.Superuser()))
	stop := make(chan struct{})
	var clients sync.WaitGroup
	done := make([]int, 5) // more than a pool has connections
	var begun sync.WaitGroup
	for i := range done {
		begun.Add(1)
		clients.Go(func() { done[i] = transact(t, gw.Addr("db"), i, sync.OnceFunc(begun.Done), stop) })
	}
	begun.Wait()
	for i := range 40 {
		set := addrs[i%2 : i%2+1]
		if i%4 >= 2 {
			set = addrs
		}
		write(set...)
		status(t, gw, "a new set", func(s upstream.Status) bool { return inUse(s) == strings.Join(set, " ") })
	}
	close(stop)
	clients.Wait()
	status(t, gw, "drained", func(s upstream.Status) bool { return len(s.Endpoints) == 2 })
	conn := db.Connect(t)
	for i, want := range done {
		var n int
		if err := conn.QueryRow(t.Context(), "select n from counters where client = $1", i).Scan(&n); err != nil || n != want || n == 0 {
			t.Errorf("client %d committed %d transactions, the server has %d; %v", i, want, n, err)
		}
	}
}

// transact runs transactions of a client until stop is closed and returns how many it committed; one that fails fails the test. begun
// is called after the first.
func transact(t *testing.T, addr string, client int, begun func(), stop <-chan struct{}) (committed int) {
	t.Helper()
	return transactAt(t, "postgres://me@"+addr+"/app?sslmode=disable", client, begun, stop)
}

// transactAt is transact for a connection string.
func transactAt(t *testing.T, dsn string, client int, begun func(), stop <-chan struct{}) (committed int) {
	t.Helper()
	defer begun()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Error(err)
		return 0
	}
	defer func() { _ = conn.Close(ctx) }()
	for {
		select {
		case <-stop:
			return committed
		default:
		}
		err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			var n int
			const count = "insert into counters values ($1, 1) on conflict (client) do update set n = counters.n + 1"
			if _, err := tx.Exec(ctx, count, client); err != nil {
				return err
			}
			if err := tx.QueryRow(ctx, "select n from counters where client = $1", client).Scan(&n); err != nil {
				return err
			}
			if n != committed+1 {
				return fmt.Errorf("transaction %d sees %d", committed+1, n)
			}
			return nil
		})
		if err != nil {
			t.Errorf("client %d, transaction %d: %v", client, committed+1, err)
			return committed
		}
		committed++
		begun()
	}
}
