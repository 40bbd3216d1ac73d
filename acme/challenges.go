package acme

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	"github.com/caddyserver/certmagic"
	"github.com/mholt/acmez/v3"
	"github.com/mholt/acmez/v3/acme"
)

// The kinds of challenge that are answered.
const (
	typeHTTP = acme.ChallengeTypeHTTP01
	typeTLS  = acme.ChallengeTypeTLSALPN01
	typeDNS  = acme.ChallengeTypeDNS01
)

// maxToken bounds tokens, which authorities make of some 22 to 43 characters.
const maxToken = 256

// maxReads bounds the files that are read concurrently for requests, which anybody may send.
const maxReads = 16

// challenges has the answers to an authority that checks names: those of this gateway's orders, and
// through the storage those of other gateways that share it, since the authority may reach any of
// them. It is safe for concurrent use.
type challenges struct {
	storage certmagic.Storage
	reads   chan struct{} // maxReads

	mu      sync.Mutex
	pending map[string]acme.Challenge // by the key in the storage
}

// newChallenges returns challenges without any.
func newChallenges(storage certmagic.Storage) *challenges {
	return &challenges{storage: storage, reads: make(chan struct{}, maxReads), pending: map[string]acme.Challenge{}}
}

// solver answers challenges of one kind for acmez.
type solver struct{ *challenges }

var _ acmez.Solver = solver{}

// keyOf returns the storage's key for a challenge: by token or by name, whichever the authority's
// request has. ok is false for text that is neither and must not become a path.
func keyOf(kind, text string) (key string, ok bool) {
	if text == "" || len(text) > maxToken || strings.Contains(text, "..") {
		return "", false
	}
	for _, c := range text {
		if letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'; !letter && !strings.ContainsRune("-_.", c) {
			return "", false
		}
	}
	return "challenges/" + kind + "/" + text + ".json", true
}

func keyOfChallenge(c acme.Challenge) (string, error) {
	text := c.Token
	if c.Type == typeTLS {
		text = c.Identifier.Value
	}
	key, ok := keyOf(c.Type, text)
	if !ok {
		return "", fmt.Errorf("the authority's challenge has the token %.40q for %.80q, which cannot be", c.Token, c.Identifier.Value)
	}
	return key, nil
}

// Present implements acmez.Solver.
func (s solver) Present(ctx context.Context, c acme.Challenge) error {
	key, err := keyOfChallenge(c)
	if err != nil {
		return err
	}
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.pending[key] = c
	s.mu.Unlock()
	return s.storage.Store(ctx, key, text)
}

// CleanUp implements acmez.Solver.
func (s solver) CleanUp(ctx context.Context, c acme.Challenge) error {
	key, err := keyOfChallenge(c)
	if err != nil {
		return nil //nolint:nilerr // it was not presented
	}
	s.mu.Lock()
	delete(s.pending, key)
	s.mu.Unlock()
	return s.storage.Delete(context.WithoutCancel(ctx), key)
}

// find returns the challenge of that kind for a token or name.
func (c *challenges) find(kind, text string) (found acme.Challenge, ok bool) {
	key, ok := keyOf(kind, text)
	if !ok {
		return found, false
	}
	c.mu.Lock()
	found, ok = c.pending[key]
	c.mu.Unlock()
	if ok {
		return found, true
	}
	select {
	case c.reads <- struct{}{}:
		defer func() { <-c.reads }()
	default:
		return found, false
	}
	data, err := c.storage.Load(context.Background(), key)
	return found, err == nil && json.Unmarshal(data, &found) == nil
}

// keyAuthorization returns the answer to an http-01 challenge, "" if there is none for that token.
func (c *challenges) keyAuthorization(token string) string {
	found, _ := c.find(typeHTTP, token)
	return found.KeyAuthorization
}

// handshake returns the TLS settings for the handshake of a tls-alpn-01 challenge, nil if there is
// none for the name.
func (c *challenges) handshake(name string) *tls.Config {
	found, ok := c.find(typeTLS, name)
	if !ok {
		return nil
	}
	cert, err := acmez.TLSALPN01ChallengeCert(found)
	if err != nil {
		return nil
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*cert}, NextProtos: []string{acmez.ACMETLS1Protocol}, SessionTicketsDisabled: true,
	}
}
