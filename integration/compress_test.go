package integration

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestCurlCompressed: what curl decodes is what the server sent, in both versions of HTTP, in the encoding it likes best of those it has and
// in gzip.
func TestCurlCompressed(t *testing.T) {
	content := strings.Repeat("a line of text that comes again\n", 10_000)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		_, _ = fmt.Fprint(w, content)
	}))
	t.Cleanup(s.Close)
	listen := address(t)
	startGateway(t, fmt.Sprintf(`
listeners:
  - name: web
    protocol: http
    listen: %q
    http:
      routes:
        - {path: /, upstream: site, compress: {}}
upstreams:
  site: {endpoints: [%q]}
`, listen, s.Listener.Addr().String()))
	for _, version := range []string{"--http1.1", "--http2-prior-knowledge"} {
		for _, accept := range []string{"", "-H 'Accept-Encoding: gzip'"} {
			out, code := shell(t, "curl -sS "+version+" --compressed "+accept+" -w '%{size_download}' http://"+listen+"/ 2>&1")
			size, ok := strings.CutPrefix(out, content)
			if code != 0 || !ok || len(size) > len("99999") {
				t.Errorf("curl %s %s: exit code %d, %d bytes decoded, %.20q downloaded", version, accept, code, len(out)-len(size), size)
			}
		}
	}
}
