package console

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
	"github.com/headpond/headpond/upstream"
)

// ErrConfig is wrapped by New's errors.
var ErrConfig = errors.New("console: invalid configuration")

// Config describes a Console. All but Admins or Viewers, LocalOnly and Version are required.
type Config struct {
	// Database is the name of the database that clients request.
	Database string
	// Admins are the users who may do everything, Viewers those who may SHOW. All others are refused.
	Admins, Viewers []string
	// LocalOnly refuses clients of other machines: nothing has proved who they are.
	LocalOnly bool
	// Version is the gateway's, for SHOW VERSION.
	Version string
	// Gateway is what the Console shows and controls.
	Gateway Gateway
}

// Console is a pgproxy.Backend. Its methods may be called from any goroutine.
type Console struct{ cfg Config }

var _ pgproxy.Backend = (*Console)(nil)

// New returns a Console. Errors wrap ErrConfig.
func New(cfg Config) (*Console, error) {
	switch {
	case cfg.Database == "":
		return nil, fmt.Errorf("%w: Database is missing", ErrConfig)
	case cfg.Gateway == nil:
		return nil, fmt.Errorf("%w: Gateway is missing", ErrConfig)
	case len(cfg.Admins)+len(cfg.Viewers) == 0:
		return nil, fmt.Errorf("%w: there are neither Admins nor Viewers", ErrConfig)
	}
	return &Console{cfg}, nil
}

// Serve implements pgproxy.Backend.
func (b *Console) Serve(ctx context.Context, c *pgproxy.Client) error {
	s, resumed := c.Session.(*session)
	if !resumed {
		if refused, err := b.refuse(c); refused {
			return err
		}
		s = newSession(c)
		c.Session = s
	}
	return s.serve(ctx, resumed)
}

// refuse ends the session of a client that may not use the console.
func (b *Console) refuse(c *pgproxy.Client) (refused bool, err error) {
	var message, hint string
	code := pgwire.StateInsufficientPrivilege
	switch {
	case c.Replication != "":
		code, message = pgwire.StateFeatureNotSupported, "the console has no replication connections"
	case b.role(c.User) == nobody:
		message, hint = "not allowed", fmt.Sprintf("User %q is neither in admins nor in viewers of the listener's console.", clip(c.User))
	case b.cfg.LocalOnly && !local(c.Conn):
		message, hint = "not allowed", "With auth: trust the console is for clients of this machine."
	default:
		return false, nil
	}
	c.Logger().Warn("console refused", "error", message, "hint", hint)
	c.CountError(listener.ReasonAuthFailed)
	return true, c.Fatal(code, message, hint)
}

// local reports whether a client is on this machine.
func local(conn net.Conn) bool {
	if conn.LocalAddr().Network() == "unix" {
		return true
	}
	addr, ok := conn.RemoteAddr().(*net.TCPAddr)
	return ok && addr.IP.IsLoopback()
}

// Status implements pgproxy.Backend. A console has no endpoints.
func (b *Console) Status() upstream.Status { return upstream.Status{Name: b.Name()} }

// Name implements pgproxy.Backend. No upstream has such a name.
func (b *Console) Name() string { return "console:" + b.cfg.Database }

// Drain implements pgproxy.Backend. There is nothing to close.
func (b *Console) Drain(context.Context) error { return nil }

// role is what a user may do.
type role int

const (
	nobody role = iota
	viewer
	admin
)

func (b *Console) role(user string) role {
	switch {
	case slices.Contains(b.cfg.Admins, user):
		return admin
	case slices.Contains(b.cfg.Viewers, user):
		return viewer
	}
	return nobody
}
