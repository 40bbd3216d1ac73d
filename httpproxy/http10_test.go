package httpproxy_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/mux"
)

// http10 asks for a path in HTTP/1.0.
func http10(path, fields string) string { return "GET " + path + " HTTP/1.0\r\n" + fields + "\r\n" }

// TestHTTP10: clients keep their connection only after an answer with a length, and get nothing that they do not know.
func TestHTTP10(t *testing.T) {
	hosts := make(chan string, 10)
	backend := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		hosts <- r.Host + " " + r.Header.Get("X-Forwarded-Host") + " " + r.Header.Get("Via") + " " + r.Proto
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Set("Trailer", "A")
		if r.URL.Path == "/chunks" {
			for _, piece := range []string{"ab", strings.Repeat("c", 100_000), "d"} {
				_, _ = io.WriteString(w, piece)
				_ = http.NewResponseController(w).Flush()
			}
			w.Header().Set("A", "b")
		} else {
			w.Header().Del("Trailer")
			w.Header().Set("Content-Length", "2")
			_, _ = io.WriteString(w, "hi")
		}
	})
	cfg := routeTo(newUpstream(t, backend))
	cfg.Via = "pond"
	p := startProxy(t, cfg)
	c, br := dialRaw(t, p.addr)
	const keep = "Connection: keep-alive\r\n"
	for range 2 {
		resp, body := roundTrip(t, c, br, http10("/", keep))
		if resp.StatusCode != 200 || body != "hi" || resp.Header.Get("Connection") != "keep-alive" {
			t.Errorf("%s %v %q", resp.Status, resp.Header, body)
		}
		if got := <-hosts; got != backend+"  1.0 pond HTTP/1.1" {
			t.Errorf("the server got %q", got)
		}
	}
	if resp, _ := roundTrip(t, c, br, http10("/..", keep)); resp.StatusCode != 400 || resp.Header.Get("Connection") != "keep-alive" {
		t.Errorf("refused: %s %v", resp.Status, resp.Header)
	}
	if _, err := io.WriteString(c, http10("/chunks", keep+"Host: a.example\r\n")); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(br)
	head, body, _ := strings.Cut(string(answer), "\r\n\r\n")
	if err != nil || body != "ab"+strings.Repeat("c", 100_000)+"d" || strings.Contains(head, "chunked") || !strings.Contains(head, "Connection: close") {
		t.Errorf("%v, %d bytes behind %q", err, len(body), head)
	}
	if got := <-hosts; got != "a.example a.example 1.0 pond HTTP/1.1" {
		t.Errorf("the server got %q", got)
	}
	c, br = dialRaw(t, p.addr)
	if _, err := io.WriteString(c, http10("/", "")); err != nil {
		t.Fatal(err)
	}
	if answer, err := io.ReadAll(br); err != nil || !strings.HasSuffix(string(answer), "\r\n\r\nhi") {
		t.Errorf("%q, %v", answer, err)
	}
}

// TestHTTP10Truncated: where the end of the connection ends an answer, an incomplete one ends with a reset.
func TestHTTP10Truncated(t *testing.T) {
	for name, answer := range map[string]string{
		"chunks":     "Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n",
		"long chunk": "Transfer-Encoding: chunked\r\n\r\n100000\r\nhi",
	} {
		t.Run(name, func(t *testing.T) {
			leave := make(chan struct{})
			backend := serveRaw(t, func(c net.Conn) {
				if readRequest(bufio.NewReader(c)) == nil {
					_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n"+answer)
					<-leave
				}
			})
			p := startProxy(t, routeTo(newUpstream(t, backend)))
			c, br := dialRaw(t, p.addr)
			_, _ = io.WriteString(c, http10("/", ""))
			resp, err := http.ReadResponse(br, nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(resp.Body, make([]byte, 2)); err != nil {
				t.Fatal(err)
			}
			close(leave)
			if rest, err := io.ReadAll(resp.Body); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("%q and %v, want a reset", rest, err)
			}
		})
	}
}

// streams is a listener for the streams of a session of package mux.
type streams struct{ *mux.Session }

func (s streams) Accept() (net.Conn, error) { return s.AcceptStream(context.Background()) }
func (s streams) Addr() net.Addr            { return &net.TCPAddr{} }

// TestHTTP10TruncatedInAStream: a stream of a session is reset like a connection.
func TestHTTP10TruncatedInAStream(t *testing.T) {
	leave := make(chan struct{})
	backend := serveRaw(t, func(c net.Conn) {
		if readRequest(bufio.NewReader(c)) == nil {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n")
			<-leave
		}
	})
	cfg := routeTo(newUpstream(t, backend))
	cfg.Listener.Logger = slog.New(slog.DiscardHandler)
	p, err := httpproxy.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	near, far := conntest.Pair(t, "tcp", "127.0.0.1:0")
	served := make(chan *mux.Session)
	go func() {
		s, err := mux.Server(t.Context(), far, mux.Config{})
		if err != nil {
			t.Errorf("the session: %v", err)
		}
		served <- s
	}()
	session, err := mux.Client(t.Context(), near, mux.Config{})
	server := <-served
	if err != nil || server == nil {
		t.Fatal(err)
	}
	conntest.Run(t, streams{server}, p.Serve, func() {
		_ = p.Drain(context.Background())
		_ = session.Close()
	})
	c, err := session.OpenStream(t.Context(), "http")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, _ = io.WriteString(c, http10("/", ""))
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(resp.Body, make([]byte, 2)); err != nil {
		t.Fatal(err)
	}
	close(leave)
	if rest, err := io.ReadAll(resp.Body); !errors.Is(err, mux.ErrReset) {
		t.Errorf("%q and %v, want a reset", rest, err)
	}
}

// TestHeadsTooLarge are refused by name, in bytes and in fields.
func TestHeadsTooLarge(t *testing.T) {
	p := startProxy(t, httpproxy.Config{MaxHeaderBytes: 20_000, MaxHeaderFields: 10})
	for name, fields := range map[string]string{
		"bytes":            "A: " + strings.Repeat("a", 20_000) + "\r\n",
		"endless":          "A: " + strings.Repeat("a", 50_000),
		"fields":           strings.Repeat("A: a\r\n", 11),
		"fields of parser": strings.Repeat("A: a\r\n", 300),
	} {
		c, br := dialRaw(t, p.addr)
		if resp, _ := roundTrip(t, c, br, "GET / HTTP/1.1\r\nHost: a\r\n"+fields+"\r\n"); resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge || !resp.Close {
			t.Errorf("%s: %s", name, resp.Status)
		}
	}
	c, br := dialRaw(t, p.addr)
	if resp, _ := roundTrip(t, c, br, "GET / HTTP/1.1\r\nHost: a\r\nA: "+strings.Repeat("a", 19_000)+"\r\n\r\n"); resp.StatusCode != http.StatusNotFound {
		t.Errorf("within the bounds: %s", resp.Status)
	}
}
