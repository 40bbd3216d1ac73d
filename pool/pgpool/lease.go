package pgpool

import (
	"github.com/jackc/pgx/v5"

	"github.com/headpond/headpond/pool"
)

// txIdle is the transaction status of ReadyForQuery outside a transaction.
// Source: https://www.postgresql.org/docs/current/protocol-message-formats.html
const txIdle = 'I'

// Lease is the right to use one connection until Release or Discard, exactly one of which must be called, once: a second
// call panics. It belongs to one goroutine.
type Lease struct {
	l pool.Lease[*pgx.Conn]
}

// Conn returns the connection. It must not be used after Release or Discard.
func (l Lease) Conn() *pgx.Conn { return l.l.Value() }

// Reused reports whether the connection had been leased before, so that it may have gone stale.
func (l Lease) Reused() bool { return l.l.Reused() }

// Release gives the connection back. One that is closed, busy or in a transaction is
// closed instead, as by Discard.
func (l Lease) Release() { l.release() }

// Discard closes the connection and frees its slot for another.
func (l Lease) Discard() {
	if conn := l.Conn(); conn.IsClosed() {
		select {
		case <-conn.PgConn().CleanupDone():
		default:
			// closeConn waits, for closeTimeout at most, until pgx has ended the
			// cancelled query. The caller is not made to wait; the pool's Drain is.
			l.l.DiscardAsync()
			return
		}
	}
	l.l.Discard()
}

// release reports whether the connection was fit for reuse.
func (l Lease) release() bool {
	pc := l.Conn().PgConn()
	if pc.IsClosed() || pc.IsBusy() || pc.TxStatus() != txIdle {
		l.Discard()
		return false
	}
	l.l.Release()
	return true
}
