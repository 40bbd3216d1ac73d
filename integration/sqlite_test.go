package integration

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/headpond/headpond/internal/clienttest"
)

// sqliteConfig is a postgres listener for a SQLite file.
func sqliteConfig(listen, file string) string {
	return fmt.Sprintf(`listeners:
  - name: lite
    protocol: postgres
    listen: %s
    upstream: file
upstreams:
  file:
    endpoints: ["sqlite:%s"]
    pool: {acquire_timeout: 1m}
`, listen, file)
}

func sqliteDSN(listen string) string { return "postgres://me@" + listen + "/lite?sslmode=disable" }

func TestSQLiteWithPsql(t *testing.T) {
	listen := address(t)
	startGateway(t, sqliteConfig(listen, filepath.Join(sharedDir(t), "app.db")))
	dsn := sqliteDSN(listen)
	for _, c := range []struct{ command, want string }{
		{"create table users (id integer primary key, name text not null, score real, photo blob, active boolean)", "CREATE TABLE"},
		{"insert into users (name, score, active) values ('ada', 1.5, true), ('bob', null, false)", "INSERT 0 2"},
		{"select name, score, active from users order by id", "ada|1.5|t\nbob||f"},
		{"begin; delete from users; rollback; select count(*) from users", "2"},
		{`\dt`, "users"},
		{`\d users`, "name"},
		{`\l`, "lite"},
	} {
		out, code := psql(t, dsn, c.command)
		if code != 0 || !strings.Contains(out, c.want) {
			t.Errorf("%s: %q, exit code %d, want %q", c.command, out, code, c.want)
		}
	}
	if out, code := psql(t, dsn, "select * from nowhere"); code == 0 || !strings.Contains(out, "nowhere") {
		t.Errorf("an unknown table: %q, exit code %d", out, code)
	}
}

func TestSQLiteWithPgxReadersAndWriters(t *testing.T) {
	listen := address(t)
	g := startGateway(t, sqliteConfig(listen, filepath.Join(sharedDir(t), "app.db")))
	setup := connect(t, sqliteDSN(listen))
	if _, err := setup.Exec(t.Context(), "create table hits (id integer primary key, client int, n int)"); err != nil {
		t.Fatal(err)
	}
	const clients, each = 8, 25
	var wg sync.WaitGroup
	for i := range clients {
		conn := connect(t, sqliteDSN(listen))
		wg.Go(func() { readAndWrite(t, conn, i, each) })
	}
	wg.Wait()
	var n, sum int
	if err := setup.QueryRow(t.Context(), "select count(*), sum(n) from hits").Scan(&n, &sum); err != nil {
		t.Fatal(err)
	}
	if n != clients*each || sum != clients*each*(each-1)/2 {
		t.Errorf("%d rows, sum %d", n, sum)
	}
	if m := g.scrape(); m.sum("headpond_pool_waiting", `upstream="file"`) != 0 {
		t.Errorf("waiting = %v", m.sum("headpond_pool_waiting"))
	}
}

// readAndWrite inserts n rows in transactions and reads each back. No client may ever get SQLITE_BUSY.
func readAndWrite(t *testing.T, conn *pgx.Conn, client, n int) {
	ctx := t.Context()
	for i := range n {
		err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "insert into hits (client, n) values ($1, $2)", client, i)
			return err
		})
		var got int
		if err == nil {
			err = conn.QueryRow(ctx, "select max(n) from hits where client = $1", client).Scan(&got)
		}
		if err != nil || got != i {
			t.Errorf("client %d: wrote %d, read %d: %v", client, i, got, err)
			return
		}
	}
}

// psycopgProgram exercises parameters, types, errors and transactions in a typical Python program.
const psycopgProgram = `
import sys, psycopg
with psycopg.connect(sys.argv[1]) as conn:
    with conn.cursor() as cur:
        cur.execute("create table if not exists py (id integer primary key, name text, score real, data bytea)")
        cur.execute("delete from py")
        cur.executemany("insert into py (name, score, data) values (%s, %s, %s)", [("ada", 1.5, b"\x00\xff"), ("bob", None, None)])
    conn.commit()
    rows = conn.execute("select name, score, data from py where name = %s", ("ada",)).fetchall()
    assert rows == [("ada", 1.5, b"\x00\xff")], rows
    try:
        conn.execute("select * from nowhere")
    except psycopg.errors.UndefinedTable as e:
        assert e.sqlstate == "42P01"
    conn.rollback()
    for _ in range(10):  # psycopg prepares after five
        assert conn.execute("select count(*) from py where id > %s", (0,)).fetchone() == (2,)
print("psycopg", psycopg.__version__, "ok")
`

func TestPsycopgWithSQLite(t *testing.T) {
	listen := address(t)
	startGateway(t, sqliteConfig(listen, filepath.Join(sharedDir(t), "app.db")))
	out, err := clienttest.Python(t, "-c", psycopgProgram, sqliteDSN(listen)).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "ok") {
		t.Errorf("%v\n%s", err, out)
	}
}
