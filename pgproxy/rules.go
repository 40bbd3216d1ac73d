package pgproxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgproxy/hba"
	"github.com/headpond/headpond/pgwire"
)

// methodOf is the method of an Auth.
var methodOf = map[Auth]hba.Method{AuthSCRAM: hba.SCRAM, AuthMD5: hba.MD5, AuthTrust: hba.Trust}

// verifyRules returns the problems of the rules.
func (c *Config) verifyRules() (errs []error) {
	for i := range c.Rules {
		r := &c.Rules[i]
		var err error
		switch {
		case c.Members == nil && r.AsksMembers():
			err = errNoMembers
		case r.Method == hba.Peer && !hasPeerUser:
			err = errors.New("method peer is not supported on this operating system")
		case r.ClientCert != hba.AnyCert && c.TLS != nil && c.TLS.ClientAuth < tls.VerifyClientCertIfGiven:
			err = errors.New("it needs certificates of clients, and the listener's TLS asks for none (client_ca)")
		case r.Map != "" && !c.Maps.Has(r.Map):
			err = fmt.Errorf("there is no map %q", r.Map)
		case c.ChannelBinding == BindingRequire && (r.Method == hba.MD5 || r.Method == hba.Password):
			err = fmt.Errorf("method %s has no channel binding, which is required", r.Method)
		case r.Method.AsksPassword() && len(c.Users) == 0 && c.AuthQuery == (AuthQuery{}):
			err = fmt.Errorf("method %s needs users", r.Method)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", r.Where, err))
		}
	}
	return errs
}

// ruleOf returns the rule for a client that asks for a login, which decides how it authenticates.
func (g *startup) ruleOf(ctx context.Context, login *Login) (*hba.Rule, error) {
	if len(g.set.Rules) == 0 {
		return &g.set.always, nil
	}
	req := hba.Request{TLS: g.tls != nil, Database: login.Database, User: login.User, Replication: login.Replication == "true"}
	from, direct := g.accepted.Client()
	switch addr := from.(type) {
	case *net.UnixAddr:
		req.Local = direct
	case *net.TCPAddr:
		ip, _ := netip.AddrFromSlice(addr.IP)
		req.Addr = ip.Unmap()
	}
	r, err := g.findRule(ctx, &req)
	switch {
	case err != nil:
		return nil, err
	case r == nil:
		return nil, g.unruled(&req, nil)
	case r.Method == hba.Reject:
		return nil, g.unruled(&req, r)
	case r.Method == hba.Trust && r.ClientCert != hba.VerifyFull && g.set.isConsole(login) && !r.NamesDatabase(login.Database):
		return nil, &refusal{code: pgwire.StateInvalidAuthorization, reason: listener.ReasonAuthFailed, cause: errors.New(r.Where),
			message: fmt.Sprintf("the console %q does not trust clients without a rule for it", login.Database),
			hint:    "A rule with method trust that names the database of the console allows that; all does not."}
	}
	return r, nil
}

// isConsole reports whether a client asks for the console.
func (s *settings) isConsole(login *Login) bool {
	return s.Console.Backend != nil && login.Database == s.Console.Database && login.Replication == ""
}

// unruled is the refusal of a client by a rule, or because there is none for it, in PostgreSQL's words.
func (g *startup) unruled(req *hba.Request, by *hba.Rule) error {
	where, encryption := "[local]", "no encryption"
	switch addr, direct := g.accepted.Client(); addr := addr.(type) {
	case *net.TCPAddr:
		where = addr.IP.String()
	case nil:
		where = "unknown"
	default:
		if !direct {
			where = addr.String()
		}
	}
	if req.TLS {
		encryption = "SSL encryption"
	}
	r := &refusal{code: pgwire.StateInvalidAuthorization, reason: listener.ReasonAuthFailed}
	var what string
	if req.Replication {
		what = fmt.Sprintf("host %q, user %q, %s", where, req.User, encryption)
	} else {
		what = fmt.Sprintf("host %q, user %q, database %q, %s", where, req.User, req.Database, encryption)
	}
	switch {
	case by != nil && req.Replication:
		r.message, r.cause = "pg_hba.conf rejects replication connection for "+what, errors.New(by.Where)
	case by != nil:
		r.message, r.cause = "pg_hba.conf rejects connection for "+what, errors.New(by.Where)
	case req.Replication:
		r.message = "no pg_hba.conf entry for replication connection from " + what
	default:
		r.message = "no pg_hba.conf entry for " + what
	}
	return r
}
