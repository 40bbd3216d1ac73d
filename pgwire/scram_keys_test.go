package pgwire_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/headpond/headpond/pgwire"
)

// proven returns the keys of a client that has proven itself with a password.
func proven(t *testing.T, v pgwire.ScramVerifier, password string) pgwire.ScramKeys {
	t.Helper()
	server := pgwire.NewScramServer(v, nil)
	if !server.Keys().IsZero() {
		t.Error("there are keys before the client has proven anything")
	}
	if err := exchangeBy(server, pgwire.NewScramClient(password), []string{pgwire.MechanismSCRAM}, nil); err != nil && !errors.Is(err, pgwire.ErrAuth) {
		t.Fatal(err)
	}
	return server.Keys()
}

func verifierOf(t *testing.T, password, salt string, iterations int) pgwire.ScramVerifier {
	t.Helper()
	v, err := pgwire.NewScramVerifier(password, []byte(salt), iterations)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// byKeys runs both sides of SCRAM.
func byKeys(v pgwire.ScramVerifier, keys pgwire.ScramKeys) error {
	return exchangeBy(pgwire.NewScramServer(v, nil), pgwire.NewScramClientFromKeys(keys), []string{pgwire.MechanismSCRAM}, nil)
}

func TestScramKeys(t *testing.T) {
	v := verifierOf(t, "secret", "0123456789abcdef", 64)
	if keys := proven(t, v, "another"); !keys.IsZero() {
		t.Error("a client with a wrong password leaves keys")
	}
	keys := proven(t, v, "secret")
	if keys.IsZero() || !keys.Equal(proven(t, v, "secret")) || keys.Equal(pgwire.ScramKeys{}) {
		t.Fatal("the keys of one password differ, or are none")
	}
	for _, c := range []struct {
		name string
		v    pgwire.ScramVerifier
		want error
	}{
		{"the same verifier", v, nil},
		{"another salt", verifierOf(t, "secret", "0123456789abcdeF", 64), pgwire.ErrScramKeys},
		{"another iteration count", verifierOf(t, "secret", "0123456789abcdef", 65), pgwire.ErrScramKeys},
		{"another password, the same salt", verifierOf(t, "changed", "0123456789abcdef", 64), pgwire.ErrAuth},
	} {
		if err := byKeys(c.v, keys); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	impostor := v
	impostor.ServerKey = bytes.Repeat([]byte{1}, len(v.ServerKey)) // it has seen the client's proof, and not the server's key
	if err := byKeys(impostor, keys); !errors.Is(err, pgwire.ErrAuth) {
		t.Errorf("a server that cannot prove itself: %v", err)
	}
}

// TestScramKeysAreNotShown looks for the keys in everything that prints values.
func TestScramKeysAreNotShown(t *testing.T) {
	v := verifierOf(t, "secret", "0123456789abcdef", 64)
	keys := proven(t, v, "secret")
	var shown strings.Builder
	holder := struct {
		Keys   pgwire.ScramKeys
		Client *pgwire.ScramClient
	}{keys, pgwire.NewScramClientFromKeys(keys)}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d", "%T"} {
		fmt.Fprintf(&shown, verb+"\n", keys)
		fmt.Fprintf(&shown, verb+"\n", &keys)
		fmt.Fprintf(&shown, verb+"\n", holder)
		fmt.Fprintf(&shown, verb+"\n", pgwire.NewScramClient("s3cr3t"))
	}
	for _, h := range []slog.Handler{slog.NewTextHandler(&shown, nil), slog.NewJSONHandler(&shown, nil)} {
		slog.New(h).Info("keys", "keys", keys, "holder", holder)
	}
	if err := json.NewEncoder(&shown).Encode(holder); err != nil {
		t.Fatal(err)
	}
	server := string(v.ServerKey)
	for _, secret := range []string{
		server, hex.EncodeToString(v.ServerKey), strings.ToUpper(hex.EncodeToString(v.ServerKey)), base64.StdEncoding.EncodeToString(v.ServerKey),
		strings.Trim(fmt.Sprint(v.ServerKey), "[]"), strings.Trim(strings.TrimPrefix(fmt.Sprintf("%#v", v.ServerKey), "[]byte"), "{}"), "s3cr3t",
	} {
		if strings.Contains(shown.String(), secret) {
			t.Errorf("the keys are shown:\n%s", shown.String())
		}
	}
}
