package integration

import (
	"bytes"
	"context"
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

func TestCorruptSQLiteFile(t *testing.T) {
	dir := sharedDir(t)
	file := filepath.Join(dir, "app.db")
	if err := os.WriteFile(file, bytes.Repeat([]byte("this is no database\n"), 1000), 0o644); err != nil {
		t.Fatal(err)
	}
	listen, web := address(t), address(t)
	backend := startHTTP(t)
	g := startGateway(t, join(sqliteConfig(listen, file), httpConfig(web, "max_size: 1", backend.addr())), verbose)
	err := tryQuery(t, sqliteDSN(listen), "select 1 from sqlite_master")
	wantState(t, err, "XX001")
	g.awaitLog("not a SQLite database")
	if m := g.scrape(); m.sum("headpond_listener_errors_total", `listener="lite"`) == 0 && m.sum("headpond_pool_open_failed_total", `upstream="file"`) == 0 {
		t.Error("no counter tells of the corrupt file")
	}
	if code, _, err := get(httpClient(t), "http://"+web+"/"); err != nil || code != 200 {
		t.Errorf("another listener suffers: %d %v", code, err)
	}
	after, err := os.ReadFile(file)
	if err != nil || !strings.HasPrefix(string(after), "this is no database") {
		t.Error("the gateway changed a file that is no database")
	}
}
