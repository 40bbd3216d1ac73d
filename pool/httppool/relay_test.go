package httppool_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/headpond/headpond/pool/httppool"
)

// upgradeTo connects a client to a Handler whose server switches protocols and then runs serve. It returns the client's
// connection after the 101, and the results.
func upgradeTo(t *testing.T, idle time.Duration, serve func(*net.TCPConn, *bufio.Reader)) (*net.TCPConn, *bufio.Reader, <-chan httppool.Result) {
	t.Helper()
	s := serveRaw(t, func(_ int64, c net.Conn, br *bufio.Reader) {
		if _, err := http.ReadRequest(br); err != nil {
			return
		}
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\nfirst")
		serve(c.(*net.TCPConn), br)
	})
	results := make(chan httppool.Result, 1)
	url := serveForward(t, httppool.HandlerConfig{Target: s.url, IdleTimeout: idle, OnDone: func(_ *http.Request, res httppool.Result) { results <- res }})
	c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\nahead")
	br := bufio.NewReader(c)
	resp, err := http.ReadResponse(br, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("got %v, %v", resp, err)
	}
	return c.(*net.TCPConn), br, results
}

// wantRead reads what the other side sends first.
func wantRead(t *testing.T, r io.Reader, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(r, got); err != nil || string(got) != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

// TestUpgradedUntilBothEnd: each side may send after the other one has ended.
func TestUpgradedUntilBothEnd(t *testing.T) {
	c, br, results := upgradeTo(t, 0, func(c *net.TCPConn, br *bufio.Reader) {
		wantRead(t, br, "ahead")
		all, err := io.ReadAll(br)
		_, _ = io.WriteString(c, string(all)+" and back")
		if err != nil {
			t.Error(err)
		}
	})
	wantRead(t, br, "first")
	_, _ = io.WriteString(c, "forth")
	_ = c.CloseWrite()
	if all, err := io.ReadAll(br); err != nil || string(all) != "forth and back" {
		t.Errorf("got %q, %v", all, err)
	}
	if res := <-results; res.Err != nil || !res.Upgraded || res.BytesIn != 10 || res.BytesOut != 19 {
		t.Errorf("the result is %+v", res)
	}
}

// TestUpgradedAndReset: what is reset on one side does not look whole on the other.
func TestUpgradedAndReset(t *testing.T) {
	c, br, results := upgradeTo(t, 0, func(c *net.TCPConn, br *bufio.Reader) {
		wantRead(t, br, "ahead")
		_ = c.SetLinger(0)
	})
	_, err := io.ReadAll(br)
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the client got %v", err)
	}
	if res := <-results; !errors.Is(res.Err, httppool.ErrServerGone) {
		t.Errorf("the result is %+v", res)
	}
	_ = c.Close()

	got := make(chan error, 1)
	c, br, results = upgradeTo(t, 0, func(_ *net.TCPConn, br *bufio.Reader) {
		_, err := io.ReadAll(br)
		got <- err
	})
	wantRead(t, br, "first")
	_ = c.SetLinger(0)
	_ = c.Close()
	if err := <-got; !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the server got %v", err)
	}
	if res := <-results; !errors.Is(res.Err, httppool.ErrClientGone) {
		t.Errorf("the result is %+v", res)
	}
}

// TestUpgradedAndSilent: the idle limit holds although one side has ended and does not read.
func TestUpgradedAndSilent(t *testing.T) {
	done := make(chan struct{})
	defer close(done)
	c, br, results := upgradeTo(t, 10*pause, func(c *net.TCPConn, _ *bufio.Reader) {
		_ = c.CloseWrite()
		<-done
	})
	wantRead(t, br, "first")
	go func() { _, _ = io.Copy(c, endless{}) }()
	select {
	case res := <-results:
		if !errors.Is(res.Err, httppool.ErrIdleTimeout) {
			t.Errorf("the result is %+v", res)
		}
	case <-time.After(patience / 4):
		t.Error("the limit has no effect")
		_ = c.Close()
	}
}
