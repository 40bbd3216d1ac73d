package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/headpond/headpond/internal/pgtest"
)

// database is a separate role and database on a server, with pgbench's tables if asked for.
type database struct {
	server               *pgtest.Cluster
	user, password, name string
}

func newDatabase(t testing.TB, server *pgtest.Cluster, name string) database {
	t.Helper()
	db := database{server: server, user: name, password: name + "-secret", name: name}
	server.CreateUser(t, db.user, db.password)
	server.CreateDatabase(t, db.name, db.user)
	return db
}

// pgbenchInit creates pgbench's tables of scale 1 directly on the server.
func (db database) pgbenchInit(t testing.TB) {
	t.Helper()
	out, code := run(t, patience, program(t, "pgbench"), "-i", "-q", db.server.DSN(db.user, db.password, db.name))
	if code != 0 {
		t.Fatalf("pgbench -i: exit code %d\n%s", code, out)
	}
}

// pgConfig is a postgres listener for the database; clients log in as its user. pool is the content
// of the upstream's pool mapping.
func (db database) pgConfig(t testing.TB, listen, mode, pool string) string {
	t.Helper()
	return db.pgConfigWith(db.usersFile(t), listen, mode, pool)
}

// usersFile is a users_file with the database's user.
func (db database) usersFile(t testing.TB) string {
	t.Helper()
	file := filepath.Join(sharedDir(t), "users.txt")
	line := fmt.Sprintf("%q %q\n", db.user, db.password)
	if err := os.WriteFile(file, []byte(line), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// pgConfigWith is pgConfig with an existing users_file.
func (db database) pgConfigWith(users, listen, mode, pool string) string {
	return fmt.Sprintf(`listeners:
  - name: db
    protocol: postgres
    listen: %s
    postgres: {mode: %s, users_file: %s, databases: {%s: pg}}
upstreams:
  pg:
    endpoints: [%s]
    pool: {%s}
    postgres: {user: %s, password: %s, dbname: %s}
`, listen, mode, users, db.name, db.server.Addr(), pool, db.user, db.password, db.name)
}

// dsn is the connection string for clients of the gateway.
func (db database) dsn(listen string) string {
	return fmt.Sprintf("postgres://%s:%s@%s/%s?sslmode=disable", db.user, db.password, listen, db.name)
}

// connect connects through the gateway; the connection is closed when the test ends.
func connect(t testing.TB, dsn string) *pgx.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// psql runs one command in psql and returns its output, unaligned and without header.
func psql(t testing.TB, dsn, command string) (string, int) {
	t.Helper()
	out, code := run(t, patience, program(t, "psql"), "-X", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-c", command, dsn)
	return strings.TrimSpace(out), code
}

func TestPsqlThroughTransactionAndSessionPools(t *testing.T) {
	db := newDatabase(t, pgtest.Start(t, pgtest.WithAuth(pgtest.SCRAM)), "shop")
	for _, mode := range []string{"transaction", "session"} {
		t.Run(mode, func(t *testing.T) {
			listen := address(t)
			startGateway(t, db.pgConfig(t, listen, mode, "max_size: 2"))
			for _, c := range []struct{ sql, want string }{
				{"select current_user || '/' || current_database()", "shop/shop"},
				{"create table if not exists t (n int); truncate t; insert into t select generate_series(1, 1000); select sum(n) from t", "500500"},
				{"begin; update t set n = 0; rollback; select max(n) from t", "1000"},
			} {
				out, code := psql(t, db.dsn(listen), c.sql)
				if lines := strings.Split(out, "\n"); code != 0 || lines[len(lines)-1] != c.want {
					t.Errorf("%s: %q, exit code %d, want %q last", c.sql, out, code, c.want)
				}
			}
			copied, code := shell(t, fmt.Sprintf("seq 1 5000 | %s -X -c 'copy t from stdin' '%s' && %s -X -c 'copy t to stdout' '%s' | wc -l",
				program(t, "psql"), db.dsn(listen), program(t, "psql"), db.dsn(listen)))
			if code != 0 || !strings.Contains(copied, "COPY 5000") || !strings.Contains(copied, "6000") {
				t.Errorf("COPY: exit code %d: %s", code, copied)
			}
			if out, code := psql(t, db.dsn(listen), `\d t`); code != 0 || !strings.Contains(out, "n|integer") {
				t.Errorf(`\d t: %q, exit code %d`, out, code)
			}
			if out, code := psql(t, db.dsn(listen), "select 1/0"); code == 0 || !strings.Contains(out, "division by zero") {
				t.Errorf("an error of the server: %q, exit code %d", out, code)
			}
		})
	}
}

func TestPgbenchModes(t *testing.T) {
	db := newDatabase(t, pgtest.Start(t, pgtest.WithAuth(pgtest.SCRAM)), "bench")
	db.pgbenchInit(t)
	for _, c := range []struct{ pool, query string }{
		{"transaction", "simple"}, {"transaction", "extended"}, {"transaction", "prepared"},
		{"session", "simple"}, {"session", "extended"}, {"session", "prepared"},
	} {
		t.Run(c.pool+"/"+c.query, func(t *testing.T) {
			listen := address(t)
			g := startGateway(t, db.pgConfig(t, listen, c.pool, "max_size: 4"))
			before := g.footprint()
			out, code := run(t, patience, program(t, "pgbench"), "-n", "-M", c.query, "-c", "4", "-t", "50", db.dsn(listen))
			if code != 0 || !strings.Contains(out, "processed: 200/200") {
				t.Errorf("pgbench: exit code %d\n%s", code, out)
			}
			g.awaitFootprint(before)
		})
	}
}

func TestPgxThroughTransactionPool(t *testing.T) {
	db := newDatabase(t, pgtest.Start(t, pgtest.WithAuth(pgtest.MD5)), "app")
	listen := address(t)
	g := startGateway(t, db.pgConfig(t, listen, "transaction", "max_size: 2"))
	a, b := connect(t, db.dsn(listen)), connect(t, db.dsn(listen))
	ctx := t.Context()
	for i := range 20 { // pgx prepares each text once per connection
		var x, y int
		if err := a.QueryRow(ctx, "select $1::int * 2", i).Scan(&x); err != nil {
			t.Fatal(err)
		}
		if err := b.QueryRow(ctx, "select $1::int * 3", i).Scan(&y); err != nil {
			t.Fatal(err)
		}
		if x != 2*i || y != 3*i {
			t.Fatalf("%d: %d and %d", i, x, y)
		}
	}
	testBatchAndCopy(t, a)
	testCancelHitsItsOwnQuery(t, a, b)
	if m := g.scrape(); m.sum("headpond_pool_reused_total") == 0 || m.sum("headpond_pool_opened_total") > 2 {
		t.Errorf("opened %v, reused %v", m.sum("headpond_pool_opened_total"), m.sum("headpond_pool_reused_total"))
	}
}

func testBatchAndCopy(t *testing.T, c *pgx.Conn) {
	t.Helper()
	ctx := t.Context()
	if _, err := c.Exec(ctx, "create table points (id int, label text)"); err != nil {
		t.Fatal(err)
	}
	batch := &pgx.Batch{}
	batch.Queue("insert into points values ($1, $2)", 1, "one")
	batch.Queue("select count(*) from points").QueryRow(func(row pgx.Row) error {
		var n int
		err := row.Scan(&n)
		if err == nil && n != 1 {
			err = fmt.Errorf("%d points", n)
		}
		return err
	})
	if err := c.SendBatch(ctx, batch).Close(); err != nil {
		t.Fatal(err)
	}
	rows := pgx.CopyFromSlice(10_000, func(i int) ([]any, error) { return []any{i, "label"}, nil })
	if n, err := c.CopyFrom(ctx, pgx.Identifier{"points"}, []string{"id", "label"}, rows); err != nil || n != 10_000 {
		t.Fatalf("copied %d: %v", n, err)
	}
}

// testCancelHitsItsOwnQuery cancels one client's query while another's runs on the same pool.
func testCancelHitsItsOwnQuery(t *testing.T, victim, bystander *pgx.Conn) {
	t.Helper()
	other := make(chan error, 1)
	go func() {
		_, err := bystander.Exec(t.Context(), "select pg_sleep(1)")
		other <- err
	}()
	done := make(chan error, 1)
	go func() {
		_, err := victim.PgConn().Exec(t.Context(), "select pg_sleep(600)").ReadAll()
		done <- err
	}()
	// A request may arrive before its query has reached the server, so it is repeated, like Ctrl-C.
	eventually(t, "the query is cancelled", func() error {
		if err := victim.PgConn().CancelRequest(t.Context()); err != nil {
			return err
		}
		select {
		case err := <-done:
			wantState(t, err, "57014")
			return nil
		default:
			return fmt.Errorf("it runs")
		}
	})
	if err := <-other; err != nil {
		t.Errorf("the cancel request hit another client: %v", err)
	}
}
