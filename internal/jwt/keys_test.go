package jwt_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
	gojwt "github.com/go-jose/go-jose/v4/jwt"

	"github.com/headpond/headpond/internal/jwt"
)

// TestKeysAfterPause: keys that nobody has asked for in a while may have been revoked, so tokens wait for a reading, once.
func TestKeysAfterPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		public, private, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		set, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: public, KeyID: "good"}}})
		if err != nil {
			t.Fatal(err)
		}
		signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.EdDSA, Key: private}, (&jose.SignerOptions{}).WithHeader("kid", "good"))
		if err != nil {
			t.Fatal(err)
		}
		token, err := gojwt.Signed(signer).Claims(map[string]any{"iss": "i", "sub": "ann", "exp": time.Now().Add(24 * time.Hour).Unix()}).Serialize()
		if err != nil {
			t.Fatal(err)
		}
		var answer atomic.Pointer[[]byte] // nil = none
		answer.Store(&set)
		keys := jwt.NewKeys("keys", jwt.Source{Every: time.Minute, Read: func(context.Context) ([]byte, error) {
			time.Sleep(time.Second)
			if text := answer.Load(); text != nil {
				return *text, nil
			}
			return nil, errors.New("no answer")
		}}, slog.New(slog.DiscardHandler), func(run func(context.Context)) bool { go run(context.Background()); return true })
		v := jwt.New(jwt.Config{Issuer: "i", User: "sub"}, keys)
		check := func(when string, want error) {
			t.Helper()
			if _, err := v.Verify([]byte(token)); !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", when, err, want)
			}
		}
		check("at first", jwt.ErrUnknown)
		_, _ = v.Await(t.Context(), []byte(token))
		check("with keys", nil)
		time.Sleep(90 * time.Second)
		check("with old keys", nil)
		time.Sleep(time.Hour)
		answer.Store(nil)
		for range 2 {
			check("after a pause", jwt.ErrUnknown)
		}
		_, _ = v.Await(t.Context(), []byte(token))
		check("without an answer", nil)
		time.Sleep(time.Hour)
		others := []byte(keySet(t))
		answer.Store(&others)
		_, _ = v.Await(t.Context(), []byte(token))
		check("with another's key", jwt.ErrInvalid)
	})
}
