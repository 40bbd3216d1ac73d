package integration

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/headpond/headpond/internal/clienttest"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/pgtest"
)

// crossedOperations is the number of operations of each of the fifty clients.
var crossedOperations = flag.Int("crossed", 8, "operations of each client of TestCrossedAnswers")

const (
	crossedClients     = 50
	crossedConnections = 5
	crossedLimit       = 10 * time.Minute // for one program
)

// crossedDrivers are the programs, by driver. Each prints its errors and ends with "done".
var crossedDrivers = map[string]func(t *testing.T, at, mode string) (out string){
	"asyncpg":        pythonCrossed("asyncpg"),
	"psycopg":        pythonCrossed("psycopg", "5"), // prepares a statement at its sixth execution
	"psycopg-always": pythonCrossed("psycopg", "0"),
	"pgx":            pgxCrossed,
	"node-pg": func(t *testing.T, at, mode string) string {
		return crossedProgram(t, clienttest.Node(t, clienttest.Program(t, "crossed.cjs"), crossedArgs("postgres://me@"+at+"/me", mode)...))
	},
	"jdbc": func(t *testing.T, at, mode string) string {
		return crossedProgram(t, clienttest.Java(t, clienttest.Program(t, "Crossed.java"), crossedArgs("jdbc:postgresql://"+at+"/me?user=me&sslmode=disable", mode)...))
	},
}

func crossedArgs(url, mode string) []string {
	return []string{url, fmt.Sprint(crossedClients), fmt.Sprint(*crossedOperations), mode}
}

func pythonCrossed(driver string, more ...string) func(t *testing.T, at, mode string) string {
	return func(t *testing.T, at, mode string) string {
		args := append([]string{clienttest.Program(t, "crossed.py"), driver}, crossedArgs("postgresql://me@"+at+"/me?sslmode=disable", mode)...)
		return crossedProgram(t, clienttest.Python(t, append(args, more...)...))
	}
}

// crossedProgram returns a program's output. It fails the test if the program does not end.
func crossedProgram(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	var out, errs conntest.Log // shown only if the program fails
	cmd.Stdout, cmd.Stderr = &out, &errs
	p := &process{conntest.Start(t, cmd), &errs}
	if code := p.awaitEnd(t, crossedLimit); code != 0 {
		t.Errorf("exit code %d\n%s", code, tail(errs.String(), 40))
	}
	return out.String()
}

// TestCrossedAnswers: fifty clients of each driver share five server connections and check that every answer is their
// own, through transactions, errors, cancel requests, COPY, pipelines and disconnects. No answer is crossed and no
// client hangs. The same holds while server connections are killed continuously; some operations then fail with an
// error.
func TestCrossedAnswers(t *testing.T) {
	server := pgtest.Start(t)
	server.CreateUser(t, "me", "")
	for name, run := range crossedDrivers {
		for _, mode := range []string{"calm", "killed"} {
			t.Run(name+"/"+mode, func(t *testing.T) {
				server.Exec(t, "drop database if exists me with (force)", "create database me owner me")
				prepareCrossed(t, server)
				at := address(t)
				startGateway(t, fmt.Sprintf(`listeners:
  - {name: db, protocol: postgres, listen: %s, postgres: {auth: trust, databases: {me: pg}}}
upstreams:
  pg: {endpoints: [%s], pool: {max_size: %d, acquire_timeout: 1m}, eject: {failures: 0}, postgres: {user: me, dbname: me}}
`, at, server.Addr(), crossedConnections), plain)
				if mode == "killed" {
					killBackends(t, server)
				}
				judgeCrossed(t, run(t, at, mode), mode)
			})
		}
	}
}

func prepareCrossed(t *testing.T, server *pgtest.Cluster) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), server.DSN("me", "", "me"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), "create table crossed (tag text, n int); create index on crossed (tag)"); err != nil {
		t.Fatal(err)
	}
}

// killBackends ends the oldest server connection of the gateway every few milliseconds until the test ends.
func killBackends(t *testing.T, server *pgtest.Cluster) {
	conn := server.Connect(t)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			_, err := conn.Exec(ctx, "select pg_terminate_backend(pid) from pg_stat_activity where usename = 'me' order by backend_start limit 1")
			if err != nil && ctx.Err() == nil {
				t.Error(err)
				return
			}
			<-tick.C
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
}

// judgeCrossed requires that all operations ran without a complaint.
func judgeCrossed(t *testing.T, out, mode string) {
	t.Helper()
	done, lost := 0, 0
	for line := range strings.Lines(out) {
		if n, _ := fmt.Sscanf(line, "done %d %d", &done, &lost); n == 2 {
			continue
		}
		t.Errorf("%.300s", line)
		if t.Failed() && strings.Count(out, "\n") > 100 {
			break // the others are alike
		}
	}
	if want := crossedClients * *crossedOperations; done != want {
		t.Errorf("%d operations, want %d", done, want)
	}
	if mode == "calm" && lost > 0 || lost == done {
		t.Errorf("%d of %d operations are lost", lost, done)
	}
	t.Logf("%d operations, %d lost with their connection", done, lost)
}

// errCrossed means that an answer belongs to another client.
var errCrossed = errors.New("crossed")

func wantAnswer(got, want any) error {
	if fmt.Sprint(got) != fmt.Sprint(want) {
		return fmt.Errorf("%w: got %v, want %v", errCrossed, got, want)
	}
	return nil
}

// pgxCrossed is the program for pgx. Its output is the same.
func pgxCrossed(t *testing.T, at, mode string) string {
	var mu sync.Mutex
	var out strings.Builder
	done, lost := 0, 0
	var wg sync.WaitGroup
	for number := range crossedClients {
		wg.Go(func() {
			c := crossedPgx{url: "postgres://me@" + at + "/me?sslmode=disable", rng: rand.New(rand.NewPCG(uint64(number), 0))}
			defer c.drop()
			for n := range *crossedOperations {
				what, err := c.operation(fmt.Sprintf("%d.%d", number, n))
				mu.Lock()
				done++
				switch {
				case err == nil:
				case errors.Is(err, errCrossed):
					fmt.Fprintln(&out, what, err)
				case errors.Is(err, context.DeadlineExceeded):
					fmt.Fprintln(&out, "stuck", what, err)
				default:
					lost++
					if mode == "calm" {
						fmt.Fprintln(&out, "wrong", what, err)
					}
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	fmt.Fprintf(&out, "done %d %d\n", done, lost)
	return out.String()
}

// crossedPgx is a client with pgx.
type crossedPgx struct {
	url  string
	rng  *rand.Rand
	conn *pgx.Conn
}

func (c *crossedPgx) drop() {
	if c.conn != nil {
		_ = c.conn.PgConn().Conn().Close()
		_ = c.conn.Close(context.Background())
		c.conn = nil
	}
}

// operation runs one operation and connects if necessary. After an error it gives the connection
// up.
func (c *crossedPgx) operation(tag string) (what string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if c.conn == nil {
		if c.conn, err = pgx.Connect(ctx, c.url); err != nil {
			return tag + ".connect", err
		}
	}
	all := []struct {
		name string
		do   func(ctx context.Context, tag string) error
	}{{"ask", c.ask}, {"ask", c.ask}, {"transaction", c.transaction}, {"fail", c.fail}, {"cancel", c.cancel}, {"copy", c.copy}, {"batch", c.batch}, {"disconnect", c.disconnect}}
	one := all[c.rng.IntN(len(all))]
	what = tag + "." + one.name
	if err = one.do(ctx, what); err != nil {
		c.drop()
	}
	return what, err
}

func (c *crossedPgx) ask(ctx context.Context, tag string) error {
	rows, err := c.conn.Query(ctx, "select $1::text || '/' || g from generate_series(1, 3) g", tag)
	if err != nil {
		return err
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	return wantAnswer(got, []string{tag + "/1", tag + "/2", tag + "/3"})
}

func (c *crossedPgx) transaction(ctx context.Context, tag string) error {
	return pgx.BeginFunc(ctx, c.conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "insert into crossed values ($1, 1)", tag); err != nil {
			return err
		}
		got := ""
		if err := tx.QueryRow(ctx, "select tag from crossed where tag = $1", tag).Scan(&got); err != nil {
			return err
		}
		return wantAnswer(got, tag)
	})
}

// wantError requires a server error with the SQLSTATE.
func wantError(err error, state string) error {
	var e *pgconn.PgError
	switch {
	case err == nil:
		return fmt.Errorf("%w: no error %s", errCrossed, state)
	case errors.As(err, &e) && e.Code == state:
		return nil
	}
	return err
}

func (c *crossedPgx) fail(ctx context.Context, tag string) error {
	err := pgx.BeginFunc(ctx, c.conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "insert into crossed values ($1, 2)", tag); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "select 1 / 0")
		return err
	})
	if err := wantError(err, "22012"); err != nil {
		return err
	}
	var n int
	if err := c.conn.QueryRow(ctx, "select count(*) from crossed where tag = $1", tag).Scan(&n); err != nil {
		return err
	}
	return wantAnswer(n, 0)
}

// cancel repeats its request, because a request may arrive before the statement.
func (c *crossedPgx) cancel(ctx context.Context, tag string) error {
	done := make(chan error, 1)
	go func() {
		_, err := c.conn.Exec(ctx, "select pg_sleep(20)")
		done <- err
	}()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			if err := wantError(err, "57014"); err != nil {
				return err
			}
			return c.ask(ctx, tag)
		case <-tick.C:
			_ = c.conn.PgConn().CancelRequest(ctx) // the statement's result tells whether it worked
		}
	}
}

func (c *crossedPgx) copy(ctx context.Context, tag string) error {
	rows := pgx.CopyFromSlice(50, func(i int) ([]any, error) { return []any{tag, i}, nil })
	if _, err := c.conn.CopyFrom(ctx, pgx.Identifier{"crossed"}, []string{"tag", "n"}, rows); err != nil {
		return err
	}
	var got, want strings.Builder
	for n := range 50 {
		fmt.Fprintf(&want, "%s\t%d\n", tag, n)
	}
	if _, err := c.conn.PgConn().CopyTo(ctx, &got, "copy (select tag, n from crossed where tag = '"+tag+"' order by n) to stdout"); err != nil {
		return err
	}
	return wantAnswer(got.String(), want.String())
}

func (c *crossedPgx) batch(ctx context.Context, tag string) error {
	batch := &pgx.Batch{}
	for n := range 5 {
		batch.Queue("select $1::text || $2::int", tag, n).QueryRow(func(row pgx.Row) error {
			var got string
			if err := row.Scan(&got); err != nil {
				return err
			}
			return wantAnswer(got, fmt.Sprint(tag, n))
		})
	}
	return c.conn.SendBatch(ctx, batch).Close()
}

func (c *crossedPgx) disconnect(_ context.Context, tag string) error {
	c.conn.PgConn().Frontend().SendQuery(&pgproto3.Query{String: "select '" + tag + "' from generate_series(1, 100000)"})
	err := c.conn.PgConn().Frontend().Flush()
	c.drop()
	return err
}
