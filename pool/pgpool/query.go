package pgpool

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// The methods in this file are those of pgx.Conn and pgxpool.Pool, so that code written for either, such as that of sqlc
// and pgx.BeginFunc, takes a Pool. Each call leases a connection of its own: settings, temporary tables and
// prepared statements of one are not those of the next. For these use [Pool.With].

// Exec runs sql on a connection. See [Pool.With] for the errors: a BEGIN without its end is ErrUnfinished.
func (p *Pool) Exec(ctx context.Context, sql string, args ...any) (tag pgconn.CommandTag, err error) {
	err = p.With(ctx, func(conn *pgx.Conn) error {
		var err error
		tag, err = conn.Exec(ctx, sql, args...)
		return err
	})
	return tag, err
}

// CopyFrom copies rows into a table, as pgx.Conn.CopyFrom does, and returns their number.
func (p *Pool) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (n int64, err error) {
	err = p.With(ctx, func(conn *pgx.Conn) error {
		var err error
		n, err = conn.CopyFrom(ctx, table, columns, rows)
		return err
	})
	return n, err
}

// Query runs a query. The rows hold a connection until they are closed, which pgx's functions that collect rows do,
// and so does a Next that returns false. Like pgx's, they are never nil, and Err returns the error again.
func (p *Pool) Query(ctx context.Context, sql string, args ...any) (rows pgx.Rows, err error) {
	h, err := p.hold(ctx, func(conn *pgx.Conn) (err error) {
		rows, err = conn.Query(ctx, sql, args...)
		return err
	})
	if err != nil {
		return failedRows{err: err}, err
	}
	return &leasedRows{Rows: rows, held: h}, nil
}

// QueryRow runs a query for one row. The row holds a connection until its Scan, which returns the errors, so Scan
// must be called.
func (p *Pool) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	var row pgx.Row
	h, err := p.hold(ctx, func(conn *pgx.Conn) error {
		row = conn.QueryRow(ctx, sql, args...)
		return nil
	})
	if err != nil {
		return failedRows{err: err}
	}
	return &leasedRow{row: row, held: h}
}

// SendBatch sends queries in one round trip, as pgx.Conn.SendBatch does. The results hold a connection until their Close, which
// must be called, and which returns the first error; those of a batch that begins a transaction, until its Commit or Rollback.
func (p *Pool) SendBatch(ctx context.Context, batch *pgx.Batch) pgx.BatchResults {
	var results pgx.BatchResults
	h, err := p.hold(ctx, func(conn *pgx.Conn) error {
		results = conn.SendBatch(ctx, batch)
		return nil
	})
	if err != nil {
		return pgx.FailedBatchResults(batch, err)
	}
	if tx := results.Tx(); tx != nil {
		return &begunBatch{BatchResults: results, tx: &leasedTx{Tx: tx, held: h}}
	}
	return &leasedBatch{BatchResults: results, held: h}
}

// Begin is BeginTx with the server's defaults.
func (p *Pool) Begin(ctx context.Context) (pgx.Tx, error) { return p.BeginTx(ctx, pgx.TxOptions{}) }

// BeginTx begins a transaction, which holds a connection until its Commit or Rollback. Use it by pgx.BeginFunc, which
// calls one of them in any case:
//
//	err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error { … })
func (p *Pool) BeginTx(ctx context.Context, options pgx.TxOptions) (tx pgx.Tx, err error) {
	h, err := p.hold(ctx, func(conn *pgx.Conn) (err error) {
		tx, err = conn.BeginTx(ctx, options)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &leasedTx{Tx: tx, held: h}, nil
}

// hold leases a connection for what begin makes. It gives the connection back after an error, and closes it if begin panics, as code for
// arguments and tracing may.
func (p *Pool) hold(ctx context.Context, begin func(conn *pgx.Conn) error) (held, error) {
	l, err := p.Acquire(ctx)
	if err != nil {
		return held{}, err
	}
	returned := false
	defer func() {
		if !returned {
			l.Discard()
		}
	}()
	err = begin(l.Conn())
	if returned = true; err != nil {
		l.Release()
	}
	return held{l, false}, err
}

// held is a lease whose end may be reported more than once.
type held struct {
	lease Lease
	over  bool
}

func (h *held) end() {
	if !h.over {
		h.over = true
		h.lease.Release()
	}
}

type leasedRows struct {
	pgx.Rows
	held
}

func (r *leasedRows) Close() {
	defer r.end() // also if it panics
	r.Rows.Close()
}

func (r *leasedRows) Next() bool {
	if r.Rows.Next() {
		return true
	}
	r.Close()
	return false
}

// Scan closes the rows after an error, as pgx does.
func (r *leasedRows) Scan(dest ...any) error {
	err := r.Rows.Scan(dest...)
	if err != nil {
		r.Close()
	}
	return err
}

// Values closes the rows after an error, as pgx does.
func (r *leasedRows) Values() ([]any, error) {
	values, err := r.Rows.Values()
	if err != nil {
		r.Close()
	}
	return values, err
}

type leasedRow struct {
	row pgx.Row
	held
}

func (r *leasedRow) Scan(dest ...any) error {
	defer r.end() // also if it panics
	return r.row.Scan(dest...)
}

type leasedBatch struct {
	pgx.BatchResults
	held
}

func (b *leasedBatch) Close() error {
	defer b.end() // also if it panics: it calls functions of the batch
	return b.BatchResults.Close()
}

// begunBatch are the results of a batch that begins a transaction.
type begunBatch struct {
	pgx.BatchResults
	tx *leasedTx
}

func (b *begunBatch) Tx() pgx.Tx { return b.tx }

type leasedTx struct {
	pgx.Tx
	held
}

func (t *leasedTx) Commit(ctx context.Context) error {
	defer t.end()
	return t.Tx.Commit(ctx)
}

func (t *leasedTx) Rollback(ctx context.Context) error {
	defer t.end()
	return t.Tx.Rollback(ctx)
}

// failedRows are the rows, or the row, of a query without a connection.
type failedRows struct {
	pgx.Rows // nil, for methods that newer versions of pgx add
	err      error
}

func (failedRows) Close()                                       {}
func (r failedRows) Err() error                                 { return r.err }
func (failedRows) CommandTag() pgconn.CommandTag                { return pgconn.CommandTag{} }
func (failedRows) FieldDescriptions() []pgconn.FieldDescription { return nil }
func (failedRows) Next() bool                                   { return false }
func (r failedRows) Scan(...any) error                          { return r.err }
func (r failedRows) Values() ([]any, error)                     { return nil, r.err }
func (failedRows) RawValues() [][]byte                          { return nil }
func (failedRows) Conn() *pgx.Conn                              { return nil }
func (failedRows) TypeMap() *pgtype.Map                         { return nil }
