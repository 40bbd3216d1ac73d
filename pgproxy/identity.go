package pgproxy

import (
	"crypto/x509"
	"errors"
	"fmt"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgproxy/hba"
	"github.com/headpond/headpond/pgwire"
)

// certificate returns the client's certificate, nil if it has none that was verified.
func (g *startup) certificate() *x509.Certificate {
	if g.tls == nil {
		return nil
	}
	if state := g.tls.ConnectionState(); len(state.VerifiedChains) > 0 {
		return state.PeerCertificates[0]
	}
	return nil
}

// checkCertificate refuses a client without the certificate that a rule demands, before it is asked for anything.
func (g *startup) checkCertificate(r *hba.Rule) error {
	if r.ClientCert == hba.AnyCert || g.certificate() != nil {
		return nil
	}
	return &refusal{code: pgwire.StateInvalidAuthorization, reason: listener.ReasonAuthFailed, cause: errors.New(r.Where),
		message: "connection requires a valid client certificate"}
}

// checkCertName refuses a client whose certificate is another user's, if a rule demands the user's.
func (g *startup) checkCertName(user string, r *hba.Rule) error {
	if r.ClientCert != hba.VerifyFull {
		return nil
	}
	name, err := nameIn(g.certificate(), r.ByDN)
	return g.checkName("certificate", name, err, user, r)
}

// checkName refuses a client whose name, which a method has found, must not be that user. err is why it has found none.
func (g *startup) checkName(method, name string, err error, user string, r *hba.Rule) error {
	switch {
	case err != nil:
	case g.set.Maps.Allow(r.Map, name, user):
		return nil
	case r.Map == "":
		err = fmt.Errorf("%s: the client is %q", r.Where, name)
	default:
		err = fmt.Errorf("%s: map %q does not let %q be this user", r.Where, r.Map, name)
	}
	return &refusal{code: pgwire.StateInvalidAuthorization, reason: listener.ReasonAuthFailed, cause: err,
		message: fmt.Sprintf("%s authentication failed for user %q", method, user)}
}

// checkPeer refuses a client of a Unix socket whose operating system's user may not be the one that it asks for.
func (g *startup) checkPeer(user string, r *hba.Rule) (err error) {
	var name string
	conn := g.accepted                                 // so that g stays on the stack
	fiber.Block(func() { name, err = peerUser(conn) }) // it reads a file
	return g.checkName("Peer", name, err, user, r)
}
