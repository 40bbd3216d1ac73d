package jwt_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
	josejwt "github.com/go-jose/go-jose/v4/jwt"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/jwt"
)

// issuer publishes keys, each reading of which takes readingTakes, unless it hangs or is down.
type issuer struct {
	mu          sync.Mutex
	set         jose.JSONWebKeySet
	hangs, down bool
	read        int
}

const readingTakes = time.Second / 10

func (i *issuer) Read(ctx context.Context) ([]byte, error) {
	i.mu.Lock()
	i.read++
	hangs, down := i.hangs, i.down
	text, err := json.Marshal(i.set) // as it is when the reading begins
	i.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	time.Sleep(readingTakes)
	if down {
		err = errors.New("down")
	}
	return text, err
}

// readings returns how many there were since the last call.
func (i *issuer) readings() (n int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	n, i.read = i.read, 0
	return n
}

// become changes the issuer.
func (i *issuer) become(hangs, down bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.hangs, i.down = hangs, down
}

// publish replaces the keys by one, whose name it returns with a token that it signs; "" = it has none.
func (i *issuer) publish(t testing.TB, id string) (token []byte) {
	t.Helper()
	key, token := sign(t, id)
	i.mu.Lock()
	defer i.mu.Unlock()
	i.set.Keys = []jose.JSONWebKey{{Key: key.Public(), KeyID: id}}
	return token
}

// sign makes a key, and a token that it signs.
func sign(t testing.TB, id string) (*ecdsa.PrivateKey, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	o := &jose.SignerOptions{}
	if id != "" {
		o = o.WithHeader("kid", id)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: key}, o)
	if err != nil {
		t.Fatal(err)
	}
	token, err := josejwt.Signed(signer).Claims(map[string]any{"iss": "login", "sub": "ann", "exp": time.Now().Add(24 * time.Hour).Unix()}).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return key, []byte(token)
}

// verify does what a session does, and returns how long that took, in fake time.
func verify(v *jwt.Verifier, token []byte) (took time.Duration, err error) {
	began := time.Now()
	if _, err = v.Verify(token); errors.Is(err, jwt.ErrUnknown) {
		_, err = v.Await(context.Background(), token)
	}
	return time.Since(began), err
}

// inBubble runs a test with an issuer, whose first key is "first", in fake time.
func inBubble(t *testing.T, test func(t *testing.T, is *issuer, v *jwt.Verifier, log *conntest.Log)) {
	synctest.Test(t, func(t *testing.T) {
		var is issuer
		var log conntest.Log
		ctx, cancel := context.WithCancel(context.Background())
		var running sync.WaitGroup
		defer running.Wait()
		defer cancel()
		keys := jwt.NewKeys("login", jwt.Source{Read: is.Read, Every: 5 * time.Minute}, log.Logger(), func(run func(context.Context)) bool {
			running.Go(func() { run(ctx) })
			return true
		})
		v := jwt.New(jwt.Config{Issuer: "login", User: "sub"}, keys)
		if took, err := verify(v, is.publish(t, "first")); err != nil || took != readingTakes {
			t.Fatalf("the first token: %v after %v", err, took)
		}
		is.readings()
		test(t, &is, v, &log)
	})
}

// TestRotation: a new key costs its tokens one reading, which all of them share, however soon it follows the last one.
func TestRotation(t *testing.T) {
	inBubble(t, func(t *testing.T, is *issuer, v *jwt.Verifier, _ *conntest.Log) {
		for n, id := range []string{"second", "third", "", "fourth"} {
			token := is.publish(t, id)
			if id == "" {
				if took, err := verify(v, token); err != nil || took != readingTakes {
					t.Fatalf("a token without the name of its key: %v after %v", err, took)
				}
				token = is.publish(t, id) // both are keys without a name
			}
			var all sync.WaitGroup
			for range 100 {
				all.Go(func() {
					if took, err := verify(v, token); err != nil || took != readingTakes {
						t.Errorf("key %d: %v after %v", n, err, took)
					}
				})
			}
			all.Wait()
		}
		if n := is.readings(); n != 5 {
			t.Errorf("%d readings, want 5", n)
		}
	})
}

// TestKeyOfAReadingUnderWay: a key that is published while the keys are being read is found by the next reading.
func TestKeyOfAReadingUnderWay(t *testing.T) {
	inBubble(t, func(t *testing.T, is *issuer, v *jwt.Verifier, _ *conntest.Log) {
		_, forged := sign(t, "forged")
		go func() { _, _ = verify(v, forged) }()
		synctest.Wait() // it is being read
		if took, err := verify(v, is.publish(t, "second")); err != nil || took != 2*readingTakes {
			t.Errorf("%v after %v", err, took)
		}
	})
}

// TestForgedKeys: tokens with invented keys make no more than a reading each second, and do not keep tokens with a new key from being
// accepted within the bound.
func TestForgedKeys(t *testing.T) {
	inBubble(t, func(t *testing.T, is *issuer, v *jwt.Verifier, _ *conntest.Log) {
		const seconds, each = 60, 10
		var all sync.WaitGroup
		defer all.Wait()
		for n := range seconds * each {
			_, forged := sign(t, fmt.Sprint("forged", n))
			all.Go(func() {
				if took, err := verify(v, forged); !errors.Is(err, jwt.ErrInvalid) || took > 2*time.Second {
					t.Errorf("a forged token: %v after %v", err, took)
				}
			})
			if n%100 == 50 {
				good := is.publish(t, fmt.Sprint("good", n))
				all.Go(func() {
					if took, err := verify(v, good); err != nil || took > 2*time.Second {
						t.Errorf("a good token: %v after %v", err, took)
					}
				})
			}
			time.Sleep(time.Second / each)
		}
		if n := is.readings(); n > 5+seconds || n < seconds/2 {
			t.Errorf("%d readings in %d seconds", n, seconds)
		}
	})
}

// TestForgedTokenWithoutAName: a forged token that names no key does not keep those with a new key without a name out.
func TestForgedTokenWithoutAName(t *testing.T) {
	inBubble(t, func(t *testing.T, is *issuer, v *jwt.Verifier, _ *conntest.Log) {
		_, forged := sign(t, "")
		for n := range 3 {
			if took, err := verify(v, forged); !errors.Is(err, jwt.ErrInvalid) || n > 0 && took != 0 {
				t.Errorf("the forged token: %v after %v", err, took)
			}
		}
		if took, err := verify(v, is.publish(t, "")); err != nil || took != readingTakes {
			t.Errorf("a good token: %v after %v", err, took)
		}
	})
}

// TestOldToken: a client that repeats a token of a key that is gone is refused at once, and the issuer is not asked each time.
func TestOldToken(t *testing.T) {
	inBubble(t, func(t *testing.T, is *issuer, v *jwt.Verifier, _ *conntest.Log) {
		_, old := sign(t, "old")
		for n := range 100 {
			took, err := verify(v, old)
			if !errors.Is(err, jwt.ErrInvalid) || n > 0 && took != 0 {
				t.Fatalf("%v after %v", err, took)
			}
			time.Sleep(time.Millisecond)
		}
		if n := is.readings(); n != 1 {
			t.Errorf("%d readings, want 1", n)
		}
	})
}

// TestIssuerIsAway: nobody knows then whether a token with an unknown key is good. Others are accepted.
func TestIssuerIsAway(t *testing.T) {
	inBubble(t, func(t *testing.T, is *issuer, v *jwt.Verifier, _ *conntest.Log) {
		known := is.publish(t, "known")
		if _, err := verify(v, known); err != nil {
			t.Fatal(err)
		}
		is.become(true, false)
		unknown := is.publish(t, "unknown")
		for range 3 {
			if took, err := verify(v, unknown); !errors.Is(err, jwt.ErrUnread) || took != 2*time.Second {
				t.Errorf("it hangs, unknown key: %v after %v", err, took)
			}
			if took, err := verify(v, known); err != nil || took != 0 {
				t.Errorf("it hangs, known key: %v after %v", err, took)
			}
		}
		time.Sleep(time.Hour)
		for n, want := range []time.Duration{2 * time.Second, 0} { // the first one learns that the keys cannot be read again
			if took, err := verify(v, known); err != nil || took != want {
				t.Errorf("token %d after an hour: %v after %v", n, err, took)
			}
		}
		is.become(false, true)
		time.Sleep(10 * time.Second) // the reading that hangs has ended
		for range 30 {
			if took, err := verify(v, unknown); !errors.Is(err, jwt.ErrUnread) || took > readingTakes {
				t.Errorf("it is down, unknown key: %v after %v", err, took)
			}
		}
		is.become(false, false)
		time.Sleep(time.Second)
		if took, err := verify(v, unknown); err != nil || took > readingTakes {
			t.Errorf("it is back: %v after %v", err, took)
		}
	})
}

// TestImpatientClient: after a pause, a token whose key has been revoked is not accepted because another client, which has waited for
// the keys, has left.
func TestImpatientClient(t *testing.T) {
	inBubble(t, func(t *testing.T, is *issuer, v *jwt.Verifier, _ *conntest.Log) {
		revoked := is.publish(t, "revoked")
		if _, err := verify(v, revoked); err != nil {
			t.Fatal(err)
		}
		is.publish(t, "new")
		time.Sleep(time.Hour)
		for _, leave := range []func() (context.Context, context.CancelFunc){
			func() (context.Context, context.CancelFunc) { return context.WithCancel(context.Background()) },
			func() (context.Context, context.CancelFunc) { return context.WithTimeout(context.Background(), 1) },
		} {
			ctx, cancel := leave()
			if _, err := v.Verify(revoked); !errors.Is(err, jwt.ErrUnknown) {
				t.Errorf("before the keys are read: %v", err)
			}
			go func() { _, _ = v.Await(ctx, revoked) }()
			synctest.Wait()
			cancel()
			time.Sleep(time.Millisecond)
		}
		if _, err := verify(v, revoked); !errors.Is(err, jwt.ErrInvalid) {
			t.Errorf("the revoked token: %v", err)
		}
	})
}

// TestNoKeys: an issuer that publishes no keys has revoked those that it had. One that answers something else has not.
func TestNoKeys(t *testing.T) {
	inBubble(t, func(t *testing.T, is *issuer, v *jwt.Verifier, log *conntest.Log) {
		known := is.publish(t, "known")
		if _, err := verify(v, known); err != nil {
			t.Fatal(err)
		}
		is.mu.Lock()
		is.set.Keys = nil // "keys": null
		is.mu.Unlock()
		time.Sleep(time.Hour)
		if _, err := verify(v, known); err != nil || !strings.Contains(log.String(), "the old keys stay in force") {
			t.Errorf("without a list of keys: %v\n%s", err, log.String())
		}
		is.mu.Lock()
		is.set.Keys = []jose.JSONWebKey{}
		is.mu.Unlock()
		time.Sleep(time.Hour)
		if _, err := verify(v, known); !errors.Is(err, jwt.ErrInvalid) || !strings.Contains(log.String(), "all of its tokens are refused") {
			t.Errorf("without keys: %v\n%s", err, log.String())
		}
		again := is.publish(t, "again")
		time.Sleep(10 * time.Second)
		if took, err := verify(v, again); err != nil || took > readingTakes {
			t.Errorf("with a key again: %v after %v", err, took)
		}
	})
}
