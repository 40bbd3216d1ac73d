package gateway_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/headpond/headpond/internal/conntest"
)

// TestClientTimeoutsOfHTTP: a reload changes how long a connection may be idle after its next request, and how long a head
// may take.
func TestClientTimeoutsOfHTTP(t *testing.T) {
	const text = `
listeners:
  - name: web
    protocol: http
    listen: "127.0.0.1:0"
    upstream: web
    http: {client_idle_timeout: {idle}, read_header_timeout: {head}}
upstreams:
  web: {endpoints: ["{web}"]}
`
	web := webServer(t, "here")
	with := func(idle, head string) []string { return []string{"{web}", web, "{idle}", idle, "{head}", head} }
	gw := run(t, parse(t, text, with("24h", "1h")...))
	dial := func() (net.Conn, *bufio.Reader) {
		c := conntest.Dial(t, gw.Addr("web"))
		return c, bufio.NewReader(c)
	}
	ask := func(c net.Conn, br *bufio.Reader) {
		t.Helper()
		if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(br, nil)
		if err != nil {
			t.Fatal(err)
		}
		if body, err := io.ReadAll(resp.Body); string(body) != "here" || err != nil {
			t.Fatalf("%q %v", body, err)
		}
	}
	idle, itsReader := dial()
	ask(idle, itsReader)
	if err := gw.Reload(parse(t, text, with("100ms", "1s")...)); err != nil {
		t.Fatal(err)
	}
	ask(idle, itsReader)
	if b, err := io.ReadAll(itsReader); len(b) > 0 || err != nil {
		t.Errorf("an idle connection got %q, %v, want its end", b, err)
	}
	late, itsReader := dial()
	if _, err := io.WriteString(late, "GET / HTTP/1.1\r\nHo"); err != nil {
		t.Fatal(err)
	}
	if resp, err := http.ReadResponse(itsReader, nil); err != nil || resp.StatusCode != http.StatusRequestTimeout {
		t.Errorf("a head that does not come got %v, %v, want 408", resp, err)
	}
}
