package integration

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
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
