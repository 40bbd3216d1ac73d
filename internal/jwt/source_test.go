package jwt_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/go-jose/go-jose/v4"

	"github.com/headpond/headpond/internal/jwt"
)

// keySet returns a set with one good key, and some that cannot verify tokens.
func keySet(t testing.TB) string {
	t.Helper()
	public, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	good, err := json.Marshal(jose.JSONWebKey{Key: public, KeyID: "good", Use: "sig"})
	if err != nil {
		t.Fatal(err)
	}
	encrypts, err := json.Marshal(jose.JSONWebKey{Key: public, KeyID: "other", Use: "enc"})
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf(`{"keys": [{"kty": "new"}, {"kty": "oct", "k": "c2VjcmV0"}, %s, %s, 1]}`, encrypts, good)
}

// TestFromIssuer: how keys are found, and what is refused on the way.
func TestFromIssuer(t *testing.T) {
	set := keySet(t)
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(set)) }))
	defer plain.Close()
	var base string
	mux := http.NewServeMux()
	about := func(path, issuer, keys string) {
		mux.HandleFunc(path+"/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = fmt.Fprintf(w, `{"issuer": %q, "jwks_uri": %q}`, base+issuer, keys)
		})
	}
	server := httptest.NewTLSServer(mux)
	defer server.Close()
	base = server.URL
	about("/good", "/good", base+"/keys")
	about("/slash", "/slash/", base+"/keys")
	about("/other", "/good", base+"/keys")
	about("/plain", "/plain", plain.URL)
	about("/moved", "/moved", base+"/redirect")
	about("/leaves", "/leaves", base+"/leave")
	about("/ftp", "/ftp", "ftp://x/")
	about("/none", "/none", base+"/nothing")
	about("/huge", "/huge", base+"/much")
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(set)) })
	mux.Handle("/redirect", http.RedirectHandler("/keys", http.StatusFound))
	mux.Handle("/leave", http.RedirectHandler(plain.URL, http.StatusFound))
	mux.HandleFunc("/much", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 2<<20)) })
	mux.HandleFunc("/text/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) })
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	transport := server.Client().Transport.(*http.Transport).Clone() //nolint:forcetypeassert // what httptest makes
	client := jwt.NewClient(transport)
	for path, want := range map[string]string{
		"/good": "", "/slash/": "", "/moved": "",
		"/other":   "the configuration is that of issuer",
		"/plain":   "jwks_uri of the issuer leaves https",
		"/leaves":  "a redirect from https to http",
		"/ftp":     "jwks_uri of the issuer: \"ftp://x/\": want https://HOST/PATH",
		"/none":    "status 404",
		"/huge":    "an answer of more than 1048576 bytes",
		"/text":    "the configuration of the issuer is not JSON",
		"/unknown": "/unknown/.well-known/openid-configuration: status 404",
	} {
		text, err := jwt.FromIssuer(client, base+path).Read(context.Background())
		switch {
		case want == "" && (err != nil || jwt.CheckKeys(text) != nil):
			t.Errorf("%s: %v, %v", path, err, jwt.CheckKeys(text))
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v, want %s", path, err, want)
		}
	}
	if _, err := jwt.FromURL(jwt.NewClient(&http.Transport{}), base+"/keys").Read(context.Background()); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("a certificate of nobody's: %v", err)
	}
}

func TestCheckKeys(t *testing.T) {
	for text, want := range map[string]string{
		keySet(t):       "",
		"":              "not a JSON Web Key Set",
		"[]":            "not a JSON Web Key Set",
		"{}":            "not a JSON Web Key Set",
		`{"keys":[]}`:   "no key that can verify tokens",
		`{"keys":[{}]}`: "no key that can verify tokens",
		`{"keys":[` + strings.Repeat("1,", 200) + `1]}`: "201 keys; at most 100 are possible",
	} {
		err := jwt.CheckKeys([]byte(text))
		if want == "" && err != nil || want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)) {
			t.Errorf("%.40q: %v, want %s", text, err, want)
		}
	}
}

func TestCheckURL(t *testing.T) {
	for url, good := range map[string]bool{
		"https://a/keys": true, "http://a:80": true, "https://": false, "keys.json": false, "/keys": false, "ftp://a": false,
		"https://user:secret@a/": false, "https://a/#b": false, "https://a/\x00": false, "": false,
	} {
		if err := jwt.CheckURL(url); (err == nil) != good || err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", url, err)
		}
	}
}
