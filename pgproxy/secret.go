package pgproxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/headpond/headpond/pgwire"
	"github.com/headpond/headpond/pool"
)

// secretConn is the server connection on which a backend runs its listeners' AuthQuery. It is in no pool, and has
// settings of its own: no client must decide what the query reads.
type secretConn struct {
	turns  *pool.Pool[struct{}] // has one element, which a query that runs holds: the sources of clients take turns
	use    chan struct{}        // full while a query runs. Guards the fields below
	srv    *server              // nil = none is open
	opened time.Duration        // when srv was, by clock
	expiry *time.Timer          // closes srv at its end
	failed error                // why the server could not be asked at failedAt; nil = it could
	when   time.Duration        // of failed, by clock
}

// secretTimeout is for a query, with the login before it; the server ends a query after this time, too. A variable for tests.
var secretTimeout = 5 * time.Second

// Other bounds of the queries.
const (
	secretLife  = time.Minute // of a connection, so that the next one goes to an endpoint that is healthy then
	secretPause = time.Second // after a failure, in which nobody waits for the server
	maxSecrets  = 100         // that run or wait; beyond that those of the source with the most fail at once
)

// newTurns returns the turns of a secretConn.
func newTurns() *pool.Pool[struct{}] {
	turns, err := pool.New(pool.Config[struct{}]{
		Name: "secrets", Open: func(context.Context) (none struct{}, err error) { return none, nil }, Close: func(struct{}) {},
		Limits: pool.Limits{MaxSize: 1, MaxWaiters: maxSecrets - 1, IdleTimeout: -1},
	})
	if err != nil {
		panic(err) // the Config is valid
	}
	return turns
}

// turnParker waits for the turn of a client of a source. Anybody can ask for users that do not exist, before any password is
// checked: a source that asks for many delays its own clients, and no others.
type turnParker struct {
	source uint64
	woken  chan struct{} // has room for one
}

var _ pool.FlowParker = turnParker{}

// withSource returns a context for a Secret that a client of a source waits for.
func withSource(ctx context.Context, source uint64) context.Context {
	return pool.WithParker(ctx, turnParker{source, make(chan struct{}, 1)})
}

// Flow implements pool.FlowParker.
func (p turnParker) Flow() (flow uint64, until time.Time) { return p.source, until }

// Park implements pool.Parker.
func (p turnParker) Park(ctx context.Context) error {
	select {
	case <-p.woken:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Unpark implements pool.Parker.
func (p turnParker) Unpark() { p.woken <- struct{}{} }

// errSecretsWait says nothing about the user.
var errSecretsWait = fmt.Errorf("%d queries wait already", maxSecrets)

var _ SecretSource = (*Postgres)(nil)

// Secret implements SecretSource. It asks one user after the other, on a connection that does not count for
// Limits.MaxSize.
func (b *Postgres) Secret(ctx context.Context, sql, user string) (string, error) {
	secret, err := b.waitForSecret(ctx, sql, user)
	if err != nil {
		return "", fmt.Errorf("%w: upstream %q: %w", ErrAuthQuery, b.cfg.Name, err)
	}
	return secret, nil
}

// waitForSecret runs the query when it is its turn. The query does not end with ctx: the next one needs the connection.
func (b *Postgres) waitForSecret(ctx context.Context, sql, user string) (string, error) {
	c := &b.secrets
	turn, err := c.turns.Acquire(ctx)
	switch {
	case errors.Is(err, pool.ErrTooManyWaiters):
		return "", errSecretsWait
	case err != nil:
		return "", fmt.Errorf("no answer in time: %w", cmp.Or(context.Cause(ctx), err))
	}
	defer turn.Release()
	c.use <- struct{}{}
	defer func() { <-c.use }()
	if c.failed != nil && clock()-c.when < secretPause {
		return "", c.failed
	}
	secret, err, failed := b.askSecret(sql, user)
	if c.failed = nil; failed {
		c.failed, c.when = err, clock()
	}
	return secret, err
}

// askSecret runs the query. failed means that the server could not be asked. If a connection that was open before turns
// out to be dead, another one is opened.
func (b *Postgres) askSecret(sql, user string) (secret string, err error, failed bool) {
	late := fmt.Errorf("no answer within %v: %w", secretTimeout, context.DeadlineExceeded)
	ctx, stop := context.WithTimeoutCause(context.Background(), secretTimeout, late)
	defer stop()
	for {
		srv, reused, err := b.secretServer(ctx)
		if err != nil {
			return "", err, true
		}
		secret, err, fit := b.askSecretOn(ctx, srv, sql, user)
		if err == nil || fit || !reused || ctx.Err() != nil {
			return secret, err, !fit
		}
	}
}

// askSecretOn runs the query on a connection, and keeps the connection if it is fit for another one.
func (b *Postgres) askSecretOn(ctx context.Context, srv *server, sql, user string) (secret string, err error, fit bool) {
	kept := false
	defer func() {
		if !kept {
			b.secrets.expiry.Stop()
			closeServer(srv)
		}
	}()
	secret, err = srv.secret(ctx, sql, user)
	fit = err == nil || errors.Is(err, errSecret)
	if kept = fit && b.life.Err() == nil; kept {
		srv.releaseBuffers()
		b.secrets.srv = srv
	}
	return secret, err, fit
}

// secretServer returns the open connection, if its endpoint is still one of the backend's, or opens one. A retired
// backend opens one for each query.
func (b *Postgres) secretServer(ctx context.Context) (srv *server, reused bool, err error) {
	c := &b.secrets
	if srv = c.srv; srv != nil && slices.Contains(b.up.EndpointNames(), srv.endpoint) && clock()-c.opened < secretLife {
		c.srv = nil
		return srv, true, nil
	}
	b.dropSecretServer()
	switch {
	case b.life.Err() != nil && !b.retired.Load():
		return nil, false, errors.New("the upstream is closed")
	case b.cfg.User == "":
		return nil, false, errors.New("the upstream has no user of its own")
	}
	cfg := b.secretConfig()
	if srv, err = b.connectApart(ctx, &cfg); err != nil {
		return nil, false, err
	}
	c.opened = clock()
	c.expiry = time.AfterFunc(secretLife, b.closeSecretServer)
	return srv, false, nil
}

// secretConfig has settings that hold whatever ALTER ROLE and ALTER DATABASE say, which clients may be allowed: the
// query finds only what its text names with a schema, and the server ends it when nobody waits any more.
func (b *Postgres) secretConfig() PostgresConfig {
	cfg := b.cfg.own()
	cfg.Params = slices.Clone(cfg.Params)
	for _, p := range []pgwire.Param{
		{Name: "search_path", Value: "pg_catalog, pg_temp"},
		{Name: "statement_timeout", Value: strconv.FormatInt(secretTimeout.Milliseconds(), 10)},
	} {
		cfg.Params = putParam(cfg.Params, p)
	}
	return cfg
}

// dropSecretServer closes the connection. The caller has use.
func (b *Postgres) dropSecretServer() {
	if c := &b.secrets; c.srv != nil {
		c.expiry.Stop()
		closeServer(c.srv)
		c.srv = nil
	}
}

// closeSecretServer closes the connection if its time or the backend's is over. It waits for a query that runs.
func (b *Postgres) closeSecretServer() {
	c := &b.secrets
	c.use <- struct{}{}
	defer func() { <-c.use }()
	if b.life.Err() != nil || clock()-c.opened >= secretLife {
		b.dropSecretServer()
	}
}

// errSecret means that the query has not returned a user's secret. The connection is as good as before.
var errSecret = errors.New("the query returned no secret")

// secret runs an AuthQuery's SQL.
func (s *server) secret(ctx context.Context, sql, user string) (secret string, err error) {
	s.w.Send(&pgwire.Parse{Query: sql})
	s.w.Send(&pgwire.Bind{Params: [][]byte{[]byte(user)}})
	s.w.Send(&pgwire.Execute{})
	s.w.Send(&pgwire.Sync{})
	done := s.bounded(ctx, 2*secretTimeout) // ctx ends first
	var bad error
	rows := 0
	err = s.answer(func(m *pgwire.DataRow) {
		switch rows++; {
		case rows > 1:
			bad = fmt.Errorf("%w: more than one row", errSecret)
		case len(m.Values) != 2:
			bad = fmt.Errorf("%w: %d columns, want the user's name and the secret", errSecret, len(m.Values))
		case string(m.Values[0]) != user:
			bad = fmt.Errorf("%w: the first column is not the user's name", errSecret)
		default:
			secret = string(m.Values[1])
		}
	})
	if !done() { // the error, if there is one, is that of a deadline
		err = cmp.Or(context.Cause(ctx), err, net.ErrClosed)
	}
	if ordinary(err) {
		err = fmt.Errorf("%w: %w", errSecret, withoutValues(err))
	}
	if err == nil {
		err = bad
	}
	if err != nil {
		return "", err
	}
	return secret, nil
}

// withoutValues returns an error of the server for the log. The text of many errors has values in it, which may be
// secrets; that of others is about the query's text or about the server.
func withoutValues(err error) error {
	said, _ := errors.AsType[*pgwire.ErrorResponse](err)
	if len(said.Code) == 5 && slices.Contains([]string{"08", "28", "3D", "42", "53", "57"}, said.Code[:2]) {
		return said
	}
	return fmt.Errorf("SQLSTATE %s; the server's log has the error, whose text may show a secret", said.Code)
}
