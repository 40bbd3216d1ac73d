package jwt

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// Bounds of Keys.
const (
	maxKeys    = 100
	minRSABits = 2048 // RFC 7518, section 3.3
	// readTime bounds one reading of the keys.
	readTime = 10 * time.Second
	// retryAfter is the least time between two readings because the keys are old.
	retryAfter = 10 * time.Second
	// unknownBurst readings because of tokens whose keys are unknown may follow each other at once, and then one each
	// unknownEvery: without a bound, invented tokens would be requests to the issuer.
	unknownBurst = 5
	unknownEvery = time.Second
	// absentFor is how long a key counts as none of the issuer's, once a reading has not had it: a client with an old token
	// asks again and again.
	absentFor = 5 * time.Second
	maxAbsent = 1024 // of such keys
	maxKeyID  = 256  // bytes of their names
	// maxWait bounds how long a token waits for its key.
	maxWait = 2 * time.Second
	// leastPause is the least time without a reading after which keys are outdated.
	leastPause = 2 * time.Second
)

// algorithms are those that tokens may be signed with.
var algorithms = []jose.SignatureAlgorithm{
	jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512, jose.ES256, jose.ES384, jose.ES512, jose.EdDSA,
}

// Keys are the public keys of an issuer, which change now and then. They are read when a token is to be verified: for the
// first time, when they are older than Every, and when a token names a key that they do not have. Tokens wait for a reading only if their
// key is not known, or if none has been tried for twice as long: a key may have been revoked since. All of them wait for the same one. If
// the keys cannot be read, the last ones remain. Readings that fail, and new keys, are logged. Methods are safe for concurrent use.
type Keys struct {
	name   string
	made   time.Time
	logger *slog.Logger
	begin  func(func(context.Context)) bool
	source atomic.Pointer[Source]

	current atomic.Pointer[keySet]
	readAt  atomic.Int64 // when the keys were last read, in nanoseconds of the clock; 0 = never

	failed atomic.Bool // the last reading has failed

	mu      sync.Mutex                   // held for a few instructions; guards the following
	reading chan struct{}                // closed when the reading under way ends; nil = there is none
	tried   bool                         // a reading has begun
	triedAt time.Duration                // when the last one began
	endedAt time.Duration                // when the last one ended
	pause   bool                         // the reading under way is the first after a pause
	begun   int                          // readings so far
	due     time.Duration                // when unknownBurst readings because of unknown keys are allowed again
	absent  map[unknownKey]time.Duration // keys that the last readings did not have, until when that counts
}

// unknownKey is a key that is not known. A token that names none stands for its key, of which nothing else is known: otherwise one that
// is forged would keep out all others.
type unknownKey struct {
	name  string
	token [sha256.Size]byte // if name is ""
}

// Source is where keys are from.
type Source struct {
	// Read returns a JSON Web Key Set.
	Read func(context.Context) ([]byte, error)
	// Every is the age of keys at which they are read again.
	Every time.Duration
}

// keySet is what a source has said. It is immutable.
type keySet struct {
	text []byte
	keys []jose.JSONWebKey
}

// NewKeys makes Keys that have not been read. name is where the keys are from, in errors and logs. begin runs a function on a
// goroutine of the caller's, with a context that ends when the caller stops; it reports false if it has stopped.
func NewKeys(name string, s Source, logger *slog.Logger, begin func(func(context.Context)) bool) *Keys {
	k := &Keys{name: name, made: time.Now(), logger: logger, begin: begin}
	k.SetSource(s)
	return k
}

// SetSource replaces the source. The keys that are known remain until the next reading.
func (k *Keys) SetSource(s Source) { k.source.Store(&s) }

// Refresh begins a reading if the keys are unknown or old. outdated: nobody has read them for long; wait for the reading.
func (k *Keys) Refresh() (outdated bool) {
	at := time.Duration(k.readAt.Load())
	if at != 0 && k.now()-at < k.source.Load().Every {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if now := k.now(); k.reading == nil && (!k.tried || now-k.triedAt >= min(retryAfter, k.source.Load().Every)) {
		k.read(now)
	}
	return k.reading != nil && k.pause
}

// now is the time of the Keys' clock.
func (k *Keys) now() time.Duration { return time.Since(k.made) }

// pending returns the reading that a token with an unknown key waits for, which pending begins if it may: a channel that is closed at
// its end, or nil and the time until one may begin; 0 = none can, as the caller stops. fresh: it began after those that begun had counted,
// so that it has all keys that a token of that time can have.
func (k *Keys) pending(before int) (reading <-chan struct{}, fresh bool, wait time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if now := k.now(); k.reading == nil {
		if wait = k.due - now - (unknownBurst-1)*unknownEvery; wait > 0 {
			return nil, false, wait
		}
		if k.read(now); k.reading != nil {
			k.due = max(k.due, now) + unknownEvery
		}
	}
	return k.reading, k.begun > before, 0
}

// errWaited is the cause of the end of a wait for as long as maxWait.
var errWaited = errors.New("the keys of tokens are not read in time")

// wait waits for the reading that a token with an unknown key needs, or until one may begin; see pending. After an error none has told
// whether the issuer has the key.
func (k *Keys) wait(ctx context.Context, before int) (fresh bool, err error) {
	reading, fresh, pause := k.pending(before)
	if reading == nil && (pause == 0 || k.failed.Load()) {
		return false, ErrUnread
	}
	var allowed <-chan time.Time
	if reading == nil {
		allowed = time.After(pause)
	}
	select {
	case <-reading:
		if k.failed.Load() {
			return false, ErrUnread
		}
		return fresh, nil
	case <-allowed:
		return false, nil
	case <-ctx.Done():
		if errors.Is(context.Cause(ctx), errWaited) { // and not a client that has left, or was in a hurry
			k.mu.Lock()
			k.pause = false // tokens whose keys are known need not wait any more
			k.mu.Unlock()
		}
		return false, ErrUnread
	}
}

// readings returns how many readings have begun.
func (k *Keys) readings() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.begun
}

// setAbsent notes that the issuer does not have a key.
func (k *Keys) setAbsent(key unknownKey) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(key.name) > maxKeyID {
		return
	}
	if k.absent == nil || len(k.absent) >= maxAbsent {
		k.absent = map[unknownKey]time.Duration{}
	}
	k.absent[key] = k.now() + absentFor
}

// isAbsent reports whether the issuer has been found not to have a key, a short while ago.
func (k *Keys) isAbsent(key unknownKey) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.now() < k.absent[key]
}

// read begins a reading. The caller holds mu, and there is no reading under way.
func (k *Keys) read(now time.Duration) {
	k.pause = k.tried && now-k.endedAt > max(2*k.source.Load().Every, leastPause)
	k.tried, k.triedAt = true, now
	k.begun++
	done := make(chan struct{})
	begins := k.begin(func(ctx context.Context) {
		defer func() {
			k.mu.Lock()
			k.reading, k.endedAt = nil, k.now()
			k.mu.Unlock()
			close(done)
		}()
		k.readNow(ctx)
	})
	if begins {
		k.reading = done
	}
}

// readNow replaces the keys by those of the source.
func (k *Keys) readNow(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	text, err := k.source.Load().Read(ctx)
	before := k.current.Load()
	next := before
	if err == nil && (before == nil || !bytes.Equal(before.text, text)) {
		next, err = parseKeys(text)
	}
	if err == nil {
		k.current.Store(next)
		k.readAt.Store(int64(max(k.now(), 1)))
	}
	if err == nil && next != before {
		k.mu.Lock()
		k.absent = nil
		k.mu.Unlock()
	}
	failed := k.failed.Swap(err != nil)
	switch {
	case err != nil && !failed && before == nil:
		k.logger.Warn("the keys of tokens could not be read; tokens cannot be verified until they are", "keys", k.name, "error", err)
	case err != nil && !failed:
		k.logger.Warn("the keys of tokens could not be read again; the old keys stay in force", "keys", k.name, "error", err)
	case err == nil && next != before && len(next.keys) == 0:
		k.logger.Warn("the issuer publishes no key that can verify tokens; all of its tokens are refused", "keys", k.name)
	case err == nil && (failed || next != before):
		k.logger.Info("keys of tokens read", "keys", k.name, "number", len(next.keys))
	}
}

// CheckKeys returns what is wrong with a JSON Web Key Set; nil = nothing.
func CheckKeys(text []byte) error {
	set, err := parseKeys(text)
	if err == nil && len(set.keys) == 0 {
		err = errors.New("no key that can verify tokens: want public keys of type RSA (2048 bits or more), EC (P-256, P-384, P-521) or OKP (Ed25519)")
	}
	return err
}

// parseKeys parses a JSON Web Key Set. It ignores keys that cannot verify tokens (RFC 7517, section 5). The set may have no others: an
// issuer that publishes none has revoked all.
func parseKeys(text []byte) (*keySet, error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(text, &set); err != nil {
		return nil, fmt.Errorf("not a JSON Web Key Set: %w", err)
	}
	if set.Keys == nil {
		return nil, errors.New("not a JSON Web Key Set: it has no \"keys\"")
	}
	if len(set.Keys) > maxKeys {
		return nil, fmt.Errorf("%d keys; at most %d are possible", len(set.Keys), maxKeys)
	}
	s := &keySet{text: text}
	for _, raw := range set.Keys {
		var key jose.JSONWebKey
		if key.UnmarshalJSON(raw) == nil && key.IsPublic() && (key.Use == "" || key.Use == "sig") && suits(key.Key) {
			s.keys = append(s.keys, key)
		}
	}
	return s, nil
}

// suits reports whether a key is of a kind that is used for tokens.
func suits(key any) bool {
	switch key := key.(type) {
	case *rsa.PublicKey:
		return key.N.BitLen() >= minRSABits
	case *ecdsa.PublicKey, ed25519.PublicKey:
		return true
	}
	return false
}

// find returns the keys that a token may be signed with: those with the id, or all if the token names none.
func (s *keySet) find(id string, by jose.SignatureAlgorithm) (found []jose.JSONWebKey) {
	if s == nil { // none have been read
		return nil
	}
	for _, key := range s.keys {
		if (id == "" || key.KeyID == id) && (key.Algorithm == "" || key.Algorithm == string(by)) && signs(key.Key, by) {
			found = append(found, key)
		}
	}
	return found
}

// signs reports whether an algorithm is for keys of this kind.
func signs(key any, by jose.SignatureAlgorithm) bool {
	switch key := key.(type) {
	case *rsa.PublicKey:
		switch by {
		case jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512:
			return true
		}
	case *ecdsa.PublicKey:
		switch by {
		case jose.ES256:
			return key.Curve == elliptic.P256()
		case jose.ES384:
			return key.Curve == elliptic.P384()
		case jose.ES512:
			return key.Curve == elliptic.P521()
		}
	case ed25519.PublicKey:
		return by == jose.EdDSA
	}
	return false
}
