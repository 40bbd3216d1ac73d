package httpproxy

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/httpwire"
	"github.com/headpond/headpond/internal/jwt"
	"github.com/headpond/headpond/listener"
)

// BearerAuth asks the clients of a route for an API key or a JSON Web Token, in Authorization with the scheme Bearer (RFC
// 6750), or in X-Api-Key or Api-Key, as clients of language models send keys. If a request has several of these fields, they
// must agree.
type BearerAuth struct {
	// Keys are API keys that are accepted; nil = none. Several routes can share them.
	Keys *APIKeys
	// JWT says which tokens are accepted; nil = none. Keys or JWT is required.
	JWT *JWT
	// Realm is the text that clients show to their users. "" = "restricted".
	Realm string
	// UserHeader is a header that gives the server the name of the user; "" = none. A client's own header of that name
	// is dropped, also if it has "_" in place of "-".
	UserHeader string
	// Forward passes the fields with the key or token on to the server. Otherwise they are dropped.
	Forward bool
}

// JWT says which tokens are accepted: those of an issuer, signed with one of its keys by RS, PS or ES with SHA-2, or by EdDSA, that
// have an end and are valid now. Tokens that were verified are remembered, at least 1024 for each route, so that their signature is
// verified once.
type JWT struct {
	// Issuer must be the claim iss of a token. It is required.
	Issuer string
	// Audiences has one of the values of a token's claim aud; empty = any. Without it, tokens that the issuer has made for
	// other services are accepted, too.
	Audiences []string
	// UserClaim is the claim with the name of the user; "" = "sub". A token without it is refused with 401.
	UserClaim string
	// Leeway is how far the issuer's clock may differ. 0 = none.
	Leeway time.Duration
	// Require are claims that a token must have, or it is refused with 403: the value, or it in a list or between spaces, as in
	// scope. AnyValue requires that there is some value.
	Require []FieldMatch
	// Headers are headers that give the server the value of a claim; Value is the claim's name. Those of lists have
	// commas between. A client's own headers of these names are dropped.
	Headers []HeaderField
	// Source names where the keys are from, in logs. It is required. JWTs with the same Source share their keys, which Update
	// keeps.
	Source string
	// ReadKeys returns the issuer's keys as a JSON Web Key Set (RFC 7517); without a key in it, all tokens are refused. It is
	// required, and runs on a goroutine of the Proxy, for ten seconds at most, when tokens come: at first, when the keys are older
	// than Refresh, and for tokens with an unknown key, five times at once and then each second.
	ReadKeys func(context.Context) ([]byte, error)
	// Refresh is the age at which keys are read again. 0 = five minutes.
	Refresh time.Duration
	// Logger gets when keys are read, and when they cannot be read; nil = slog.Default().
	Logger *slog.Logger
}

// Bounds of JWT.
const (
	maxClaims   = 32
	maxClaim    = 256 // bytes of a name or value
	maxLeeway   = time.Hour
	maxAPIKey   = 4 << 10
	defaultUser = "sub"
)

// verifyBearer checks BearerAuth.
func (r Route) verifyBearer() error {
	b := r.BearerAuth
	if b == nil {
		return nil
	}
	headers := []string{b.UserHeader}
	switch {
	case r.ForwardAuth != nil:
		return errors.New("BasicAuth, BearerAuth and ForwardAuth exclude each other")
	case b.Keys == nil && b.JWT == nil:
		return errors.New("BearerAuth without Keys and JWT")
	case b.JWT != nil:
		if err := b.JWT.verify(); err != nil {
			return fmt.Errorf("JWT: %w", err)
		}
		for _, f := range b.JWT.Headers {
			headers = append(headers, f.Name)
		}
	}
	return r.verifyIdentity(b.Realm, headers...)
}

func (j *JWT) verify() error {
	switch {
	case j.Issuer == "":
		return errors.New("no issuer")
	case j.Source == "" || j.ReadKeys == nil:
		return errors.New("no keys")
	case j.Leeway < 0 || j.Leeway > maxLeeway || j.Refresh < 0:
		return fmt.Errorf("want a leeway of at most %v, and no negative time", maxLeeway)
	case len(j.Audiences) > maxClaims || len(j.Require) > maxClaims || len(j.Headers) > maxClaims:
		return fmt.Errorf("at most %d audiences, claims and headers each", maxClaims)
	}
	names := append([]string{j.Issuer, j.UserClaim}, j.Audiences...)
	for _, m := range j.Require {
		if m.Match != ValueExact {
			return fmt.Errorf("the claim %.40q can only be compared as a whole", m.Name)
		}
		names = append(names, m.Name, m.Value)
	}
	for _, f := range j.Headers {
		if f.Value == "" {
			return fmt.Errorf("the header %.40q has no claim", f.Name)
		}
		names = append(names, f.Value)
	}
	if i := slices.IndexFunc(names, func(s string) bool { return len(s) > maxClaim }); i >= 0 {
		return fmt.Errorf("%.40q has more than %d bytes", names[i], maxClaim)
	}
	return nil
}

// bearer is a prepared BearerAuth. It is immutable.
type bearer struct {
	keys     *APIKeys
	verifier *jwt.Verifier // nil = no tokens
	headers  []string      // for the claims that the verifier gives, in their order
}

// newBearer prepares b. next gets the keys that remain in use. The caller holds tables.
func (p *Proxy) newBearer(b *BearerAuth, next map[string]*jwt.Keys) *bearer {
	made := &bearer{keys: b.Keys}
	j := b.JWT
	if j == nil {
		return made
	}
	source := jwt.Source{Read: j.ReadKeys, Every: j.Refresh}
	if source.Every == 0 {
		source.Every = jwt.EveryURL
	}
	keys := next[j.Source]
	if keys == nil {
		if keys = p.keys[j.Source]; keys == nil {
			logger := j.Logger
			if logger == nil {
				logger = slog.Default()
			}
			keys = jwt.NewKeys(j.Source, source, logger, p.readers.begin)
		} else {
			keys.SetSource(source)
		}
		next[j.Source] = keys
	}
	cfg := jwt.Config{Issuer: j.Issuer, Audiences: j.Audiences, User: j.UserClaim, Leeway: j.Leeway}
	if cfg.User == "" {
		cfg.User = defaultUser
	}
	for _, m := range j.Require {
		cfg.Require = append(cfg.Require, jwt.Claim{Name: m.Name, Value: m.Value, Any: m.Value == AnyValue})
	}
	for _, f := range j.Headers {
		made.headers, cfg.Give = append(made.headers, f.Name), append(cfg.Give, f.Value)
	}
	made.verifier = jwt.New(cfg, keys)
	return made
}

// writes reports whether the gateway gives the server a claim in a field of this name.
func (b *bearer) writes(name []byte) bool {
	return slices.ContainsFunc(b.headers, func(own string) bool { return SameHeader(view(name), own) })
}

// identifiesBy reports whether a header stands for the user, whom the gateway knows.
func (a *access) identifiesBy(header string) bool {
	switch {
	case a.users == nil && a.bearer == nil:
		return false
	case strings.EqualFold(header, a.userHeader), header == "authorization":
		return true
	}
	return a.bearer != nil && keyHeader([]byte(header))
}

// keyHeader reports whether a field is X-Api-Key or Api-Key, also with another sign in place of "-".
func keyHeader(name []byte) bool {
	return SameHeader(view(name), "x-api-key") || SameHeader(view(name), "api-key")
}

// presented returns the key or token of the request; nil = it has none that can be used. sent reports whether it has a field
// for one. forward: the server gets the fields, so that all of them must be for the key: in another one the server might read
// a token that nobody has verified.
func (s *session) presented(forward bool) (key []byte, sent bool) {
	const scheme = "bearer "
	for i := range s.req.Fields {
		f := &s.req.Fields[i]
		value := f.Value
		switch {
		case f.Known == httpwire.Authorization:
			if len(value) <= len(scheme) || !httpwire.EqualFold(value[:len(scheme)], scheme) {
				if sent = true; forward {
					return nil, true
				}
				continue
			}
			value = bytes.Trim(value[len(scheme):], " \t")
		case !keyHeader(f.Name):
			continue
		}
		if len(value) == 0 || key != nil && !bytes.Equal(key, value) {
			return nil, true
		}
		key, sent = value, true
	}
	return key, sent
}

// bearer decides whether a client may use a route with BearerAuth. Without mayWait it never waits: done is false if it would
// have to.
func (s *session) bearer(a *access, mayWait bool) (no refusal, done bool) {
	b := a.bearer
	key, sent := s.presented(a.forward)
	if key == nil {
		no = s.unauthorized(a.challenge, "an API key or a token is required")
		if sent {
			no.reason = listener.ReasonAuthFailed
		}
		return no, true
	}
	if b.keys != nil && len(key) <= maxAPIKey {
		if b.keys.file.stale() {
			if !mayWait {
				return no, false
			}
			fiber.Block(b.keys.file.readAgain)
		}
		if user, ok := b.keys.file.load()[sha256.Sum256(key)]; ok {
			s.ex.user = user
			return no, true
		}
	}
	if b.verifier == nil || b.keys != nil && bytes.Count(key, []byte(".")) != 2 {
		return s.denied(a, "unknown API key"), true
	}
	identity, err := b.verifier.Verify(key)
	if errors.Is(err, jwt.ErrUnknown) {
		if !mayWait {
			return no, false
		}
		identity, err = s.verifyLater(b.verifier, key)
	}
	switch {
	case errors.Is(err, errClientLeft):
		return refusal{status: http.StatusServiceUnavailable, clientGone: true}, true
	case errors.Is(err, jwt.ErrUnread):
		return refusal{status: http.StatusServiceUnavailable, reason: listener.ReasonUpstreamUnavailable, why: err.Error(), retryAfter: 1}, true
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return refusal{status: http.StatusServiceUnavailable, reason: listener.ReasonTimeout, why: "the keys of tokens were not read in time", retryAfter: 1}, true
	case err == nil:
		s.ex.user = identity.User
		for i, name := range b.headers {
			if identity.Given[i] != "" {
				s.ex.grants = append(s.ex.grants, grant{name, identity.Given[i]})
			}
		}
		return no, true
	case errors.Is(err, jwt.ErrInsufficient):
		return refusal{
			status: http.StatusForbidden, reason: listener.ReasonDenied, why: err.Error(), challenge: a.challenge + `, error="insufficient_scope"`,
		}, true
	}
	return s.denied(a, err.Error()), true
}

// verifyLater verifies a token once the keys have been read. The error is errClientLeft if the client leaves before, and the
// context's if the request's time ends before.
func (s *session) verifyLater(v *jwt.Verifier, token []byte) (identity *jwt.Identity, err error) {
	ctx, stop := s.wanted()
	defer stop()
	token = bytes.Clone(token) // the client's buffer may change meanwhile
	fiber.Block(func() { identity, err = v.Await(ctx, token) })
	if err != nil && goneIn(ctx) {
		return nil, errClientLeft
	}
	return identity, err
}

// errClientLeft is an error of verifyLater.
var errClientLeft = errors.New("the client has left")

// denied refuses a request with a wrong key or token.
func (s *session) denied(a *access, why string) refusal {
	no := s.unauthorized(a.challenge+`, error="invalid_token"`, why)
	no.reason = listener.ReasonAuthFailed
	return no
}

// unauthorized is an answer with status 401, on a route with LLM in OpenAI's form.
func (s *session) unauthorized(challenge, why string) refusal {
	no := refusal{status: http.StatusUnauthorized, why: why, challenge: challenge}
	if s.ex.target.llm != nil {
		no.header = http.Header{"Content-Type": {"application/json"}}
		no.body = openAIError(why, "invalid_request_error", "invalid_api_key")
	}
	return no
}

// goroutines are goroutines that end when their owner stops.
type goroutines struct {
	mu      sync.Mutex // held for a few instructions
	stopped bool
	ctx     context.Context // made by the first
	cancel  context.CancelFunc
	running sync.WaitGroup
}

// begin runs a function on a goroutine; false = the owner has stopped.
func (g *goroutines) begin(run func(context.Context)) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stopped {
		return false
	}
	if g.ctx == nil {
		g.ctx, g.cancel = context.WithCancel(context.Background())
	}
	g.running.Go(func() { run(g.ctx) })
	return true
}

// stop ends all goroutines and waits for them.
func (g *goroutines) stop() {
	g.mu.Lock()
	g.stopped = true
	if g.cancel != nil {
		g.cancel()
	}
	g.mu.Unlock()
	g.running.Wait()
}
