package jwt

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// Bounds of a Verifier.
const (
	// MaxToken bounds a token, in bytes.
	MaxToken      = 16 << 10
	maxRemembered = 1024    // tokens, in each of two halves
	maxTried      = 4       // keys, for a token that names none
	maxGiven      = 4 << 10 // a claim that is passed on, in bytes
	maxUser       = 256     // a user's name, in bytes: logs and metrics have it
)

// Errors of Verify. The text of an error that wraps the first two is for the client.
var (
	// ErrInvalid is the error of a token that proves nothing.
	ErrInvalid = errors.New("the token is not valid")
	// ErrInsufficient is the error of a valid token without a claim that is required.
	ErrInsufficient = errors.New("the token does not permit this")
	// ErrUnknown is the error of a token whose key is not known yet; see Await.
	ErrUnknown = errors.New("the key of the token is not known")
	// ErrUnread is the error of a token that may be valid: the keys could not be read.
	ErrUnread = errors.New("the keys of tokens could not be read")
)

// Config is what a Verifier demands and returns.
type Config struct {
	Issuer    string        // required
	Audiences []string      // of which a token must have one; empty = any
	User      string        // claim with the name of the user
	Leeway    time.Duration // for clocks that differ
	Require   []Claim       // all of them
	Give      []string      // claims whose values Verify returns
}

// Claim is a claim and the value that it must have. If the token has a list, or words with spaces between as in scope, one of
// them must be the value.
type Claim struct {
	Name, Value string
	Any         bool // any value will do
}

// Identity is what a token says. It is immutable.
type Identity struct {
	User  string
	Given []string // values of Config.Give, of lists with commas between; "" = the token has no such claim
}

// Verifier verifies tokens, and remembers those that it has verified last. Methods are safe for concurrent use.
type Verifier struct {
	cfg  Config
	keys *Keys

	mu         sync.Mutex // held for a few instructions
	new, older map[[sha256.Size]byte]verified
}

// verified is a valid token.
type verified struct {
	identity *Identity
	by       *keySet // a token is verified again when the keys have changed
	from, to time.Time
}

// New makes a Verifier of tokens that are signed with keys.
func New(cfg Config, keys *Keys) *Verifier { return &Verifier{cfg: cfg, keys: keys} }

// Verify returns what a token says. It does not wait.
func (v *Verifier) Verify(token []byte) (*Identity, error) {
	outdated := v.keys.Refresh()
	identity, _, err := v.by(v.keys.current.Load(), token)
	if err == nil && outdated {
		return nil, ErrUnknown
	}
	return identity, err
}

// by verifies a token with the keys of set, which may be nil. If the error is ErrUnknown, key is the token's.
func (v *Verifier) by(set *keySet, token []byte) (_ *Identity, key unknownKey, _ error) {
	if len(token) > MaxToken {
		return nil, key, invalid("it is too long")
	}
	id, now := sha256.Sum256(token), time.Now()
	if known, ok := v.recall(id); ok && known.by == set {
		return known.identity, key, within(now, known.from, known.to)
	}
	known, name, err := v.verify(string(token), set, now)
	if err != nil {
		if key.name = name; name == "" {
			key.token = id
		}
		return nil, key, err
	}
	v.remember(id, known)
	return known.identity, key, nil
}

// Await verifies a token for which Verify has returned ErrUnknown, once the keys have been read. It waits for maxWait at most: after
// that, and if the keys cannot be read, those that are known remain in force, and ErrUnread says that the token's is not one of them. The
// error is that of ctx if it ends before.
func (v *Verifier) Await(ctx context.Context, token []byte) (*Identity, error) {
	limit, stop := context.WithTimeoutCause(ctx, maxWait, errWaited)
	defer stop()
	before, fresh := v.keys.readings(), false
	for {
		identity, key, err := v.by(v.keys.current.Load(), token)
		unknown := errors.Is(err, ErrUnknown)
		switch {
		case !unknown && (err != nil || !v.keys.Refresh()):
			return identity, err
		case unknown && fresh:
			v.keys.setAbsent(key)
			fallthrough
		case unknown && v.keys.isAbsent(key):
			return nil, invalid("its key is not one of its issuer's")
		}
		if fresh, err = v.keys.wait(limit, before); err != nil {
			break
		}
	}
	identity, _, err := v.by(v.keys.current.Load(), token)
	switch {
	case !errors.Is(err, ErrUnknown):
		return identity, err
	case ctx.Err() != nil:
		return nil, ctx.Err()
	}
	return nil, ErrUnread
}

func invalid(why string) error { return fmt.Errorf("%w: %s", ErrInvalid, why) }

// verify verifies a token that is not remembered. key is the name of its key.
func (v *Verifier) verify(token string, set *keySet, now time.Time) (known verified, key string, err error) {
	parsed, err := jwt.ParseSigned(token, algorithms)
	if err != nil || len(parsed.Headers) != 1 {
		return known, "", invalid("it is malformed, or its algorithm is not one that is accepted")
	}
	h := parsed.Headers[0]
	keys := set.find(h.KeyID, jose.SignatureAlgorithm(h.Algorithm))
	if len(keys) == 0 {
		return known, h.KeyID, ErrUnknown
	}
	var standard registered
	var claims map[string]json.RawMessage
	err = invalid("its signature is wrong")
	if h.KeyID == "" {
		err = ErrUnknown // by a key that is not known, for all that one can tell
	}
	for _, key := range keys[:min(len(keys), maxTried)] {
		if parsed.Claims(key.Key, &json.RawMessage{}) == nil {
			err = nil
			if parsed.Claims(key.Key, &standard, &claims) != nil {
				err = invalid("its claims are malformed")
			}
			break
		}
	}
	if err == nil {
		known, err = v.accept(&standard, claims, now)
	}
	known.by = set
	return known, h.KeyID, err
}

// registered are the claims that say who has made a token, for whom, and when it is valid (RFC 7519, section 4.1).
type registered struct {
	Issuer    string           `json:"iss"`
	Audience  jwt.Audience     `json:"aud"`
	Expiry    *jwt.NumericDate `json:"exp"`
	NotBefore *jwt.NumericDate `json:"nbf"`
	IssuedAt  *jwt.NumericDate `json:"iat"`
}

// accept checks the claims of a token that the issuer's key has signed.
func (v *Verifier) accept(standard *registered, claims map[string]json.RawMessage, now time.Time) (known verified, err error) {
	switch {
	case standard.Issuer != v.cfg.Issuer:
		return known, invalid("it is from another issuer")
	case standard.Expiry == nil:
		return known, invalid("it has no end (exp)")
	case len(v.cfg.Audiences) > 0 && !slices.ContainsFunc(v.cfg.Audiences, standard.Audience.Contains):
		return known, invalid("it is for another audience")
	}
	known.to = standard.Expiry.Time().Add(v.cfg.Leeway)
	for _, from := range []*jwt.NumericDate{standard.NotBefore, standard.IssuedAt} {
		if at := from.Time().Add(-v.cfg.Leeway); from != nil && at.After(known.from) {
			known.from = at
		}
	}
	if err := within(now, known.from, known.to); err != nil {
		return known, err
	}
	known.identity = &Identity{}
	if user := values(claims[v.cfg.User]); len(user) == 1 {
		known.identity.User = user[0]
	}
	if known.identity.User == "" || len(known.identity.User) > maxUser || !printable(known.identity.User) {
		return known, invalid("it has no claim " + v.cfg.User + " with a name")
	}
	for _, need := range v.cfg.Require {
		if !need.in(claims[need.Name]) {
			return known, fmt.Errorf("%w: its claim %s is missing or has another value", ErrInsufficient, need.Name)
		}
	}
	for _, name := range v.cfg.Give {
		raw := claims[name]
		all := values(raw)
		if len(raw) > 0 && raw[0] == '[' && slices.ContainsFunc(all, func(s string) bool { return strings.Contains(s, ",") }) {
			return known, invalid("its claim " + name + " has a comma in a value, which servers would take for two")
		}
		given := strings.Join(all, ",")
		if !printable(given) {
			return known, invalid("its claim " + name + " is too long, or has control characters")
		}
		known.identity.Given = append(known.identity.Given, given)
	}
	return known, nil
}

// printable reports whether a claim can be passed on in a header.
func printable(s string) bool {
	return len(s) <= maxGiven && utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl) && strings.TrimSpace(s) == s
}

// within returns an error if a token is not valid at a time.
func within(now, from, to time.Time) error {
	switch {
	case now.Before(from):
		return invalid("it is not valid yet")
	case !now.Before(to):
		return invalid("it has expired")
	}
	return nil
}

// values returns the values of a claim: strings as they are, those of a list, numbers and booleans as in JSON; none for
// objects, null and lists in lists.
func values(raw json.RawMessage) (list []string) {
	if len(raw) == 0 {
		return nil
	}
	switch raw[0] {
	case '"':
		var s string
		if json.Unmarshal(raw, &s) == nil {
			list = append(list, s)
		}
	case '[':
		var all []json.RawMessage
		if json.Unmarshal(raw, &all) == nil {
			for _, one := range all {
				if len(one) > 0 && one[0] != '[' {
					list = append(list, values(one)...)
				}
			}
		}
	case '{', 'n':
	default:
		list = append(list, string(raw))
	}
	return list
}

// in reports whether a claim has the value.
func (c Claim) in(raw json.RawMessage) bool {
	all := values(raw)
	switch {
	case c.Any:
		return len(all) > 0
	case slices.Contains(all, c.Value):
		return true
	}
	return len(raw) > 0 && raw[0] == '"' && len(all) == 1 && slices.Contains(strings.Fields(all[0]), c.Value)
}

// recall returns a token that was verified before.
func (v *Verifier) recall(id [sha256.Size]byte) (verified, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	known, ok := v.new[id]
	if !ok {
		if known, ok = v.older[id]; ok {
			v.put(id, known)
		}
	}
	return known, ok
}

func (v *Verifier) remember(id [sha256.Size]byte, known verified) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.put(id, known)
}

// put adds a token. The caller holds mu.
func (v *Verifier) put(id [sha256.Size]byte, known verified) {
	if v.new == nil || len(v.new) >= maxRemembered {
		v.new, v.older = make(map[[sha256.Size]byte]verified), v.new
	}
	v.new[id] = known
}
