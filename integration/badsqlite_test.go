package integration

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// tryQuery connects and runs one statement.
func tryQuery(t *testing.T, dsn, sql string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	_, err = conn.Exec(ctx, sql)
	return err
}

// TestSQLiteFileThatIsNone: a file that is not a database affects only its own clients, and only until it is repaired.
func TestSQLiteFileThatIsNone(t *testing.T) {
	file := filepath.Join(sharedDir(t), "app.db")
	text := bytes.Repeat([]byte("this is no database\n"), 1000)
	if err := os.WriteFile(file, text, 0o644); err != nil {
		t.Fatal(err)
	}
	listen, web := address(t), address(t)
	backend := startHTTP(t)
	g := startGateway(t, join(sqliteConfig(listen, file), httpConfig(web, "max_size: 2", backend.addr())), verbose)
	client := httpClient(t)
	bystander := startBystander(t, func(context.Context) error { _, _, err := get(client, "http://"+web+"/"); return err })
	bystander.awaitMore(t, 10)
	check(t, g, "lite", bystander, []badInput{{"no database", times(func(t *testing.T) {
		wantState(t, tryQuery(t, sqliteDSN(listen), "select 1"), "XX001")
	}), "upstream_unavailable", []string{"XX001", file, "not a database"}}})
	if after, err := os.ReadFile(file); err != nil || !bytes.Equal(after, text) {
		t.Errorf("the gateway changed a file that is no database: %v", err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a query works once the file is gone", func() error { return tryQuery(t, sqliteDSN(listen), "select 1") })
}

// TestCorruptSQLiteFile: a database in which only the first page is intact opens, and fails when it is read.
func TestCorruptSQLiteFile(t *testing.T) {
	file := filepath.Join(sharedDir(t), "app.db")
	makeDatabase(t, file, "create table big (id integer primary key, pad text); "+
		"insert into big (pad) select hex(zeroblob(500)) from (with recursive n(i) as (select 1 union all select i + 1 from n where i < 6000) select i from n); "+
		"create table small (n int); insert into small values (1)")
	damage(t, file)
	listen, web := address(t), address(t)
	backend := startHTTP(t)
	g := startGateway(t, join(sqliteConfig(listen, file), httpConfig(web, "max_size: 2", backend.addr())), verbose)
	client := httpClient(t)
	bystander := startBystander(t, func(context.Context) error { _, _, err := get(client, "http://"+web+"/"); return err })
	bystander.awaitMore(t, 10)
	check(t, g, "lite", bystander, []badInput{{"corrupt file", times(func(t *testing.T) {
		if e := wantState(t, tryQuery(t, sqliteDSN(listen), "select sum(length(pad)) from big"), "XX001"); !strings.Contains(e.Message, "corrupt") {
			t.Errorf("message %q", e.Message)
		}
	}), "storage", []string{"XX001", file}}})
}

// damage overwrites all pages of a database except the first, which contains the schema.
func damage(t *testing.T, file string) {
	t.Helper()
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	const page = 4096
	if info.Size() < 10*page {
		t.Fatalf("the database has %d bytes: its log was not written back", info.Size())
	}
	for _, log := range []string{"-wal", "-shm"} { // a gateway that had no time to close the file has left them
		if err := os.Remove(file + log); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
	if _, err := f.WriteAt(bytes.Repeat([]byte{0xa5}, int(info.Size())-page), page); err != nil {
		t.Fatal(err)
	}
}

// makeDatabase makes a SQLite file through a gateway that has ended when it returns.
func makeDatabase(t *testing.T, file, sql string) {
	t.Helper()
	t.Run("make the file", func(t *testing.T) {
		listen := address(t)
		startGateway(t, sqliteConfig(listen, file))
		if out, code := psql(t, sqliteDSN(listen), sql); code != 0 {
			t.Fatalf("exit code %d: %s", code, out)
		}
	})
}
