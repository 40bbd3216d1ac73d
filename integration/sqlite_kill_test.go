package integration

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"
)

// TestSQLiteKilledDuringAlter kills the gateway while a client changes a table's definition repeatedly. The file must
// then contain the table before or after the last statement, complete, with every row.
func TestSQLiteKilledDuringAlter(t *testing.T) {
	const rows = 500
	listen := address(t)
	config := sqliteConfig(listen, filepath.Join(sharedDir(t), "app.db"))
	g := startGateway(t, config, plain)
	conn := connect(t, sqliteDSN(listen))
	if _, err := conn.Exec(t.Context(), `create table t (id int primary key, n int not null, s text);
		insert into t select g, g, 'row ' || g from generate_series(1, 500) g`); err != nil {
		t.Fatal(err)
	}
	for round := range 4 {
		changed, seen, over := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		go func() { over <- alterUntilError(t, conn, changed, seen) }()
		for range 1 + 3*round {
			select {
			case <-changed:
			case err := <-over:
				t.Fatal(err)
			}
		}
		close(seen) // the next statement runs or is about to run
		g.killed(t)
		<-over
		g = startGateway(t, config, plain)
		conn = connect(t, sqliteDSN(listen))
		wantWhole(t, conn, rows)
	}
}

// alterUntilError changes the table until that fails. Until seen is closed it sends each completed statement to
// changed.
func alterUntilError(t *testing.T, conn *pgx.Conn, changed chan<- struct{}, seen <-chan struct{}) error {
	for {
		for _, sql := range []string{
			"alter table t add constraint positive check (n > 0)", "alter table t add column extra text default 'x'",
			"alter table t alter column n type bigint", "alter table t drop column extra",
			"alter table t drop constraint positive", "alter table t alter column n type int",
		} {
			if _, err := conn.Exec(t.Context(), sql); err != nil {
				return fmt.Errorf("%s: %w", sql, err)
			}
			select {
			case changed <- struct{}{}:
			case <-seen:
			}
		}
	}
}

// wantWhole requires a sound file whose table has all rows, and reverts the changes left by a killed client.
func wantWhole(t *testing.T, conn *pgx.Conn, rows int) {
	t.Helper()
	var sound string
	if err := conn.QueryRow(t.Context(), "pragma integrity_check").Scan(&sound); err != nil || sound != "ok" {
		t.Fatalf("integrity_check: %q, %v", sound, err)
	}
	var n, sum, texts int
	err := conn.QueryRow(t.Context(), "select count(*), sum(n), count(distinct s) from t where id = n").Scan(&n, &sum, &texts)
	if err != nil || n != rows || sum != rows*(rows+1)/2 || texts != rows {
		t.Fatalf("%d rows, sum %d, %d texts, %v", n, sum, texts, err)
	}
	if _, err := conn.Exec(t.Context(), "alter table t drop column if exists extra; alter table t drop constraint if exists positive"); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "insert into t values (0, 0, 'new'); delete from t where id = 0"); err != nil {
		t.Fatal(err)
	}
}
