package pgproxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgproxy/hba"
)

// DefaultLoginTimeout bounds startup and authentication, TLS included. PostgreSQL allows a
// minute (authentication_timeout); a client close to its pooler needs much less.
const DefaultLoginTimeout = 15 * time.Second

// ErrConfig is wrapped by every error about an invalid configuration.
var ErrConfig = errors.New("pgproxy: invalid configuration")

// Config describes a Proxy.
type Config struct {
	// Listener has the limits and logging. If its Protocol is empty, New sets "postgres".
	Listener listener.Config
	// Mode says how long clients keep a server connection; the zero value is Transaction.
	Mode Mode
	// Auth says how clients authenticate; the zero value is AuthSCRAM.
	Auth Auth
	// Rules, if there are any, say how each client authenticates, in place of Auth: the first one that matches. Clients for
	// whom there is none are refused (28000). Their addresses are those of PROXY headers, if there are such. A rule with
	// method Trust applies to the Console only if it has the name of the console's database.
	Rules hba.Rules
	// Maps are the maps of names that Rules refer to.
	Maps hba.Maps
	// Users has the clients' names and secrets; AuthTrust does not use it. With Rules, a Postgres with AsClient logs in with
	// the password, or the md5 secret, of users that a certificate or the operating system has named.
	Users Users
	// AuthQuery, if set, asks a server for the secrets of other users.
	AuthQuery AuthQuery
	// Members is asked which roles a user is a member of, if there are Rules for the members of a role. A *Postgres knows that of
	// its own server. Answers are used for ten seconds. A client for whom it cannot be asked is refused (57P03).
	Members SecretSource
	// Databases maps the database that a client requests to its backend; "*" stands for any other.
	Databases map[string]Backend
	// Console, if it has a Backend, serves the clients that request its database.
	Console Console
	// TLS, if set, is offered to clients. They may still connect without TLS, unless RequireTLS is set.
	TLS *tls.Config
	// RequireTLS refuses clients without TLS before they are asked for a password; it needs TLS. Exempt are clients of
	// Unix sockets, and cancel requests, which libpq before 17 always sends in the clear.
	RequireTLS bool
	// ChannelBinding says whether clients with TLS are offered SCRAM-SHA-256-PLUS. BindingRequire refuses others that would
	// be asked for a SCRAM password, except those of Unix sockets. It needs TLS and AuthSCRAM. Certificates whose signature
	// has no hash function, such as Ed25519's, have no channel binding.
	ChannelBinding ChannelBinding
	// ClientIdleTimeout ends the session of a client that has sent nothing for so long outside a transaction, or up to a second
	// and a quarter later, with 57P05 as a server's idle_session_timeout does. Clients that listen for notifications are no
	// exception. 0 = never.
	ClientIdleTimeout time.Duration
	// MaxClients bounds the clients of each user and of each database; the zero value does not.
	MaxClients ClientLimits
	// ShowStatements makes Sessions show the beginning of the last statement of each client that holds a server
	// connection.
	ShowStatements bool
	// OnState says what happens to session state that cannot follow its client in transaction mode; the zero value is
	// PinState.
	OnState OnState
	// MaxPinned bounds the server connections of a backend that clients may keep for such state; 0 = half of the
	// backend's Limits.MaxSize, and at least 1. Further clients wait, if their statement's text announces such state and they have
	// no server connection, up to the backend's Limits.AcquireTimeout. Otherwise they get an error (53400), and their state is undone.
	MaxPinned int
	// PinAlso lists further kinds of session state that pin their client; it needs PinState. The zero value is none. With
	// all kinds, and CatalogsHidden of each Postgres, a client cannot tell that others share its server connections, but
	// for what the manual lists.
	PinAlso PinAlso
	// ReplicationUsers are the users whose clients may make replication connections, in every Mode; "*" means all
	// users, an empty list none. Each such connection has a server connection of its own, made with the upstream's
	// user, which needs the attribute REPLICATION: its client can copy the whole cluster.
	ReplicationUsers []string
	// FailedLogins bounds how often clients may send wrong passwords.
	FailedLogins FailedLogins
	// LoginTimeout bounds startup and authentication; 0 = DefaultLoginTimeout.
	LoginTimeout time.Duration
	// CancelElsewhere, if set, gets the cancel requests with a key that no client of the Proxy has, and reports whether
	// somebody else's client has it: see Cancel of another Proxy. It runs on the fiber or goroutine of the request's
	// connection, and must return when ctx ends.
	CancelElsewhere func(ctx context.Context, processID uint32, key []byte) bool
}

// Console is a Backend that is no database: it shows and controls the Proxy. "*" among Databases does not stand for it, and
// it has no replication connections.
type Console struct {
	Database string // that clients request; none of Databases
	Backend  Backend
}

// verify returns what is wrong.
func (c *Console) verify(databases map[string]Backend) error {
	switch {
	case c.Backend == nil:
		return nil
	case c.Database == "" || c.Database == "*":
		return fmt.Errorf("a console cannot have the database name %q", c.Database)
	case databases[c.Database] != nil:
		return fmt.Errorf("the console's database %q is among Databases", c.Database)
	}
	return nil
}

// Verify reports every problem of c, joined; each wraps ErrConfig. It does not change c.
func (c Config) Verify() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: listener %q: "+format, append([]any{ErrConfig, c.Listener.Name}, args...)...))
	}
	if c.Mode < Transaction || c.Mode > Statement {
		bad("mode %d is unknown", int(c.Mode))
	}
	if c.Auth < AuthSCRAM || c.Auth > AuthTrust {
		bad("auth %d is unknown", int(c.Auth))
	}
	for _, err := range c.verifyAuth() {
		bad("%w", err)
	}
	if len(c.Databases) == 0 {
		bad("no databases")
	}
	for name, b := range c.Databases {
		if b == nil {
			bad("database %q has no backend", name)
		}
	}
	if err := c.Console.verify(c.Databases); err != nil {
		bad("%w", err)
	}
	if c.RequireTLS && c.TLS == nil {
		bad("RequireTLS needs TLS")
	}
	switch {
	case c.ChannelBinding < BindingPrefer || c.ChannelBinding > BindingRequire:
		bad("ChannelBinding %d is unknown", int(c.ChannelBinding))
	case c.ChannelBinding == BindingRequire && (c.TLS == nil || len(c.Rules) == 0 && c.Auth != AuthSCRAM):
		bad("ChannelBinding: BindingRequire needs TLS and AuthSCRAM")
	}
	if c.OnState < PinState || c.OnState > ResetState {
		bad("OnState %d is unknown", int(c.OnState))
	}
	if c.PinAlso > PinSequences|PinSettingNames|PinTempBuffers {
		bad("PinAlso %#x is unknown", int(c.PinAlso))
	}
	if c.PinAlso != 0 && c.OnState != PinState {
		bad("PinAlso needs OnState: PinState")
	}
	if err := c.FailedLogins.verify(); err != nil {
		bad("%w", err)
	}
	if err := c.MaxClients.verify(); err != nil {
		bad("%w", err)
	}
	if c.MaxPinned < 0 {
		bad("MaxPinned %d is negative", c.MaxPinned)
	}
	if c.LoginTimeout < 0 {
		bad("LoginTimeout %v is negative", c.LoginTimeout)
	}
	if c.ClientIdleTimeout < 0 {
		bad("ClientIdleTimeout %v is negative", c.ClientIdleTimeout)
	}
	return errors.Join(errs...)
}

// verifyAuth returns the problems of what says how clients authenticate.
func (c *Config) verifyAuth() (errs []error) {
	auth := c.Auth
	if len(c.Rules) > 0 { // each has a method of its own
		auth = AuthMD5
		errs = c.verifyRules()
	}
	if len(c.Users) > 0 || c.AuthQuery == (AuthQuery{}) && len(c.Rules) == 0 {
		errs = append(errs, c.Users.problems(auth)...)
	}
	return append(errs, c.AuthQuery.verify(auth)...)
}

// backend returns the backend of a database, nil if there is none.
func (c *Config) backend(database string) Backend {
	if c.Console.Backend != nil && c.Console.Database == database {
		return c.Console.Backend
	}
	if b, ok := c.Databases[database]; ok {
		return b
	}
	return c.Databases["*"]
}
