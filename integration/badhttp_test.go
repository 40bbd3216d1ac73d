package integration

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"
)

// badHTTPConfig has routes to a working backend, a dead one, a pool of one connection, one with a
// short timeout, and one whose connections are cut. Other hosts have no route.
func badHTTPConfig(listen, alive, dead, cut string) string {
	return fmt.Sprintf(`listeners:
  - name: web
    protocol: http
    listen: %s
    access_log: true
    http:
      routes:
        - {host: a.example, path: /, upstream: api}
        - {host: dead.example, path: /, upstream: dead}
        - {host: one.example, path: /, upstream: one}
        - {host: cut.example, path: /, upstream: cut}
        - {host: slow.example, path: /, upstream: slow, timeout: 2s}
upstreams:
  api: {endpoints: [%s]}
  dead: {endpoints: [%s]}
  one: {endpoints: [%s], pool: {max_size: 1, acquire_timeout: 2s}}
  slow: {endpoints: [%s]}
  cut: {endpoints: [%s]}
`, listen, alive, dead, alive, alive, cut)
}

func TestHTTPBadInput(t *testing.T) {
	backend, cut := startHTTP(t), startHTTP(t)
	listen := address(t)
	g := startGateway(t, badHTTPConfig(listen, backend.addr(), address(t), cut.addr()), verbose)
	client := httpClient(t)
	bystander := startBystander(t, func(context.Context) error {
		code, body, err := request(client, listen, "a.example", "/")
		if err == nil && code != http.StatusOK {
			err = fmt.Errorf("%d %s", code, body)
		}
		return err
	})
	bystander.awaitMore(t, 10)
	check(t, g, "web", bystander, []badInput{
		{"client gone before it is accepted", func(t *testing.T) { cutBeforeAccept(t, g, listen) },
			"client_gone", []string{"client_gone", "before its connection was accepted"}},
		{"unknown route", times(status(client, listen, "other.example", "/x", http.StatusNotFound, "no route")),
			"unknown_route", []string{"404", "other.example"}},
		{"backend down", times(status(client, listen, "dead.example", "/", http.StatusBadGateway, "dead")),
			"upstream_unavailable", []string{"upstream_unavailable", "dead"}},
		{"response too late", status(client, listen, "slow.example", "/never", http.StatusGatewayTimeout, "slow"),
			"timeout", []string{"timeout", "slow"}},
		{"pool exhausted", func(t *testing.T) { exhaust(t, listen, backend, client) },
			"pool_exhausted", []string{"pool_exhausted", "one"}},
		{"backend gone in mid-response", func(t *testing.T) { cutResponse(t, listen, cut) },
			"backend_gone", []string{"backend_gone"}},
		{"client gone in mid-upload", times(func(t *testing.T) { cutUpload(t, listen) }),
			"client_gone", []string{"client_gone"}},
		{"client gone in mid-download", times(func(t *testing.T) { cutDownload(t, listen) }),
			"client_gone", []string{"client_gone"}},
	})
}

// TestHTTPGarbage: bytes that are not HTTP are answered with 400, and the connection is closed.
func TestHTTPGarbage(t *testing.T) {
	backend := startHTTP(t)
	listen := address(t)
	g := startGateway(t, badHTTPConfig(listen, backend.addr(), address(t), address(t)))
	before := g.footprint()
	for name, text := range map[string]string{
		"binary":                       "\x00\x01\x02\xff\xfe garbage\r\n\r\n",
		"a TLS hello":                  "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
		"conflicting framing":          "POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"two content lengths":          "POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcd",
		"a bad chunk size":             "POST /upload HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
		"a header without end":         "GET / HTTP/1.1\r\nHost: a.example\r\nX: " + strings.Repeat("a", 2<<20),
		"no host":                      "GET / HTTP/1.1\r\n\r\n",
		"a space in the header's name": "GET / HTTP/1.1\r\nHost: a.example\r\nX : 1\r\n\r\n",
		"a PostgreSQL start-up packet": "\x00\x00\x00\x08\x04\xd2\x16\x2f",
	} {
		t.Run(name, func(t *testing.T) {
			for range repeat {
				c := dial(t, listen)
				_, _ = io.WriteString(c, text) // the gateway may close before it has read everything
				_ = c.CloseWrite()
				answer, _ := io.ReadAll(io.LimitReader(c, 4096)) // ends with EOF or a reset
				_ = c.Close()
				if line, _, _ := strings.Cut(string(answer), "\r\n"); len(answer) > 0 && !strings.Contains(line, " 4") {
					t.Fatalf("answer %q, want a status 4xx", answer)
				}
			}
		})
	}
	g.awaitFootprint(before)
	if code, _, err := request(httpClient(t), listen, "a.example", "/"); err != nil || code != http.StatusOK {
		t.Errorf("afterwards: %d %v", code, err)
	}
}

// request requests a page of a host.
func request(client *http.Client, addr, host, path string) (code int, body string, err error) {
	req, err := http.NewRequest(http.MethodGet, "http://"+addr+path, nil)
	if err != nil {
		return 0, "", err
	}
	req.Host = host
	resp, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(data), err
}

// status expects a status and a word of the body.
func status(client *http.Client, addr, host, path string, want int, word string) func(t *testing.T) {
	return func(t *testing.T) {
		t.Helper()
		code, body, err := request(client, addr, host, path)
		if err != nil || code != want || !strings.Contains(body, word) {
			t.Errorf("%d %q %v, want %d and %q", code, body, err, want, word)
		}
	}
}

// exhaust holds the only connection of a pool and sends another request.
func exhaust(t *testing.T, listen string, backend *httpBackend, client *http.Client) {
	t.Helper()
	c := dial(t, listen)
	defer c.Close()
	if _, err := io.WriteString(c, "GET /hold HTTP/1.1\r\nHost: one.example\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	backend.awaitHold(t)
	status(client, listen, "one.example", "/", http.StatusServiceUnavailable, "one")(t)
}

// cutResponse closes a backend's connections in the middle of a response.
func cutResponse(t *testing.T, listen string, backend *httpBackend) {
	t.Helper()
	c := dial(t, listen)
	defer c.Close()
	if _, err := io.WriteString(c, "GET /hold HTTP/1.1\r\nHost: cut.example\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	backend.awaitHold(t)
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	backend.cut()
	if _, err := io.ReadAll(resp.Body); err == nil {
		t.Error("half a response looks whole to the client")
	}
}

const uploadHead = "POST /upload HTTP/1.1\r\nHost: a.example\r\nContent-Length: 1000000\r\n"

// cutUpload announces a body, sends a part of it once it is asked for, and resets the connection.
func cutUpload(t *testing.T, listen string) {
	t.Helper()
	c := dial(t, listen)
	asked := make([]byte, len("HTTP/1.1 100 Continue\r\n\r\n"))
	_, err := io.WriteString(c, uploadHead+"Expect: 100-continue\r\n\r\n")
	if err == nil {
		_, err = io.ReadFull(c, asked)
	}
	if err == nil {
		_, err = io.WriteString(c, strings.Repeat("x", 70_000))
	}
	if err != nil || !strings.Contains(string(asked), " 100 ") {
		t.Fatalf("%q, %v", asked, err)
	}
	reset(t, c)
}

// cutBeforeAccept resets connections with a part of a request while the gateway does not run.
func cutBeforeAccept(t *testing.T, g *gateway, listen string) {
	t.Helper()
	g.signal(syscall.SIGSTOP)
	defer g.signal(syscall.SIGCONT)
	for range repeat {
		c := dial(t, listen)
		if _, err := io.WriteString(c, uploadHead+"\r\n"+strings.Repeat("x", 70_000)); err != nil {
			t.Fatal(err)
		}
		reset(t, c)
	}
}

// cutDownload reads the beginning of a large body and resets the connection.
func cutDownload(t *testing.T, listen string) {
	t.Helper()
	c := dial(t, listen)
	if _, err := io.WriteString(c, "GET /bytes/100000000 HTTP/1.1\r\nHost: a.example\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, 10_000)); err != nil {
		t.Fatal(err)
	}
	reset(t, c)
}

// reset closes a connection with an RST, as if the process had been killed.
func reset(t *testing.T, c net.Conn) {
	t.Helper()
	if err := errors.Join(c.(*net.TCPConn).SetLinger(0), c.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestSlowHTTPClientIsSentAway(t *testing.T) {
	backend := startHTTP(t)
	listen := address(t)
	startGateway(t, badHTTPConfig(listen, backend.addr(), address(t), address(t)))
	c := dial(t, listen)
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: a.exa"); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if _, err := io.ReadAll(c); err != nil && !strings.Contains(err.Error(), "reset") {
		t.Errorf("after %s: %v", time.Since(start), err)
	}
}
