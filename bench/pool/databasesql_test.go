package pool_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"testing"
)

// databaseSQL is the pool of database/sql, with connections that do nothing.
func databaseSQL(tb testing.TB, size int) func(func()) {
	db := sql.OpenDB(connector{})
	db.SetMaxOpenConns(size)
	db.SetMaxIdleConns(size)
	tb.Cleanup(func() { _ = db.Close() })
	ctx := context.Background()
	use := func(f func()) {
		c, err := db.Conn(ctx)
		if err != nil {
			tb.Error(err)
			return
		}
		f()
		_ = c.Close() // releases it
	}
	fill(size, use)
	return use
}

var errNoQueries = errors.New("a connection that is only leased")

type connector struct{}

func (connector) Connect(context.Context) (driver.Conn, error) { return idleConn{}, nil }
func (connector) Driver() driver.Driver                        { return connector{} }
func (connector) Open(string) (driver.Conn, error)             { return idleConn{}, nil }

type idleConn struct{}

func (idleConn) Prepare(string) (driver.Stmt, error) { return nil, errNoQueries }
func (idleConn) Begin() (driver.Tx, error)           { return nil, errNoQueries }
func (idleConn) Close() error                        { return nil }
