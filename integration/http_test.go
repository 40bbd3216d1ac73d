package integration

import (
	"fmt"
	"io"
	"net/http"
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
