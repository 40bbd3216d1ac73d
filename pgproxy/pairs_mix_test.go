package pgproxy_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pgproxy"
)

// mixed is a client of TestPairsNeverMix.
type mixed struct {
	g                        *gateway
	user, password, database string
	conn                     *pgx.Conn
	draw                     *rand.Rand
	role                     string // that the client has set
}

// loggedIn asks as whom the server connection is logged in, whatever SET has made of it.
const loggedIn = "select usename || ' ' || datname || ' ' || current_user from pg_stat_activity where pid = pg_backend_pid()"

// check asks whose server connection the client has, by all ways of asking.
func (m *mixed) check(ctx context.Context, c interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
},
) error {
	var got, seen string
	want := m.user + " " + m.database + " " + m.role
	if err := c.QueryRow(ctx, loggedIn).Scan(&got); err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("the server connection is that of %q, the client is %q", got, want)
	}
	if err := c.QueryRow(ctx, "select coalesce(string_agg(distinct owner, ' '), '') from notes where $1", true).Scan(&seen); err != nil {
		return err
	}
	if m.user != "postgres" && seen != m.role {
		return fmt.Errorf("%q sees rows of %q", m.role, seen)
	}
	return nil
}

// step does one thing.
func (m *mixed) step(ctx context.Context) error {
	switch m.draw.IntN(9) {
	case 0, 1:
		return m.check(ctx, m.conn)
	case 2: // a transaction with an error in it
		tx, err := m.conn.Begin(ctx)
		if err != nil {
			return err
		}
		if err := m.check(ctx, tx); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "select 1/0"); sqlstate(err) != "22012" {
			return fmt.Errorf("1/0: %w", err)
		}
		return tx.Rollback(ctx)
	case 3: // a pipeline
		batch := &pgx.Batch{}
		for range 5 {
			batch.Queue(loggedIn)
		}
		results := m.conn.SendBatch(ctx, batch)
		for range 5 {
			var got string
			if err := results.QueryRow().Scan(&got); err != nil {
				return err
			}
			if want := m.user + " " + m.database + " " + m.role; got != want {
				return fmt.Errorf("in a pipeline: the server connection is that of %q, the client is %q", got, want)
			}
		}
		return results.Close()
	case 4: // a cancel request
		slow, stop := context.WithTimeout(ctx, time.Duration(m.draw.IntN(3))*time.Millisecond)
		defer stop()
		_, err := m.conn.Exec(slow, "select pg_sleep(10)")
		if err == nil || slow.Err() == nil {
			return fmt.Errorf("a statement that is canceled: %w", err)
		}
		return m.reconnect(ctx)
	case 5: // the client vanishes in a transaction
		if _, err := m.conn.Exec(ctx, "begin; set local role none; select 1"); err != nil {
			return err
		}
		_ = m.conn.PgConn().Conn().Close()
		return m.reconnect(ctx)
	case 6:
		_, err := m.conn.Exec(ctx, "reset all; reset role; reset session authorization")
		m.role = m.user
		return err
	case 7: // another role, which stays
		if m.user == "bob" {
			return m.check(ctx, m.conn)
		}
		m.role = "bob"
		if m.user == "postgres" && m.draw.IntN(2) == 0 {
			_, err := m.conn.Exec(ctx, "set session authorization bob")
			return err
		}
		_, err := m.conn.Exec(ctx, "set role bob")
		return err
	}
	m.role = m.user
	if err := m.conn.DeallocateAll(ctx); err != nil {
		return err
	}
	_, err := m.conn.Exec(ctx, "discard all")
	return err
}

func (m *mixed) reconnect(ctx context.Context) (err error) {
	_ = m.conn.Close(ctx)
	cfg, err := pgx.ParseConfig(m.g.dsn(""))
	if err != nil {
		return err
	}
	cfg.User, cfg.Password, cfg.Database = m.user, m.password, m.database
	m.conn, err = pgx.ConnectConfig(ctx, cfg)
	m.role = m.user
	return err
}

// TestPairsNeverMix has clients of several pairs do all that could leave a server connection in the wrong hands. Each
// asks all the time whose server connection it has, and which rows a policy lets it see.
func TestPairsNeverMix(t *testing.T) {
	db := startRoles(t, pgtest.SCRAM)
	for _, database := range []string{"shop", "till"} {
		setUp, err := pgx.Connect(t.Context(), db.DSN(db.Superuser(), db.Password(), database))
		if err != nil {
			t.Fatal(err)
		}
		for _, sql := range []string{
			"create table notes (owner text)", "insert into notes values ('ada'), ('bob')", "alter table notes enable row level security",
			"create policy own on notes using (owner = current_user)", "grant select on notes to public",
		} {
			do(t, setUp, sql)
		}
		_ = setUp.Close(t.Context())
	}
	db.Exec(t, "grant bob to ada")
	secrets := secretsOf(t, db)
	secrets["postgres"] = db.Password()
	for _, mode := range []pgproxy.Mode{pgproxy.Transaction, pgproxy.Session} {
		t.Run(mode.String(), func(t *testing.T) {
			g := startPairs(t, db, secrets, func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) {
				c.Mode = mode
				if pc.Limits.MaxSize = 1; mode == pgproxy.Session {
					pc.Limits.MaxSize = 2
				}
			})
			var work errgroup.Group
			for i := range 10 {
				m := &mixed{g: g, user: "ada", password: "ada's secret", database: []string{"shop", "till"}[i/5], draw: rand.New(rand.NewPCG(uint64(i), 1))}
				switch i % 5 {
				case 2, 3:
					m.user, m.password = "bob", "bob's secret"
				case 4:
					m.user, m.password = "postgres", db.Password()
				}
				m.conn, m.role = g.login(t, m.user, m.password, m.database), m.user
				work.Go(func() error {
					for n := range 60 {
						if err := m.step(bounded(t)); err != nil {
							return fmt.Errorf("client %d (%s, %s), step %d: %w", i, m.user, m.database, n, err)
						}
					}
					ctx := bounded(t)
					return errors.Join(m.check(ctx, m.conn), m.conn.Close(ctx))
				})
			}
			if err := work.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
}
