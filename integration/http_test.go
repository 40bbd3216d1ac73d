package integration

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// httpConfig is one http listener; pool is the inside of the upstream's pool mapping.
func httpConfig(listen, pool string, backends ...string) string {
	return fmt.Sprintf(`listeners:
  - name: web
    protocol: http
    listen: %s
    http: {routes: [{path: /, upstream: api}]}
upstreams:
  api:
    endpoints: [%s]
    pool: {%s}
`, listen, strings.Join(backends, ", "), pool)
}

// get fetches a page through the gateway.
func get(client *http.Client, url string) (code int, body string, err error) {
	resp, err := client.Get(url)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(data), err
}

const (
	gib    = 1 << 30
	maxRSS = 64 << 20
)

// TestGiBUploadInBoundedMemory measures the user's binary: the race detector multiplies memory.
func TestGiBUploadInBoundedMemory(t *testing.T) {
	backend := startHTTP(t)
	listen := address(t)
	g := startGateway(t, httpConfig(listen, "max_size: 4", backend.addr()), plain)
	client := httpClient(t)
	for _, length := range []int64{gib, -1} { // with a Content-Length, and chunked
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+listen+"/upload", io.LimitReader(zeros{}, gib))
		if err != nil {
			t.Fatal(err)
		}
		req.ContentLength = length
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK || string(body) != strconv.Itoa(gib) {
			t.Fatalf("Content-Length %d: %d %q %v", length, resp.StatusCode, body, err)
		}
	}
	resp, err := client.Get("http://" + listen + "/bytes/" + strconv.Itoa(gib))
	if err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	if err != nil || n != gib {
		t.Fatalf("downloaded %d: %v", n, err)
	}
	checkMemory(t, g)
}

// TestCurlUploads: curl waits for leave before it uploads more than 1 MiB, and its connection serves the next upload too.
func TestCurlUploads(t *testing.T) {
	backend := startHTTP(t)
	listen := address(t)
	startGateway(t, httpConfig(listen, "max_size: 4", backend.addr()))
	file := filepath.Join(t.TempDir(), "body")
	if err := os.WriteFile(file, make([]byte, 2<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	upload := func(args, leave string, urls int) string {
		out, code := shell(t, "curl -sSv --fail --data-binary @"+file+
			" -w '%{http_code}, %{size_upload} bytes, %{num_connects} connected\\n' "+args+strings.Repeat(" -o /dev/null http://"+listen+"/upload", urls)+" 2>&1")
		if code != 0 || strings.Count(out, leave) != urls || strings.Count(out, "200, 2097152 bytes, ") != urls {
			t.Errorf("%s: exit code %d:\n%s", args, code, out)
		}
		return out
	}
	if out := upload("--http1.1", "< HTTP/1.1 100 ", 2); !strings.Contains(out, " 0 connected") {
		t.Errorf("the connection was not used again:\n%s", out)
	}
	upload("--http2-prior-knowledge -H 'Expect: 100-continue'", "< HTTP/2 100 ", 1) // curl 7.88 cannot use such a connection again
}

func TestHTTPRoutesAndHeaders(t *testing.T) {
	a, b := startHTTP(t), startHTTP(t)
	listen := address(t)
	g := startGateway(t, httpConfig(listen, "max_size: 8", a.addr(), b.addr()))
	before := g.footprint()
	client := httpClient(t)
	for range 20 {
		if code, body, err := get(client, "http://"+listen+"/"); err != nil || code != http.StatusOK || body != "ok\n" {
			t.Fatalf("%d %q %v", code, body, err)
		}
	}
	m := g.scrape()
	for _, addr := range []string{a.addr(), b.addr()} {
		if m.sum("headpond_pool_acquired_total", `endpoint="`+addr+`"`) == 0 {
			t.Errorf("endpoint %s got no request", addr)
		}
	}
	if opened := m.sum("headpond_pool_opened_total"); opened > 4 {
		t.Errorf("20 requests in a row opened %v connections", opened)
	}
	client.CloseIdleConnections()
	g.awaitFootprint(before)
}
