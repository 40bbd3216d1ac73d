package integration

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// httpConfig is an http listener; pool is the content of the upstream's pool mapping.
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
	maxRSS    = 64 << 20
	largeBody = 4 * maxRSS
)

// TestLargeBodiesInBoundedMemory measures the released binary, because the race detector multiplies
// memory.
func TestLargeBodiesInBoundedMemory(t *testing.T) {
	backend := startHTTP(t)
	listen := address(t)
	g := startGateway(t, httpConfig(listen, "max_size: 4", backend.addr()), plain)
	client := httpClient(t)
	for _, length := range []int64{largeBody, -1} { // with a Content-Length, and chunked
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+listen+"/upload", io.LimitReader(zeros{}, largeBody))
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
		if err != nil || resp.StatusCode != http.StatusOK || string(body) != strconv.Itoa(largeBody) {
			t.Fatalf("Content-Length %d: %d %q %v", length, resp.StatusCode, body, err)
		}
	}
	resp, err := client.Get("http://" + listen + "/bytes/" + strconv.Itoa(largeBody))
	if err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	if err != nil || n != largeBody {
		t.Fatalf("downloaded %d: %v", n, err)
	}
	checkMemory(t, g)
}

// TestCurlUploads: curl waits for 100 Continue before it uploads more than 1 MiB, and uses its connection for the next
// upload.
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

// TestCurlToHTTP2: requests of curl in both versions reach an HTTP/2 server. Its offer to upgrade to HTTP/2 in clear
// text is ignored.
func TestCurlToHTTP2(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Server-Proto", r.Proto)
		_, _ = io.Copy(w, r.Body)
	}))
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	t.Cleanup(s.Close)
	listen := address(t)
	startGateway(t, httpConfig(listen, "max_size: 4", s.Listener.Addr().String())+"    protocol: h2c\n")
	sent, got := filepath.Join(t.TempDir(), "sent"), filepath.Join(t.TempDir(), "got")
	body := bytes.Repeat([]byte("0123456789abcde\n"), 200_000)
	if err := os.WriteFile(sent, body, 0o600); err != nil {
		t.Fatal(err)
	}
	for args, version := range map[string]string{"--http1.1": "1.1", "--http2": "1.1", "--http2-prior-knowledge": "2"} {
		for _, from := range []string{"--data-binary @" + sent, "-H Transfer-Encoding:chunked -T " + sent} {
			if version == "2" {
				from = strings.Replace(from, "-H Transfer-Encoding:chunked ", "", 1)
			}
			out, code := shell(t, "curl -sS --fail "+args+" "+from+" -o "+got+" -D - -w 'by %{http_version}\\n' http://"+listen+"/echo 2>&1")
			if code != 0 || !containsAll(out, []string{"Server-Proto: HTTP/2.0", "by " + version + "\n"}) {
				t.Errorf("%s %s: exit code %d:\n%s", args, from, code, out)
			}
			if answer := readFile(t, got); answer != string(body) {
				t.Errorf("%s %s: %d bytes came back, want %d", args, from, len(answer), len(body))
			}
		}
	}
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
