package httpproxy_test

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/internal/conntest"
)

// apiKeyFor returns a new key of a user, and its line.
func apiKeyFor(t testing.TB, user string) (key, line string) {
	t.Helper()
	key, line, err := httpproxy.NewAPIKey(user)
	if err != nil {
		t.Fatal(err)
	}
	return key, line + "\n"
}

// fileOfKeys returns the API keys of a file, and what replaces it.
func fileOfKeys(t testing.TB, log *conntest.Log, text string) (*httpproxy.APIKeys, func(text string)) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keys")
	write := func(text string) {
		t.Helper()
		if err := errors.Join(os.WriteFile(path+".new", []byte(text), 0o600), os.Rename(path+".new", path)); err != nil {
			t.Fatal(err)
		}
	}
	write(text)
	keys, err := httpproxy.NewAPIKeys("keys", func() ([]byte, error) { return os.ReadFile(path) }, log.Logger())
	if err != nil {
		t.Fatal(err)
	}
	return keys, write
}

// tellsKeys answers with what the server gets of the client's identity.
func tellsKeys(w http.ResponseWriter, r *http.Request) {
	h := r.Header
	_, _ = fmt.Fprintf(w, "%s groups=%s auth=%q key=%q %q %q", h["X-User"], h["X-Groups"], h.Get("Authorization"), h.Get("X-Api-Key"), h.Get("Api-Key"), h.Get("X_api_key"))
}

const nothingElse = ` auth="" key="" "" ""`

// apiKeyCase is a request to the routes of TestAPIKeys.
type apiKeyCase struct {
	name, path string
	header     http.Header
	status     int
	body       string // or the challenge
}

// apiKeyCases returns requests with two keys of ann, of which line is one's, and one of bob.
func apiKeyCases(ann, again, bob, line string) []apiKeyCase {
	const challenge = `Bearer realm="pond"`
	return []apiKeyCase{
		{"none", "/", nil, 401, challenge},
		{"right", "/", http.Header{"Authorization": {"Bearer " + ann}}, 200, "[ann] groups=[]" + nothingElse},
		{"the second key of a user", "/", http.Header{"Authorization": {"bEARER   " + again}}, 200, "[ann] groups=[]" + nothingElse},
		{"X-Api-Key", "/", http.Header{"X-Api-Key": {bob}}, 200, "[bob] groups=[]" + nothingElse},
		{"Api-Key", "/", http.Header{"Api-Key": {bob}}, 200, "[bob] groups=[]" + nothingElse},
		{"both", "/", http.Header{"X-Api-Key": {bob}, "Authorization": {"Bearer " + bob}}, 200, "[bob] groups=[]" + nothingElse},
		{"two that differ", "/", http.Header{"X-Api-Key": {bob}, "Authorization": {"Bearer " + ann}}, 401, challenge},
		{"two Authorization fields", "/", http.Header{"Authorization": {"Bearer " + bob, "Bearer " + ann}}, 401, challenge},
		{"another scheme besides", "/", http.Header{"X-Api-Key": {bob}, "Authorization": {"Basic Ym9iOmIwYg=="}}, 200, "[bob] groups=[]" + nothingElse},
		{"another scheme", "/", http.Header{"Authorization": {"Basic Ym9iOmIwYg=="}}, 401, challenge},
		{"wrong", "/", http.Header{"Authorization": {"Bearer " + ann + "x"}}, 401, challenge + `, error="invalid_token"`},
		{"the hash", "/", http.Header{"Authorization": {"Bearer " + strings.TrimSpace(line[4:])}}, 401, challenge + `, error="invalid_token"`},
		{"empty", "/", http.Header{"Authorization": {"Bearer"}}, 401, challenge},
		{"a name of the client's own", "/", http.Header{"X-Api-Key": {bob}, "X-User": {"ann"}, "X_user": {"ann"}}, 200, "[bob] groups=[]" + nothingElse},
		{"forwarded", "/forward", http.Header{"Authorization": {"Bearer " + bob}}, 200, `[] groups=[] auth="Bearer ` + bob + `" key="" "" ""`},
		{"forwarded beside what a server may read as another token", "/forward", http.Header{"X-Api-Key": {bob}, "Authorization": {"Bearer\t" + ann}}, 401, `Bearer realm="restricted"`},
		{"forwarded beside another scheme", "/forward", http.Header{"Authorization": {"Bearer " + bob, "Basic cm9vdDo="}}, 401, `Bearer realm="restricted"`},
		{"a language model", "/llm", http.Header{"Authorization": {"Bearer x"}}, 401, `Bearer realm="restricted", error="invalid_token"`},
		{"limit", "/limit", http.Header{"Authorization": {"Bearer " + ann}}, 200, "[] groups=[]" + nothingElse},
		{"limit by another key", "/limit", http.Header{"X-Api-Key": {again}}, 200, "[] groups=[]" + nothingElse},
		{"over the limit of the user", "/limit", http.Header{"Authorization": {"bearer " + again}}, 429, ""},
		{"another user's limit", "/limit", http.Header{"Authorization": {"bearer " + bob}}, 200, "[] groups=[]" + nothingElse},
	}
}

// TestAPIKeys on both protocols: who is admitted, and what the server and the client get.
func TestAPIKeys(t *testing.T) {
	ann, annLine := apiKeyFor(t, "ann")
	again, againLine := apiKeyFor(t, "ann")
	bob, bobLine := apiKeyFor(t, "bob")
	var log conntest.Log
	keys, write := fileOfKeys(t, &log, "# people\n"+annLine+againLine+bobLine)
	up := newUpstream(t, serveHTTP(t, tellsKeys))
	cfg := httpproxy.Config{Routes: []httpproxy.Route{
		{Path: "/", Upstream: up, BearerAuth: &httpproxy.BearerAuth{Keys: keys, Realm: "pond", UserHeader: "X-User"}},
		{Path: "/forward", Upstream: up, BearerAuth: &httpproxy.BearerAuth{Keys: keys, Forward: true}},
		{Path: "/llm", Upstream: up, BearerAuth: &httpproxy.BearerAuth{Keys: keys}, LLM: &httpproxy.LLM{}},
		{Path: "/limit", Upstream: up, BearerAuth: &httpproxy.BearerAuth{Keys: keys}, RateLimit: httpproxy.RateLimit{Requests: 2, Per: time.Hour, Header: "Authorization"}},
	}}
	cfg.Listener.Logger, cfg.Listener.AccessLog = log.Logger(), true
	p := startProxy(t, cfg)
	for _, tc := range apiKeyCases(ann, again, bob, annLine) {
		for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
			if tc.path == "/limit" && proto != "HTTP/1.1" {
				continue
			}
			t.Run(proto+"/"+tc.name, func(t *testing.T) {
				resp, body := ask(t, clientFor(t, proto), p.url+tc.path, tc.header)
				if resp.StatusCode != tc.status || tc.status == 200 && body != tc.body {
					t.Errorf("%s %q, want %d %q", resp.Status, body, tc.status, tc.body)
				}
				if got := resp.Header.Get("WWW-Authenticate"); tc.status == 401 && got != tc.body {
					t.Errorf("the challenge is %q, want %q", got, tc.body)
				}
				if tc.path == "/llm" && (!strings.Contains(body, `"code":"invalid_api_key"`) || resp.Header.Get("Content-Type") != "application/json") {
					t.Errorf("a client of OpenAI's API cannot read %q", body)
				}
			})
		}
	}
	write(bobLine)
	eventually(t, "a removed key is refused", func() bool {
		resp, _ := ask(t, clientFor(t, "HTTP/1.1"), p.url, http.Header{"X-Api-Key": {ann}})
		return resp.StatusCode == 401
	})
	write(bobLine + strings.Repeat("#", 1<<20))
	eventually(t, "a file that has become too large is not used", func() bool {
		if resp, _ := ask(t, clientFor(t, "HTTP/1.1"), p.url, http.Header{"X-Api-Key": {bob}}); resp.StatusCode != 200 {
			t.Fatal(resp.Status)
		}
		return log.Line("could not be reloaded", "more than 1048576 bytes") != ""
	})
	if line := log.Line("user=ann"); line == "" {
		t.Error("the access log has no user")
	}
	if line := log.Line(ann); line != "" {
		t.Error("a key is in the log:", line)
	}
}

// ask sends a GET with the fields of header, as they are.
func ask(t testing.TB, client *http.Client, url string, header http.Header) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, values := range header {
		req.Header[name] = values
	}
	return doWith(t, client, req)
}

func TestCheckAPIKeys(t *testing.T) {
	_, line := apiKeyFor(t, "ann")
	digits := strings.TrimSpace(line[4:])
	for text, want := range map[string]string{
		line: "", "# keys\n\n" + line + "bob:" + strings.Repeat("0A", 32): "",
		"":                       "f has no keys",
		line + line:              "f:2: this key is there twice",
		"ann":                    "f:1: want a name, a colon and the SHA-256 hash of a key",
		"\nann:secret":           "f:2: the hash of this user's key does not have 64 hexadecimal digits",
		"ann:x" + digits[1:]:     "f:1: the hash of this user's key has signs that are no hexadecimal digits",
		":" + digits:             "f:1: the name is empty",
		strings.Repeat("#", 2e6): "f has more than 1048576 bytes; it is not a file of keys",
	} {
		err := httpproxy.CheckAPIKeys("f", []byte(text))
		if want == "" && err != nil || want != "" && (err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "secret")) {
			t.Errorf("%.40q: %v, want %s", text, err, want)
		}
	}
	for _, name := range []string{"", "a:b", "#a", " a", "a\x00", strings.Repeat("a", 300)} {
		if _, _, err := httpproxy.NewAPIKey(name); err == nil {
			t.Errorf("a key for %.40q", name)
		}
	}
}

// issuer signs tokens, and publishes its keys.
type issuer struct {
	down   atomic.Bool
	asked  atomic.Int32
	mu     sync.Mutex
	public jose.JSONWebKeySet
}

func (i *issuer) add(t testing.TB, id string, key crypto.Signer) {
	t.Helper()
	i.mu.Lock()
	defer i.mu.Unlock()
	i.public.Keys = append(i.public.Keys, jose.JSONWebKey{Key: key.Public(), KeyID: id, Use: "sig"})
}

func (i *issuer) read(context.Context) ([]byte, error) {
	i.asked.Add(1)
	if i.down.Load() {
		return nil, errors.New("no answer")
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	return json.Marshal(i.public)
}

// signed returns a token with claims besides those of every good token, or in place of them.
func signed(t testing.TB, alg jose.SignatureAlgorithm, id string, key any, claims map[string]any) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: key}, (&jose.SignerOptions{}).WithHeader("kid", id))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]any{
		"iss": "https://login.example", "sub": "ann", "aud": "pond", "exp": time.Now().Add(time.Hour).Unix(), "iat": time.Now().Unix(),
		"scope": "read write", "groups": []string{"eng", "ops"},
	}
	for name, value := range claims {
		if all[name] = value; value == nil {
			delete(all, name)
		}
	}
	token, err := jwt.Signed(signer).Claims(all).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// jwtCase is a request to the routes of TestJWT.
type jwtCase struct {
	name, path, token string
	status            int
	body              string // of a 200; otherwise in the answer
}

// jwtCases gives is its keys, and returns requests with tokens signed by them; key is an API key of bob's.
func jwtCases(t testing.TB, is *issuer, key string) []jwtCase {
	t.Helper()
	const ann = "[ann] groups=[eng,ops]" + nothingElse
	rsaKey, small, ecKey, edKey := is.fill(t)
	at := func(d time.Duration) int64 { return time.Now().Add(d).Unix() }
	good := func(claims map[string]any) string { return signed(t, jose.ES256, "ec", ecKey, claims) }
	der, err := x509.MarshalPKIXPublicKey(rsaKey.Public())
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(good(nil), ".")
	head := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
	return []jwtCase{
		{"RS256", "/", signed(t, jose.RS256, "rsa", rsaKey, nil), 200, ann},
		{"PS512", "/", signed(t, jose.PS512, "rsa", rsaKey, nil), 200, ann},
		{"ES256", "/", good(nil), 200, ann},
		{"EdDSA", "/", signed(t, jose.EdDSA, "ed", edKey, nil), 200, ann},
		{"without a key's name", "/", signed(t, jose.ES256, "", ecKey, nil), 200, ann},
		{"an API key", "/", key, 200, "[bob] groups=[]" + nothingElse},
		{"the clock differs", "/", good(map[string]any{"nbf": at(20 * time.Second), "exp": at(-20 * time.Second)}), 200, ann},
		{"several audiences", "/", good(map[string]any{"aud": []string{"x", "mill"}}), 200, ann},
		{"no groups", "/", good(map[string]any{"groups": nil}), 200, "[ann] groups=[]" + nothingElse},
		{"scope", "/write", good(nil), 200, ann},
		{"group", "/ops", good(map[string]any{"email": "a@b"}), 200, ann},
		{"another scope", "/write", good(map[string]any{"scope": "read writer"}), 403, "its claim scope"},
		{"no scope", "/write", good(map[string]any{"scope": nil}), 403, "its claim scope"},
		{"a claim with any value", "/ops", good(nil), 403, "its claim email"},
		{"another group", "/ops", good(map[string]any{"groups": "dev ops-not", "email": "a"}), 403, "its claim groups"},
		{"expired", "/", good(map[string]any{"exp": at(-time.Minute)}), 401, "it has expired"},
		{"without an end", "/", good(map[string]any{"exp": nil}), 401, "it has no end"},
		{"not valid yet", "/", good(map[string]any{"nbf": at(time.Minute)}), 401, "it is not valid yet"},
		{"from the future", "/", good(map[string]any{"iat": at(time.Hour)}), 401, "it is not valid yet"},
		{"another issuer", "/", good(map[string]any{"iss": "https://login.example/"}), 401, "it is from another issuer"},
		{"another audience", "/", good(map[string]any{"aud": "ponds"}), 401, "it is for another audience"},
		{"no audience", "/", good(map[string]any{"aud": nil}), 401, "it is for another audience"},
		{"nobody", "/", good(map[string]any{"sub": nil}), 401, "it has no claim sub"},
		{"a list of users", "/", good(map[string]any{"sub": []string{"ann", "bob"}}), 401, "it has no claim sub"},
		{"a name that is none", "/", good(map[string]any{"sub": "ann\r\nX-Groups: root"}), 401, "it has no claim sub"},
		{"a claim that is no header", "/", good(map[string]any{"groups": "a\nb"}), 401, "its claim groups"},
		{"signed by another's key", "/", signed(t, jose.EdDSA, "ec", edKey, nil), 401, "its key is not one"},
		{"a key too small", "/", signed(t, jose.RS256, "small", small, nil), 401, "its key is not one"},
		{"an unknown key", "/", signed(t, jose.ES256, "new", ecKey, nil), 401, "its key is not one"},
		{"the public key as a secret", "/", signed(t, jose.HS256, "rsa", der, nil), 401, "it is malformed, or its algorithm"},
		{"the other public key as a secret", "/", signed(t, jose.HS256, "ed", []byte(edKey.Public().(ed25519.PublicKey)), nil), 401, "it is malformed, or its algorithm"},
		{"no signature", "/", head(`{"alg":"none"}`) + "." + parts[1] + ".", 401, "it is malformed, or its algorithm"},
		{"its signature cut off", "/", parts[0] + "." + parts[1] + ".", 401, "its signature is wrong"},
		{"changed", "/", parts[0] + "." + head(`{"iss":"https://login.example","sub":"root","aud":"pond","exp":9999999999}`) + "." + parts[2], 401, "its signature is wrong"},
		{"a name too long", "/", good(map[string]any{"sub": strings.Repeat("x", 300)}), 401, "it has no claim sub"},
		{"a value that is two in a header", "/", good(map[string]any{"groups": []string{"eng,root"}}), 401, "its claim groups"},
		{"no token", "/", "a.b.c", 401, "it is malformed"},
		{"too long", "/", good(map[string]any{"x": strings.Repeat("x", 20000)}), 401, "it is too long"},
	}
}

// fill gives the issuer keys of several kinds.
func (i *issuer) fill(t testing.TB) (rsaKey, small *rsa.PrivateKey, ecKey *ecdsa.PrivateKey, edKey ed25519.PrivateKey) {
	t.Helper()
	var err error
	rsaKey, err = rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	small, err = rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	ecKey, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	_, edKey, err = ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	i.add(t, "rsa", rsaKey)
	i.add(t, "small", small)
	i.add(t, "ec", ecKey)
	i.add(t, "ed", edKey)
	return rsaKey, small, ecKey, edKey
}

// TestJWT on both protocols: which tokens are accepted, and what the server and the client get.
func TestJWT(t *testing.T) {
	var is issuer
	key, line := apiKeyFor(t, "bob")
	var log conntest.Log
	keys, _ := fileOfKeys(t, &log, line)
	up := newUpstream(t, serveHTTP(t, tellsKeys))
	accepts := func(require ...httpproxy.FieldMatch) *httpproxy.BearerAuth {
		return &httpproxy.BearerAuth{Keys: keys, UserHeader: "X-User", JWT: &httpproxy.JWT{
			Issuer: "https://login.example", Audiences: []string{"mill", "pond"}, Leeway: 30 * time.Second, Require: require,
			Headers: []httpproxy.HeaderField{{Name: "X-Groups", Value: "groups"}}, Source: "login", ReadKeys: is.read, Logger: log.Logger(),
		}}
	}
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{
		{Path: "/", Upstream: up, BearerAuth: accepts()},
		{Path: "/write", Upstream: up, BearerAuth: accepts(httpproxy.FieldMatch{Name: "scope", Value: "write"})},
		{Path: "/ops", Upstream: up, BearerAuth: accepts(httpproxy.FieldMatch{Name: "groups", Value: "ops"}, httpproxy.FieldMatch{Name: "email", Value: "*"})},
	}})
	for _, tc := range jwtCases(t, &is, key) {
		for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
			t.Run(proto+"/"+tc.name, func(t *testing.T) {
				client := clientFor(t, proto)
				for range 2 { // the second may be remembered
					resp, body := ask(t, client, p.url+tc.path, http.Header{"Authorization": {"Bearer " + tc.token}, "X-Groups": {"root"}, "X_groups": {"root"}})
					if resp.StatusCode != tc.status || tc.status == 200 && body != tc.body || !strings.Contains(body, tc.body) {
						t.Errorf("%s %q, want %d %q", resp.Status, body, tc.status, tc.body)
					}
				}
			})
		}
	}
	if n := is.asked.Load(); n > 12 { // 12 requests have a token with an unknown key
		t.Errorf("the issuer was asked %d times", n)
	}
	rotated, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	is.add(t, "rotated", rotated)
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		resp, body := ask(t, clientFor(t, proto), p.url, http.Header{"Authorization": {"Bearer " + signed(t, jose.ES256, "rotated", rotated, nil)}})
		if resp.StatusCode != 200 {
			t.Errorf("%s: the first token with a new key: %s %q", proto, resp.Status, body)
		}
	}
}

// TestJWTKeys: keys change, and the issuer is not there at times.
func TestJWTKeys(t *testing.T) {
	keyOf := func() *ecdsa.PrivateKey {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return key
	}
	var is issuer
	is.down.Store(true)
	first, second := keyOf(), keyOf()
	is.add(t, "first", first)
	var log conntest.Log
	cfg := httpproxy.Config{Routes: []httpproxy.Route{{
		Upstream: newUpstream(t, serveHTTP(t, tellsKeys)),
		BearerAuth: &httpproxy.BearerAuth{JWT: &httpproxy.JWT{
			Issuer: "https://login.example", Source: "login", ReadKeys: is.read, Refresh: time.Nanosecond, Logger: log.Logger(),
		}},
	}}}
	p := startProxy(t, cfg)
	client := clientFor(t, "HTTP/1.1")
	status := func(id string, key *ecdsa.PrivateKey) int {
		resp, _ := ask(t, client, p.url, http.Header{"Authorization": {"Bearer " + signed(t, jose.ES256, id, key, nil)}})
		return resp.StatusCode
	}
	if got := status("first", first); got != 503 || log.Line("the keys of tokens could not be read", "no answer") == "" {
		t.Fatalf("%d without keys\n%s", got, log.String())
	}
	is.down.Store(false)
	eventually(t, "the keys are known", func() bool { return status("first", first) == 200 })
	is.down.Store(true)
	eventually(t, "the log says that they cannot be read again", func() bool {
		if got := status("first", first); got != 200 {
			t.Fatal(got)
		}
		return log.Line("the old keys stay in force") != ""
	})
	if err := p.Update(cfg); err != nil {
		t.Fatal(err)
	}
	if got := status("first", first); got != 200 {
		t.Errorf("%d after Update: the keys were forgotten", got)
	}
	is.mu.Lock()
	is.public.Keys = nil
	is.mu.Unlock()
	is.add(t, "second", second)
	is.down.Store(false)
	eventually(t, "the new key counts", func() bool { return status("second", second) == 200 })
	eventually(t, "the old one does not", func() bool { return status("first", first) == 401 })
}

// TestJWTSlowIssuer: while an issuer does not answer, only tokens with unknown keys wait, no longer than their request may take, and
// not for a proxy that stops.
func TestJWTSlowIssuer(t *testing.T) {
	known, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	var is issuer
	is.add(t, "known", known)
	key, line := apiKeyFor(t, "bob")
	var log conntest.Log
	keys, _ := fileOfKeys(t, &log, line)
	var hangs atomic.Bool
	var reading atomic.Int32
	accepts := &httpproxy.BearerAuth{Keys: keys, JWT: &httpproxy.JWT{
		Issuer: "https://login.example", Source: "login", Refresh: time.Nanosecond, Logger: log.Logger(), ReadKeys: func(ctx context.Context) ([]byte, error) {
			if hangs.Load() {
				reading.Add(1)
				defer reading.Add(-1)
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return is.read(ctx)
		},
	}}
	up := newUpstream(t, serveHTTP(t, tellsKeys))
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{
		{Path: "/", Upstream: up, BearerAuth: accepts},
		{Path: "/soon", Upstream: up, BearerAuth: accepts, Timeout: 50 * time.Millisecond},
	}})
	status := func(path, token string) int {
		resp, _ := ask(t, clientFor(t, "HTTP/2.0"), p.url+path, http.Header{"Authorization": {"Bearer " + token}})
		return resp.StatusCode
	}
	if got := status("/", signed(t, jose.ES256, "known", known, nil)); got != 200 {
		t.Fatal(got)
	}
	hangs.Store(true)
	unknown := signed(t, jose.ES256, "new", known, nil)
	eventually(t, "a token waits for its key until the request's time is over", func() bool { return status("/soon", unknown) == 503 && reading.Load() > 0 })
	if got := status("/", signed(t, jose.ES256, "known", known, map[string]any{"sub": "eve"})); got != 200 {
		t.Errorf("%d with a known key", got)
	}
	if got := status("/", key); got != 200 {
		t.Errorf("%d with an API key", got)
	}
	resp, body := ask(t, clientFor(t, "HTTP/1.1"), p.url, http.Header{"Authorization": {"Bearer " + unknown}})
	if resp.StatusCode != 503 || resp.Header.Get("Retry-After") != "1" || resp.Header.Get("WWW-Authenticate") != "" {
		t.Errorf("%s %q %v: nobody knows whether the token is wrong", resp.Status, body, resp.Header)
	}
	accepted := p.Stats().Accepted
	waits := make(chan struct{})
	go func() {
		defer close(waits)
		req, _ := http.NewRequest(http.MethodGet, p.url, nil)
		req.Header.Set("Authorization", "Bearer "+unknown)
		if resp, err := http.DefaultTransport.RoundTrip(req); err == nil {
			_ = resp.Body.Close()
		}
	}()
	eventually(t, "the request comes", func() bool { return p.Stats().Accepted > accepted })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_ = p.Drain(ctx) // it is cut off
	<-waits
	if n := reading.Load(); n > 0 {
		t.Errorf("%d readings of keys after the proxy has stopped", n)
	}
}
