package httppool_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/pool/httppool"
)

const ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"

// TestKeepAliveRace lets the server close a connection just as it is used again.
func TestKeepAliveRace(t *testing.T) {
	for name, tc := range map[string]struct {
		method  string
		body    io.Reader
		key     string
		retried bool
	}{
		"GET":                       {method: "GET", retried: true},
		"DELETE":                    {method: "DELETE", retried: true},
		"PUT with GetBody":          {method: "PUT", body: strings.NewReader("x"), retried: true},
		"PUT without GetBody":       {method: "PUT", body: io.MultiReader(strings.NewReader("x"))},
		"POST":                      {method: "POST", body: strings.NewReader("x")},
		"POST without body":         {method: "POST"},
		"POST with Idempotency-Key": {method: "POST", body: strings.NewReader("x"), key: "1", retried: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := serveAnswers(t, func(conn int64, request int) string {
				if conn == 1 && request == 2 {
					return "" // read, and closed without an answer
				}
				return ok
			})
			tr := newTransport(t, httppool.Config{})
			wantBody(t, tr, newRequest(t, "GET", s.url, nil), "hi")
			req := newRequest(t, tc.method, s.url, tc.body)
			if tc.key != "" {
				req.Header.Set("Idempotency-Key", tc.key)
			}
			_, body, err := exchange(tr, req)
			if tc.retried && (err != nil || body != "hi") {
				t.Errorf("got %q, %v", body, err)
			}
			if !tc.retried {
				wantError(t, err, httppool.ErrServerGone)
			}
			if got := tr.Stats().Retries == 1; got != tc.retried {
				t.Errorf("retried: %v", got)
			}
		})
	}
}

// TestFreshConnectionIsNotRetried: the server that closes at once has perhaps done the work.
func TestFreshConnectionIsNotRetried(t *testing.T) {
	s := serveAnswers(t, func(int64, int) string { return "" })
	_, _, err := exchange(newTransport(t, httppool.Config{}), newRequest(t, "GET", s.url, nil))
	wantError(t, err, httppool.ErrServerGone)
	if n := s.conns.Load(); n != 1 {
		t.Errorf("%d connections were made", n)
	}
}

// TestClosedWhileIdle: a connection the server closed or spoke on while it was idle is not used.
func TestClosedWhileIdle(t *testing.T) {
	for name, late := range map[string]string{"closed": "", "unasked answer": ok} {
		t.Run(name, func(t *testing.T) {
			idle, spoiled := make(chan struct{}), make(chan struct{})
			s := serveRaw(t, func(n int64, c net.Conn, br *bufio.Reader) {
				for {
					if _, err := http.ReadRequest(br); err != nil {
						return
					}
					_, _ = io.WriteString(c, ok)
					if n == 1 {
						<-idle
						_, _ = io.WriteString(c, late)
						if late == "" {
							c.Close()
						}
						close(spoiled)
						_, _ = br.Peek(1) // until the client closes
						return
					}
				}
			})
			tr := newTransport(t, httppool.Config{})
			wantBody(t, tr, newRequest(t, "GET", s.url, nil), "hi")
			close(idle)
			<-spoiled
			wantBody(t, tr, newRequest(t, "POST", s.url, nil), "hi")
			if st := tr.Stats(); st.Stale != 1 || st.Retries != 0 {
				t.Errorf("stats are %+v", st)
			}
		})
	}
}

// TestEarlyResponse: the answer comes while the request's body is unread. The connection must not be used again, and
// the body must not be read once it is closed.
func TestEarlyResponse(t *testing.T) {
	s := serveRaw(t, func(_ int64, c net.Conn, br *bufio.Reader) {
		if _, err := http.ReadRequest(br); err == nil {
			_, _ = io.WriteString(c, ok)
			_, _ = io.Copy(io.Discard, br)
		}
	})
	tr := newTransport(t, httppool.Config{})
	pr, pw := io.Pipe()
	wantBody(t, tr, newRequest(t, "POST", s.url, pr), "hi")
	wantIdle(t, tr, 0)
	pw.Close()
	wantBody(t, tr, newRequest(t, "POST", s.url, nil), "hi")
	if n := s.conns.Load(); n != 2 {
		t.Errorf("%d connections, want 2", n)
	}
}

func TestCancel(t *testing.T) {
	for name, answer := range map[string]string{
		"before the head":    "",
		"inside the head":    "HTTP/1.1 200 OK\r\nA:",
		"inside the body":    "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhi",
		"inside a chunk":     "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhi",
		"after an 103":       "HTTP/1.1 103 Early Hints\r\n\r\n",
		"ended by the close": "HTTP/1.1 200 OK\r\n\r\nhi",
	} {
		t.Run(name, func(t *testing.T) {
			got, closed := make(chan struct{}), make(chan struct{})
			s := serveRaw(t, func(_ int64, c net.Conn, br *bufio.Reader) {
				defer close(closed)
				if _, err := http.ReadRequest(br); err == nil {
					_, _ = io.WriteString(c, answer)
					close(got)
					_, _ = br.Peek(1)
				}
			})
			tr := newTransport(t, httppool.Config{})
			ctx, cancel := context.WithCancel(t.Context())
			go func() { <-got; cancel() }()
			_, _, err := exchange(tr, newRequest(t, "GET", s.url, nil).WithContext(ctx))
			wantError(t, err, context.Canceled)
			wait(t, closed, "the close of the server's connection")
			wantIdle(t, tr, 0)
		})
	}
}

func TestTimeouts(t *testing.T) {
	s := serveRaw(t, func(_ int64, c net.Conn, br *bufio.Reader) {
		if req, err := http.ReadRequest(br); err == nil {
			if req.URL.Path == "/body" {
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhi")
			}
			_, _ = io.Copy(io.Discard, br)
		}
	})
	const short = 20 * time.Millisecond
	tr := newTransport(t, httppool.Config{Options: httppool.Options{ResponseHeaderTimeout: short, IdleTimeout: patience}})
	_, _, err := exchange(tr, newRequest(t, "GET", s.url, nil))
	wantError(t, err, httppool.ErrResponseTimeout)
	_, _, err = exchange(tr, newRequest(t, "POST", s.url, strings.NewReader("x")))
	wantError(t, err, httppool.ErrResponseTimeout)
	wantIdle(t, tr, 0)
	tr = newTransport(t, httppool.Config{Options: httppool.Options{ResponseHeaderTimeout: patience, IdleTimeout: short}})
	_, _, err = exchange(tr, newRequest(t, "GET", s.url+"/body", nil))
	wantError(t, err, httppool.ErrIdleTimeout)
	if got := httppool.StatusOf(err); got != http.StatusGatewayTimeout {
		t.Errorf("status is %d", got)
	}
	wantIdle(t, tr, 0)
}

// TestTimeoutsLeaveTheConnectionUsable: a deadline of one exchange must not end the next.
func TestTimeoutsLeaveTheConnectionUsable(t *testing.T) {
	s := serveAnswers(t, func(int64, int) string { return ok })
	tr := newTransport(t, httppool.Config{Options: httppool.Options{IdleTimeout: time.Hour}})
	for range 5 {
		wantBody(t, tr, newRequest(t, "POST", s.url, strings.NewReader("body")), "hi")
	}
	if n := s.conns.Load(); n != 1 {
		t.Errorf("%d connections, want 1", n)
	}
}

func TestExpectContinue(t *testing.T) {
	s := serveRaw(t, func(_ int64, c net.Conn, br *bufio.Reader) {
		for {
			req, err := http.ReadRequest(br)
			if err != nil {
				return
			}
			if req.URL.Path == "/refused" {
				_, _ = io.WriteString(c, "HTTP/1.1 417 No\r\nContent-Length: 0\r\n\r\n")
				if rest, _ := io.ReadAll(br); len(rest) > 0 {
					t.Errorf("%q was sent although it was refused", rest)
				}
				return
			}
			if n := br.Buffered(); n > 0 {
				t.Errorf("%d bytes arrived before they were allowed", n)
			}
			_, _ = io.WriteString(c, "HTTP/1.1 100 Continue\r\n\r\n")
			body, _ := io.ReadAll(req.Body)
			_, _ = io.WriteString(c, strings.Replace(ok, "hi", string(body), 1))
		}
	})
	tr := newTransport(t, httppool.Config{Options: httppool.Options{ContinueTimeout: patience}})
	for path, want := range map[string]string{"/": "ab", "/refused": ""} {
		req := newRequest(t, "POST", s.url+path, strings.NewReader("ab"))
		req.Header.Set("Expect", "100-continue")
		wantBody(t, tr, req, want)
	}
}

// TestAnswerWithoutContinue: a server that answers "Expect: 100-continue" without "100 Continue" may take the body for
// a request, so its connection is not used again.
func TestAnswerWithoutContinue(t *testing.T) {
	s := serveRaw(t, func(n int64, c net.Conn, br *bufio.Reader) {
		for {
			req, err := http.ReadRequest(br)
			if err != nil {
				return
			}
			if req.URL.Path == "/smuggled" {
				t.Error("a body was taken for a request")
			}
			if n > 1 {
				_, _ = io.WriteString(c, ok)
				continue
			}
			_, _ = br.Peek(1) // the body is here
			_, _ = io.WriteString(c, "HTTP/1.1 417 No\r\nContent-Length: 0\r\n\r\n")
		}
	})
	tr := newTransport(t, httppool.Config{Options: httppool.Options{ContinueTimeout: time.Millisecond}})
	req := newRequest(t, "POST", s.url, strings.NewReader("GET /smuggled HTTP/1.1\r\nX: "))
	req.Header.Set("Expect", "100-continue")
	wantBody(t, tr, req, "")
	wantBody(t, tr, newRequest(t, "GET", s.url, nil), "hi")
	if n := s.conns.Load(); n != 2 {
		t.Errorf("%d connections", n)
	}
}

func TestInterimResponsesReachTheTrace(t *testing.T) {
	s := serveAnswers(t, func(int64, int) string { return "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + ok })
	var seen []string
	trace := &httptrace.ClientTrace{Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
		seen = append(seen, h.Get("Link"))
		return nil
	}}
	req := newRequest(t, "GET", s.url, nil)
	wantBody(t, newTransport(t, httppool.Config{}), req.WithContext(httptrace.WithClientTrace(req.Context(), trace)), "hi")
	if len(seen) != 1 || seen[0] != "</a>" {
		t.Errorf("the trace saw %q", seen)
	}
}

func TestUpgrade(t *testing.T) {
	s := serveRaw(t, func(_ int64, c net.Conn, br *bufio.Reader) {
		if _, err := http.ReadRequest(br); err == nil {
			_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\nfirst ")
			_, _ = io.Copy(c, br)
		}
	})
	tr := newTransport(t, httppool.Config{})
	req := newRequest(t, "GET", s.url, nil)
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "echo")
	resp, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	rw := resp.Body.(io.ReadWriteCloser)
	if _, err := io.WriteString(rw, "second"); err != nil {
		t.Fatal(err)
	}
	if err := rw.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(rw); err != nil || string(got) != "first second" {
		t.Errorf("read %q, %v", got, err)
	}
	rw.Close()
	wantIdle(t, tr, 0)
}

func TestRequestBodiesMustBeAsLongAsTheySay(t *testing.T) {
	s := serveRaw(t, func(_ int64, _ net.Conn, br *bufio.Reader) {
		req, err := http.ReadRequest(br)
		if err != nil {
			return
		}
		if body, err := io.ReadAll(req.Body); err == nil {
			t.Errorf("the server read %q to its end", body)
		}
	})
	tr := newTransport(t, httppool.Config{})
	for _, body := range []string{"too short", "too long, much too long"} {
		req := newRequest(t, "PUT", s.url, io.MultiReader(strings.NewReader(body)))
		req.ContentLength = 15
		_, _, err := exchange(tr, req)
		wantError(t, err, httppool.ErrRequestBody)
	}
}

func TestRequestsThatWouldChangeTheirMeaning(t *testing.T) {
	s := serveRaw(t, func(_ int64, _ net.Conn, br *bufio.Reader) {
		if b, _ := br.Peek(1); len(b) > 0 {
			t.Errorf("something was sent: %q", b)
		}
	})
	tr := newTransport(t, httppool.Config{})
	for name, spoil := range map[string]func(*http.Request){
		"value with CRLF": func(r *http.Request) { r.Header.Set("A", "b\r\nEvil: 1") },
		"name with colon": func(r *http.Request) { r.Header["A:b"] = []string{"c"} },
		"host with CRLF":  func(r *http.Request) { r.Host = "a\r\nEvil: 1" },
		"host with space": func(r *http.Request) { r.Host = "a b" },
		"method":          func(r *http.Request) { r.Method = "GET /x HTTP/1.1\r\nA" },
		"CONNECT":         func(r *http.Request) { r.Method = "CONNECT" },
		"opaque target":   func(r *http.Request) { r.URL.Opaque = "/a b" },
		"no URL":          func(r *http.Request) { r.URL = nil },
		"scheme":          func(r *http.Request) { r.URL.Scheme = "ftp" },
	} {
		t.Run(name, func(t *testing.T) {
			req := newRequest(t, "GET", s.url, nil)
			spoil(req)
			_, _, err := exchange(tr, req)
			wantError(t, err, httppool.ErrInvalidRequest)
		})
	}
}

// TestTLS uses a connection that holds session tickets the first request has not read, and uses it again.
func TestTLS(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = w.Write(append([]byte(r.RemoteAddr+" "), body...))
	}))
	defer s.Close()
	roots := s.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	tr := newTransport(t, httppool.Config{TLS: &tls.Config{RootCAs: roots, ServerName: "example.com"}})
	seen := map[string]bool{}
	for range 5 {
		_, body, err := exchange(tr, newRequest(t, "POST", s.URL, strings.NewReader("secret")))
		if err != nil || !strings.HasSuffix(body, " secret") {
			t.Fatalf("got %q, %v", body, err)
		}
		seen[body] = true
	}
	if st := tr.Stats(); len(seen) != 1 || st.Stale != 0 {
		t.Errorf("%d connections, %d stale", len(seen), st.Stale)
	}
	bad := newTransport(t, httppool.Config{})
	if _, _, err := exchange(bad, newRequest(t, "GET", s.URL, nil)); !errors.Is(err, pool.ErrOpen) {
		t.Errorf("an unknown certificate: %v", err)
	}
}

// TestTLSConnectionLeftByItsServer: close_notify while idle.
func TestTLSConnectionLeftByItsServer(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer s.Close()
	roots := s.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	tr := newTransport(t, httppool.Config{TLS: &tls.Config{RootCAs: roots, ServerName: "example.com"}})
	wantBody(t, tr, newRequest(t, "POST", s.URL, nil), "")
	s.CloseClientConnections()
	wantBody(t, tr, newRequest(t, "POST", s.URL, nil), "")
	if st := tr.Stats(); st.Stale != 1 {
		t.Errorf("stats are %+v", st)
	}
}

func TestCloseBeforeTheEnd(t *testing.T) {
	for name, tc := range map[string]struct {
		answer string
		idle   int
	}{
		"the rest has arrived": {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n", 1},
		"more is to come":      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n", 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := serveAnswers(t, func(int64, int) string { return tc.answer })
			tr := newTransport(t, httppool.Config{})
			resp, err := tr.RoundTrip(newRequest(t, "GET", s.url, nil))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := resp.Body.Read(make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if n, err := resp.Body.Read(make([]byte, 1)); n != 0 || err == nil {
				t.Errorf("a closed body gave %d bytes and %v", n, err)
			}
			wantIdle(t, tr, tc.idle)
		})
	}
}

func TestPoolLimitsAndClose(t *testing.T) {
	s := serveAnswers(t, func(int64, int) string { return ok })
	tr := newTransport(t, httppool.Config{Limits: pool.Limits{MaxSize: 1, AcquireTimeout: time.Second}})
	held, err := tr.RoundTrip(newRequest(t, "GET", s.url, nil))
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = exchange(tr, newRequest(t, "GET", s.url, nil))
	wantError(t, err, pool.ErrTimeout)
	if got := httppool.StatusOf(err); got != http.StatusServiceUnavailable {
		t.Errorf("status is %d", got)
	}
	held.Body.Close()
	tr.Close()
	_, _, err = exchange(tr, newRequest(t, "GET", s.url, nil))
	wantError(t, err, httppool.ErrClosed)
	if _, err := httppool.NewTransport(httppool.Config{Limits: pool.Limits{MaxSize: -1}}); !errors.Is(err, pool.ErrConfig) {
		t.Errorf("a negative MaxSize: %v", err)
	}
}

func TestRefusedConnection(t *testing.T) {
	_, _, err := exchange(newTransport(t, httppool.Config{}), newRequest(t, "POST", "http://"+conntest.FreeAddress(t), bytes.NewReader(make([]byte, 9))))
	wantError(t, err, pool.ErrOpen)
	if got := httppool.StatusOf(err); got != http.StatusBadGateway {
		t.Errorf("status is %d", got)
	}
}

// TestServerThatHangsUpAtOnce is not dialled again and again for one request, and is not taken for a server whose idle
// connections have died.
func TestServerThatHangsUpAtOnce(t *testing.T) {
	s := serveRaw(t, func(int64, net.Conn, *bufio.Reader) {})
	dialled := 0
	tr := newTransport(t, httppool.Config{Dial: func(ctx context.Context, address string) (net.Conn, error) {
		dialled++
		c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err == nil {
			_, _ = c.Read(make([]byte, 1)) // the end
		}
		return c, err
	}})
	_, _, err := exchange(tr, newRequest(t, "GET", s.url, nil))
	wantError(t, err, httppool.ErrServerGone)
	if dialled > 3 {
		t.Errorf("dialled %d times for one request", dialled)
	}
}
