package pgproxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgwire"
)

// replicationOf returns the startup parameter "replication" as servers understand it: "true" asks for physical
// replication, "database" for logical replication, "" for neither.
func replicationOf(m *pgwire.StartupMessage) (string, error) {
	switch value := m.Get("replication"); strings.ToLower(value) {
	case "database":
		return "database", nil
	case "true", "on", "yes", "1", "t", "y":
		return "true", nil
	case "", "false", "off", "no", "0", "f", "n":
		return "", nil
	default:
		return "", &refusal{code: pgwire.StateInvalidParameterValue, reason: listener.ReasonProtocol,
			message: fmt.Sprintf("invalid value for parameter \"replication\": %q", value),
			hint:    `Valid values are: "false", 0, "true", 1, "database".`}
	}
}

// mayReplicate reports whether a user's clients may make replication connections.
func (c *Config) mayReplicate(user string) bool {
	return slices.Contains(c.ReplicationUsers, user) || slices.Contains(c.ReplicationUsers, "*")
}

// checkReplication refuses replication connections of users that may not make them. The user has been authenticated.
func (c *Config) checkReplication(l *Login) error {
	if l.Replication == "" || c.mayReplicate(l.User) {
		return nil
	}
	return &refusal{code: pgwire.StateInsufficientPrivilege, reason: listener.ReasonProtocol,
		message: fmt.Sprintf("user %q may not make replication connections through the gateway", l.User),
		hint:    "Add the user to \"replication_users\" of the gateway's listener, or connect to the PostgreSQL server directly."}
}

// backendFor returns the backend of a database, nil if there is none. Physical replication covers the whole cluster,
// and libpq then asks for a database "replication": if that is not listed and all databases have the same backend,
// that one is meant.
func (c *Config) backendFor(database, replication string) Backend {
	b := c.backend(database)
	if b != nil || replication != "true" {
		return b
	}
	for _, other := range c.Databases {
		if b != nil && b != other {
			return nil
		}
		b = other
	}
	return b
}

// replicate serves a replication connection. It has a server connection of its own, which is in no pool. Once both
// sides are logged in, everything passes through unchanged.
func (b *Postgres) replicate(ctx context.Context, c *Client) error {
	ctx, end := c.Killable(ctx)
	defer end()
	began := time.Now()
	srv, err := b.connectReplication(ctx, c)
	if err != nil {
		return (&session{b: b, c: c, ctx: ctx}).refuse(err)
	}
	defer closeServer(srv)
	srv.raw.Adopt()
	key := c.Key()
	if pid := srv.key.ProcessID; pid != 0 {
		c.proxy.alias(pid, c)
		defer c.proxy.unalias(pid, c)
		key.ProcessID = pid
	}
	c.OnCancel(func(ctx context.Context) { _ = sendCancel(ctx, &b.cfg, srv) })
	for _, p := range srv.baseline {
		c.Writer.Send((*pgwire.ParameterStatus)(&p))
	}
	c.Writer.Send(&key)
	c.Writer.Send(&pgwire.ReadyForQuery{Status: pgwire.TxIdle})
	c.Logger().Info("replication connection", "upstream", b.cfg.Name, "endpoint", srv.endpoint)
	err = relayRaw(ctx, c, srv)
	c.Access(ctx, slog.String("status", "replication"), slog.Duration("duration", time.Since(began)),
		slog.String("upstream", b.cfg.Name), slog.String("endpoint", srv.endpoint))
	return err
}

// connectReplication connects with the client's startup parameters.
func (b *Postgres) connectReplication(ctx context.Context, c *Client) (*server, error) {
	ctx, stop := context.WithTimeout(ctx, c.proxy.settings.Load().LoginTimeout)
	defer stop()
	cfg := b.configOf(c.Login)
	cfg.Params = slices.Clone(cfg.Params)
	for _, p := range c.Params {
		cfg.Params = putParam(cfg.Params, p)
	}
	cfg.Params = append(cfg.Params, pgwire.Param{Name: "replication", Value: c.Replication})
	return b.connectApart(ctx, &cfg)
}

// connectApart opens a connection that is in no pool, to the endpoint that the next session would try first, or to the
// next one that accepts it. It needs no lease, so that a full pool does not matter. Each endpoint gets a share of the
// time until ctx's deadline, which it must have.
func (b *Postgres) connectApart(ctx context.Context, cfg *PostgresConfig) (*server, error) {
	until, _ := ctx.Deadline()
	var tried []string
	var failed error
	for {
		endpoint, err := b.up.Choose(ctx, tried)
		if err != nil || endpoint == "" {
			return nil, cmp.Or(failed, err)
		}
		left := time.Duration(max(len(b.up.EndpointNames())-len(tried), 1))
		attempt, stop := context.WithTimeout(ctx, time.Until(until)/left)
		srv, err := connect(attempt, cfg, endpoint)
		stop()
		if err == nil || ctx.Err() != nil {
			return srv, err
		}
		tried = append(tried, endpoint)
		if failed == nil { // that of the endpoint which is preferred says most
			failed = err
		}
	}
}

// passBuffered passes on the messages that r has read ahead.
func passBuffered(r *pgwire.Reader, w *pgwire.Writer) error {
	for r.Buffered() > 0 {
		h, err := r.Next()
		if err != nil {
			return err
		}
		w.Header(h.Type, h.Len)
		for r.Left() > 0 {
			chunk, err := r.Chunk()
			if err != nil {
				return err
			}
			_, _ = w.Write(chunk) // Flush reports the error
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	r.Release()
	w.Release()
	return nil
}

// relayRaw copies between a client and its server until one of them ends, ctx ends, or the proxy drains.
func relayRaw(ctx context.Context, c *Client, srv *server) error {
	over := make(chan struct{})
	go func() { // a replication connection may last for ever: a drain ends it
		select {
		case <-over:
			return
		case <-ctx.Done():
		case <-c.Draining():
		}
		_ = c.Conn.SetDeadline(unixPast)
		_ = srv.conn.SetDeadline(unixPast)
	}()
	defer close(over)
	var other fiber.Group
	var fromServer error
	other.Go(func() {
		fromServer = relayOneWay(srv.r, c.Writer, srv.conn, c.Conn)
		_ = c.Conn.SetReadDeadline(unixPast) // buffered messages are still written
	})
	fromClient := relayOneWay(c.Reader, srv.w, c.Conn, srv.conn)
	_ = srv.conn.SetDeadline(unixPast)
	other.Wait()
	switch {
	case c.over(ctx) != nil:
		return fmt.Errorf("cut off: %w", c.over(ctx))
	case c.ends(), fromServer == io.EOF, fromClient == io.EOF: //nolint:errorlint // as CopyTo returns it
		return nil
	}
	return fmt.Errorf("replication connection: %w", errors.Join(fromClient, fromServer))
}

// relayOneWay passes on the messages that r has read ahead, and copies everything after them. It returns why the
// copying has ended.
func relayOneWay(r *pgwire.Reader, w *pgwire.Writer, from fiber.Stream, to net.Conn) error {
	if err := passBuffered(r, w); err != nil {
		return err
	}
	readErr, writeErr := from.CopyTo(to, func(int) {}, nil)
	return cmp.Or(readErr, writeErr)
}
