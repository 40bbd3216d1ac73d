package integration

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// bobsHash is of the password b0b, with the lowest cost.
const bobsHash = "$2y$04$njgoUoaQj9ffiU7grY/WGeU/OAREvJiH.8Gw0ufr.qoskcOE4ei2y"

// TestCurlAccess: what curl gets of routes with passwords and lists of addresses, in both versions of HTTP.
func TestCurlAccess(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(w, "user %s auth %q\n", r.Header["X-Remote-User"], r.Header.Get("Authorization"))
	}))
	t.Cleanup(s.Close)
	listen, users := address(t), filepath.Join(t.TempDir(), "users")
	if err := os.WriteFile(users, []byte("bob:"+bobsHash+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	g := startGateway(t, fmt.Sprintf(`
listeners:
  - name: web
    protocol: http
    listen: %q
    access_log: true
    http:
      routes:
        - {path: /, upstream: site, basic_auth: {file: %q, realm: pond, user_header: X-Remote-User}}
        - {path: /near, upstream: site, allow: [127.0.0.1]}
        - {path: /far, upstream: site, allow: [192.0.2.0/24]}
upstreams:
  site: {endpoints: [%q]}
`, listen, users, s.Listener.Addr().String()))
	if out, code := shell(t, "curl -sS --http1.1 --anyauth -u bob:b0b http://"+listen+"/ 2>&1"); code != 0 || !strings.HasPrefix(out, "user [bob]") {
		t.Errorf("curl --anyauth: exit code %d, %q", code, out) // 7.88 fails with HTTP/2, as it cannot use such a connection again
	}
	for _, version := range []string{"--http1.1", "--http2-prior-knowledge"} {
		for args, want := range map[string]string{
			"-u bob:b0b http://" + listen + "/":                                                   "user [bob] auth \"\"\n200",
			"-u bob:b0b -H 'X-Remote-User: root' -H 'x_remote_user: root' http://" + listen + "/": "user [bob] auth \"\"\n200",
			"-u bob:wrong http://" + listen + "/":                                                 "401",
			"http://" + listen + "/":                                                              "401",
			"-u bob:b0b -d body http://" + listen + "/":                                           "user [bob] auth \"\"\n200",
			"http://" + listen + "/near":                                                          "user [] auth \"\"\n200",
			"http://" + listen + "/far":                                                           "403",
			"-H 'X-Forwarded-For: 192.0.2.1' http://" + listen + "/far":                           "403",
		} {
			out, code := shell(t, "curl -sS "+version+" -w '%{http_code}' "+args+" 2>&1")
			if code != 0 || !strings.HasSuffix(out, want) || strings.HasSuffix(want, "200") && out != want {
				t.Errorf("curl %s %s: exit code %d, %q, want %q", version, args, code, out, want)
			}
		}
	}
	g.awaitLog("msg=access", "user=bob", "status=200")
	g.awaitLog("request refused", "reason=auth_failed")
	g.awaitLog("request refused", "reason=denied")
}

// loginServer returns an issuer that says by TLS where its keys are, and what makes its tokens.
func loginServer(t *testing.T) (login *httptest.Server, token func(claims map[string]any) string) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	encode := base64.RawURLEncoding.EncodeToString
	login = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/.well-known/openid-configuration":
			_, _ = fmt.Fprintf(w, `{"issuer": %q, "jwks_uri": %q}`, login.URL, login.URL+"/keys")
		case "/keys":
			_, _ = fmt.Fprintf(w, `{"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "1", "x": %q}]}`, encode(public))
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(login.Close)
	token = func(claims map[string]any) string {
		text, err := json.Marshal(claims)
		if err != nil {
			t.Fatal(err)
		}
		signed := encode([]byte(`{"alg":"EdDSA","kid":"1"}`)) + "." + encode(text)
		return signed + "." + encode(ed25519.Sign(private, []byte(signed)))
	}
	return login, token
}

// TestCurlBearer: keys that "headpond apikey" makes, and tokens of an issuer that says by TLS where its keys are.
func TestCurlBearer(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(w, "user %s mail %s auth %q\n", r.Header["X-User"], r.Header["X-Mail"], r.Header.Get("Authorization"))
	}))
	t.Cleanup(s.Close)
	login, token := loginServer(t)
	dir := t.TempDir()
	keys, ca, listen := filepath.Join(dir, "keys"), filepath.Join(dir, "ca.crt"), address(t)
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: login.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	key, code := shell(t, built(t, plainBinary)+" apikey bob 2>&1 >"+keys)
	if key = strings.TrimSpace(key); code != 0 || !strings.HasPrefix(key, "hp_") {
		t.Fatalf("apikey: exit code %d, %q", code, key)
	}
	g := startGateway(t, fmt.Sprintf(`
listeners:
  - name: web
    protocol: http
    listen: %q
    access_log: true
    http:
      routes:
        - path: /
          upstream: site
          bearer_auth:
            keys: %q
            user_header: X-User
            jwt: {issuer: %q, ca: %q, audiences: [pond], headers: {X-Mail: email}}
upstreams:
  site: {endpoints: [%q]}
`, listen, keys, login.URL, ca, s.Listener.Addr().String()))
	good := map[string]any{"iss": login.URL, "aud": "pond", "sub": "ann", "email": "ann@pond.example", "exp": time.Now().Add(time.Hour).Unix()}
	bad := map[string]any{"iss": login.URL, "aud": "pond", "sub": "ann", "exp": 1}
	for _, version := range []string{"--http1.1", "--http2-prior-knowledge"} {
		for args, want := range map[string]string{
			"":                               "401",
			"-H 'X-Api-Key: " + key + "'":    "user [bob] mail [] auth \"\"\n200",
			"--oauth2-bearer " + key:         "user [bob] mail [] auth \"\"\n200",
			"--oauth2-bearer " + key + "x":   "401",
			"--oauth2-bearer " + token(good): "user [ann] mail [ann@pond.example] auth \"\"\n200",
			"--oauth2-bearer " + token(bad):  "401",
		} {
			out, code := shell(t, "curl -sS "+version+" -w '%{http_code}' "+args+" http://"+listen+"/ 2>&1")
			if code != 0 || !strings.HasSuffix(out, want) || strings.HasSuffix(want, "200") && out != want {
				t.Errorf("curl %s %s: exit code %d, %q, want %q", version, args, code, out, want)
			}
		}
	}
	g.awaitLog("msg=access", "user=bob", "status=200")
	g.awaitLog("msg=access", "user=ann", "status=200")
	g.awaitLog("request refused", "reason=auth_failed", "it has expired")
}
