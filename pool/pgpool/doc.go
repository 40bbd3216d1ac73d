// Package pgpool pools PostgreSQL connections (*pgx.Conn) for one process.
//
//	db, err := pgpool.New(pgpool.Config{ConnString: "postgres://app:secret@127.0.0.1/app"})
//	if err != nil {
//		return err
//	}
//	defer db.Close()
//	var n int
//	err = db.QueryRow(ctx, "select count(*) from users").Scan(&n)
//
// For several statements on one connection use [Pool.With], and for a transaction pgx.BeginFunc(ctx, db, fn), or with
// the connection of With in place of db. Code that sqlc generates for pgx takes a Pool.
//
// # Ownership of a connection
//
// The function given to [Pool.With], or the holder of a [Lease], has the connection to itself until
// it returns or releases; nothing made from it (rows, a transaction, a notification wait) may be
// used afterwards. The pool closes connections; a holder need not call conn.Close, which makes the
// pool open another.
//
// # Reuse
//
// A connection is reused only if it is idle outside a transaction, by the server's last
// ReadyForQuery. One that is closed, still has rows unread, or is in a transaction is closed
// instead, which rolls the transaction back; With then returns [ErrUnfinished], because work that
// seemed done is lost. pgx's cache of prepared statements stays with the connection, so a statement
// is parsed once per connection.
//
// # Cancelled contexts
//
// When a context ends during a query pgx closes the connection and asks the server to
// cancel the query. Such a connection is never reused: the request to cancel could
// arrive late and hit the next query. The pool opens another.
package pgpool
