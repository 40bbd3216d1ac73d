package pgproxy

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"

	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgproxy/hba"
	"github.com/headpond/headpond/pgwire"
)

// Auth is the way in which clients authenticate.
type Auth int

// The methods. With AuthMD5, users whose secret is a SCRAM verifier are asked for SCRAM, as
// PostgreSQL does.
const (
	AuthSCRAM Auth = iota // SCRAM-SHA-256; the default
	AuthMD5
	AuthTrust // believe every name; for loopback and Unix sockets
)

// String returns the name the configuration uses.
func (a Auth) String() string {
	switch a {
	case AuthSCRAM:
		return "scram-sha-256"
	case AuthMD5:
		return "md5"
	case AuthTrust:
		return "trust"
	}
	return fmt.Sprintf("auth(%d)", int(a))
}

// maxAuthBody bounds the messages of a client that is not authenticated, in bytes, as
// PostgreSQL does (PG_MAX_AUTH_TOKEN_LENGTH).
const maxAuthBody = 65535

// authenticate makes the client prove that it is the user, as the rule for it demands, and adds AuthenticationOk.
func (g *startup) authenticate(ctx context.Context, login *Login) error {
	r, err := g.ruleOf(ctx, login)
	if err == nil {
		err = g.checkCertificate(r)
	}
	if err != nil {
		return err
	}
	switch {
	case r.Method.AsksPassword():
		err = g.provePassword(ctx, login, r.Method)
	case r.Method == hba.Peer:
		err = g.checkPeer(login.User, r)
	}
	if err == nil {
		err = g.checkCertName(login.User, r)
	}
	if err != nil {
		return err
	}
	if r.Method == hba.Peer || r.ClientCert == hba.VerifyFull && !r.Method.AsksPassword() {
		g.secret = g.set.ownSecret(login)
	}
	g.w.Send(&pgwire.Authentication{Kind: pgwire.AuthOK})
	return nil
}

// provePassword makes the client prove that it knows the user's password. All users, also those that do not exist, go
// through the same steps.
func (g *startup) provePassword(ctx context.Context, login *Login, method hba.Method) error {
	user := login.User
	if err := g.mayTry(user); err != nil {
		return err
	}
	g.r.MaxBody = maxAuthBody
	defer func() { g.r.MaxBody = 0 }()
	cred, from, err := g.credentialOf(ctx, user)
	if err != nil {
		return err
	}
	var keys pgwire.ScramKeys
	switch {
	case method == hba.Password:
		keys, err = g.askCleartext(ctx, user, cred)
	case method == hba.MD5 && g.asksMD5(cred):
		err = g.askMD5(ctx, user, cred)
	default:
		keys, err = g.askSCRAM(ctx, user, cred)
	}
	switch {
	case err == nil:
		if login.asClient() {
			g.secret = newLoginSecret(cred, keys)
		}
		return nil
	case errors.Is(err, pgwire.ErrAuth):
		if from != nil {
			g.set.answers.forget(user, from)
			if from.unfit != nil {
				err = fmt.Errorf("%w: auth_query returned %w", pgwire.ErrAuth, from.unfit)
			}
		}
		return &refusal{code: pgwire.StateInvalidPassword, reason: listener.ReasonAuthFailed, cause: err,
			message: fmt.Sprintf("password authentication failed for user %q", user)}
	case errors.Is(err, pgwire.ErrChannelBinding):
		return &refusal{code: pgwire.StateInvalidAuthorization, reason: listener.ReasonAuthFailed, cause: err,
			message: "SCRAM channel binding check failed",
			hint:    "The client's TLS connection does not end at the gateway, or something between them changes what the gateway offers."}
	case errors.Is(err, pgwire.ErrMalformed), errors.Is(err, pgwire.ErrLength), errors.Is(err, pgwire.ErrTooLarge):
		return &refusal{code: pgwire.StateProtocolViolation, reason: listener.ReasonProtocol, cause: err,
			message: "invalid authentication message"}
	}
	return err
}

// asksMD5 reports whether the listener's auth md5 means md5 for a user. Users that do not exist are asked for what most
// are asked for: with an AuthQuery that is SCRAM, as on a PostgreSQL server.
func (g *startup) asksMD5(cred *credential) bool {
	if cred == nil {
		return g.set.answers == nil
	}
	return cred.md5 != ""
}

// ask sends a request and returns the body of the client's answer.
func (g *startup) ask(request []byte) ([]byte, error) {
	_, _ = g.w.Write(request)
	if err := g.w.Flush(); err != nil {
		return nil, err
	}
	h, err := g.r.Next()
	if err != nil {
		return nil, err
	}
	if h.Type != pgwire.TypePassword {
		return nil, fmt.Errorf("%w: message of type %q in place of a password", pgwire.ErrMalformed, h.Type)
	}
	return g.r.Body()
}

// requestCleartext asks for a password in clear text.
var requestCleartext = (&pgwire.Authentication{Kind: pgwire.AuthCleartext}).Append(nil)

// askCleartext returns the client's keys, zero if the user has an md5 secret. It computes as long for such a user, and for one
// that does not exist.
func (g *startup) askCleartext(ctx context.Context, user string, cred *credential) (keys pgwire.ScramKeys, err error) {
	body, err := g.ask(requestCleartext)
	if err != nil {
		return keys, err
	}
	var m pgwire.PasswordMessage
	if err := m.Decode(body); err != nil {
		return keys, err
	}
	known := cred.hasScram()
	verifier := g.mockVerifier(user)
	if known {
		verifier = cred.verifier()
	}
	err = g.try(ctx, user, slowly, func() error {
		found, err := verifier.Keys(m.Password)
		switch {
		case m.Password == "":
			return fmt.Errorf("%w: empty password", pgwire.ErrAuth)
		case cred == nil:
			return fmt.Errorf("%w: unknown user", pgwire.ErrAuth)
		case known:
			keys = found
			return err
		case subtle.ConstantTimeCompare([]byte(pgwire.MD5Secret(user, m.Password)), []byte(cred.md5)) != 1:
			return fmt.Errorf("%w: wrong password", pgwire.ErrAuth)
		}
		return nil
	})
	return keys, err
}

func (g *startup) askMD5(ctx context.Context, user string, cred *credential) error {
	request := &pgwire.Authentication{Kind: pgwire.AuthMD5}
	_, _ = rand.Read(request.Salt[:])
	body, err := g.ask(request.Append(nil))
	if err != nil {
		return err
	}
	var m pgwire.PasswordMessage
	if err := m.Decode(body); err != nil {
		return err
	}
	secret := "md5 of nobody" // costs what a real one costs
	if cred != nil {
		secret = cred.md5
	}
	return g.try(ctx, user, quickly, func() error {
		ok := pgwire.VerifyMD5(secret, request.Salt, m.Password)
		switch {
		case cred == nil:
			return fmt.Errorf("%w: unknown user", pgwire.ErrAuth)
		case !ok:
			return fmt.Errorf("%w: wrong password", pgwire.ErrAuth)
		}
		return nil
	})
}

// askSCRAM goes through the whole exchange also for users that do not exist.
// It returns the client's keys.
func (g *startup) askSCRAM(ctx context.Context, user string, cred *credential) (keys pgwire.ScramKeys, err error) {
	var verifier pgwire.ScramVerifier
	known := cred.hasScram()
	if known {
		verifier = cred.verifier()
	} else {
		verifier = g.mockVerifier(user)
	}
	offer, plus, err := g.scramOffer()
	if err != nil {
		return keys, err
	}
	body, err := g.ask(offer)
	if err != nil {
		return keys, err
	}
	var initial pgwire.SASLInitialResponse
	if err := initial.Decode(body); err != nil {
		return keys, err
	}
	if plus && initial.Mechanism != pgwire.MechanismSCRAMPlus {
		return keys, fmt.Errorf("%w: SASL mechanism %q was not offered", pgwire.ErrMalformed, initial.Mechanism)
	}
	exchange := pgwire.NewScramServer(verifier, g.binding)
	first, err := exchange.First(initial.Mechanism, initial.Data)
	if err != nil {
		return keys, err
	}
	challenge := pgwire.Authentication{Kind: pgwire.AuthSASLContinue, Data: first}
	body, err = g.ask(challenge.Append(g.w.AvailableBuffer()))
	if err != nil {
		return keys, err
	}
	var final []byte
	err = g.try(ctx, user, quickly, func() (err error) {
		final, err = exchange.Final(body)
		return err
	})
	if err != nil {
		if !known && errors.Is(err, pgwire.ErrAuth) {
			return keys, whyUnknown(cred)
		}
		return keys, err
	}
	g.w.Send(&pgwire.Authentication{Kind: pgwire.AuthSASLFinal, Data: final})
	return exchange.Keys(), nil
}

// mockVerifier is the verifier of a user that does not exist. It has the number of iterations that most users have.
func (g *startup) mockVerifier(user string) pgwire.ScramVerifier {
	iterations := g.set.iterations.most()
	if g.set.answers != nil {
		iterations = cmp.Or(g.proxy.asked.most(), iterations)
	}
	return pgwire.MockScramVerifier(g.proxy.mockSecret[:], user, cmp.Or(iterations, pgwire.ScramIterations))
}

// whyUnknown is the reason, for the log, why no password lets a user in by SCRAM.
func whyUnknown(cred *credential) error {
	if cred != nil {
		return fmt.Errorf("%w: the user has %w", pgwire.ErrAuth, errMD5Secret)
	}
	return fmt.Errorf("%w: unknown user", pgwire.ErrAuth)
}
