package pgproxy

import (
	"errors"
	"fmt"
	"slices"

	"github.com/headpond/headpond/pgwire"
)

// credentials answer a server's requests during one login.
type credentials struct {
	cfg    *PostgresConfig
	secret *loginSecret        // of the client's user; nil = it is not known, or the login is the upstream's
	scram  *pgwire.ScramClient // once the server has asked for SCRAM
}

// methodError means that the server wants a login in a way that the gateway does not support, or not allow.
type methodError struct{ error }

func (e methodError) Unwrap() error { return e.error }

// errCleartext is why the gateway does not send a password.
var errCleartext = methodError{errors.New("it asks for the password in clear text on a connection without TLS: " +
	"set tls for the upstream, or let the server use scram-sha-256")}

// unset reports whether the upstream's login has no password. PostgreSQL accepts no empty one, and would only say that it is wrong.
func (c *credentials) unset() bool { return c.cfg.LoginAs == AsUpstream && c.cfg.Password == "" }

// cleartext returns the password, for a server that asks for it. safe says that nobody can read it on its way.
func (c *credentials) cleartext(safe bool) (string, error) {
	switch {
	case !safe && !c.cfg.AllowCleartext:
		return "", errCleartext
	case c.unset():
		return "", c.refusal(noPassword, hintUnset)
	case c.cfg.LoginAs == AsUpstream:
		return c.cfg.Password, nil
	case c.secret == nil || c.secret.password == "":
		return "", c.unknown("the password in clear text", hintPassword)
	}
	return c.secret.password, nil
}

// md5 returns the answer to a request for md5.
func (c *credentials) md5(salt [4]byte) (string, error) {
	switch {
	case c.unset():
		return "", c.refusal(noPassword, hintUnset)
	case c.cfg.LoginAs == AsUpstream:
		return pgwire.MD5Response(pgwire.MD5Secret(c.cfg.User, c.cfg.Password), salt), nil
	case c.secret == nil || c.secret.md5 == "":
		return "", c.unknown("md5", hintPassword)
	}
	return pgwire.MD5Response(c.secret.md5, salt), nil
}

// begin returns the mechanism of SCRAM and its first message. binding is that of the TLS connection, nil if it has none.
func (c *credentials) begin(offered []string, binding []byte) (mechanism string, message []byte, err error) {
	switch {
	case c.cfg.ChannelBinding == BindingDisable:
		binding = nil
	case c.cfg.ChannelBinding == BindingRequire && (binding == nil || !slices.Contains(offered, pgwire.MechanismSCRAMPlus)):
		return "", nil, errNotBound
	}
	switch {
	case c.unset():
		return "", nil, c.refusal(noPassword, hintUnset)
	case c.cfg.LoginAs == AsUpstream:
		c.scram = pgwire.NewScramClient(c.cfg.Password)
	case c.secret == nil || c.secret.password == "" && c.secret.keys.IsZero():
		return "", nil, c.unknown(pgwire.MechanismSCRAM, hintScram)
	case c.secret.password != "":
		c.scram = pgwire.NewScramClient(c.secret.password)
	default:
		c.scram = pgwire.NewScramClientFromKeys(c.secret.keys)
	}
	if mechanism, message, err = c.scram.First(offered, binding); err != nil {
		err = methodError{fmt.Errorf("it does not offer %s: %w", pgwire.MechanismSCRAM, err)}
	}
	return mechanism, message, err
}

// errNotBound is why the gateway does not log in, or does not use a connection.
var errNotBound = methodError{errors.New("channel binding is required (channel_binding: require), and it does not use " + pgwire.MechanismSCRAMPlus +
	" with a certificate that allows that: see ssl and pg_hba.conf there")}

// allows checks a request of the server's, or the end of the login: they must not go around channel binding that is required.
func (c *credentials) allows(kind pgwire.AuthKind) error {
	bound := kind == pgwire.AuthSASL || c.scram != nil // begin has chosen it
	if c.cfg.ChannelBinding == BindingRequire && !bound {
		return errNotBound
	}
	return nil
}

// proceed returns the last message of SCRAM. It computes for milliseconds if the password is known.
func (c *credentials) proceed(data []byte) ([]byte, error) {
	answer, err := c.scram.Continue(data)
	if errors.Is(err, pgwire.ErrScramKeys) {
		err = c.refusal("the SCRAM-SHA-256 secret that the gateway has is not the server's", hintSecret)
	}
	return answer, err
}

// Hints of refusals. They are for the operator.
const (
	hintTrust    = "Have the gateway's listener ask for passwords, by users_file or auth_query, or let the server trust the gateway. For methods cert and peer users_file may have the user's password."
	hintScram    = "Let users_file or auth_query of the gateway's listener have the user's password or the SCRAM-SHA-256 secret of pg_authid.rolpassword."
	hintPassword = "Let users_file of the gateway's listener have the user's password, or let the server use scram-sha-256."
	hintUnset    = "Set password in the upstream's postgres section, or the environment variable or file that it names, and reload or restart the gateway."
	hintSecret   = "Copy the secret from pg_authid.rolpassword of this server again, or use auth_query: a password that is set again, or on another server, has another secret."
)

// noPassword is why the gateway does not log in as the user of an upstream without a password.
const noPassword = "the server asks for a password, and the upstream has none"

// refusal is the error about a login for which the gateway lacks what the server asks for. To the client it is an error
// of the server.
func (c *credentials) refusal(why, hint string) error {
	text := fmt.Sprintf("upstream %q: the gateway cannot log in as user %q: %s", c.cfg.Name, c.cfg.User, why)
	return &loginError{errorResponse(pgwire.SeverityFatal, pgwire.StateInvalidPassword, text, hint), AsClient, true}
}

// unknown is the refusal of a login for which the server asks for what the gateway does not know.
func (c *credentials) unknown(asked, hint string) error {
	switch {
	case c.secret == nil:
		return c.refusal("the server asks for a password, and the gateway's listener has asked the client for none (trust, cert or peer)", hintTrust)
	case c.secret.keys.IsZero():
		return c.refusal(fmt.Sprintf("the server asks for %s, and the gateway has the user's md5 secret only", asked), hint)
	}
	return c.refusal(fmt.Sprintf("the server asks for %s, and the gateway has the user's SCRAM-SHA-256 secret only", asked), hint)
}
