package httpproxy_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/internal/conntest"
)

const upgradeRequest = "GET /ws HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n" +
	"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"

// serveUpgrade upgrades and gives the connection to f; it fails if bytes come before its 101.
func serveUpgrade(t *testing.T, f func(net.Conn, *bufio.Reader)) string {
	return serveRaw(t, func(c net.Conn) {
		br := bufio.NewReader(c)
		req, err := http.ReadRequest(br)
		if err != nil {
			return
		}
		if req.Header.Get("Upgrade") != "websocket" || req.Header.Get("Sec-Websocket-Key") == "" {
			t.Errorf("the server got %v", req.Header)
		}
		if n := br.Buffered(); n > 0 {
			t.Errorf("%d bytes came before the 101", n)
		}
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
			"Sec-WebSocket-Accept: x\r\n\r\ngreeting ")
		f(c, br)
	})
}

func echo(c net.Conn, br *bufio.Reader) { _, _ = io.Copy(c, br) }

// dialUpgrade sends the request and more at once and reads the 101.
func dialUpgrade(t *testing.T, addr, more string) (*net.TCPConn, *bufio.Reader) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(c, upgradeRequest+more); err != nil {
		t.Fatal(err)
	}
	br := bufio.NewReader(c)
	resp, err := http.ReadResponse(br, nil)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != 101 || resp.Header.Get("Upgrade") != "websocket" || resp.Header.Get("Sec-Websocket-Accept") != "x" {
		t.Fatalf("got %s %v", resp.Status, resp.Header)
	}
	return c.(*net.TCPConn), br
}

// TestUpgradePasses carries bytes both ways: those sent with the request, those sent with the 101, and half-close.
func TestUpgradePasses(t *testing.T) {
	p := startProxy(t, routeTo(newUpstream(t, serveUpgrade(t, echo))))
	c, br := dialUpgrade(t, p.addr, "early ")
	if _, err := io.WriteString(c, "late"); err != nil {
		t.Fatal(err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(br); err != nil || string(got) != "greeting early late" {
		t.Errorf("read %q, %v", got, err)
	}
}

// TestRefusedUpgrade is an ordinary answer, and the connection's last.
func TestRefusedUpgrade(t *testing.T) {
	backend := serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusForbidden) })
	p := startProxy(t, routeTo(newUpstream(t, backend)))
	if got := sendRaw(t, p.addr, upgradeRequest); len(got) != 1 || got[0] != 403 {
		t.Errorf("statuses are %v", got)
	}
}

// TestDrainWaitsForUpgraded connections until its context ends.
func TestDrainWaitsForUpgraded(t *testing.T) {
	p := startProxy(t, routeTo(newUpstream(t, serveUpgrade(t, echo))))
	c, br := dialUpgrade(t, p.addr, "")
	if _, err := io.ReadFull(br, make([]byte, len("greeting "))); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	drained := make(chan error, 1)
	go func() { drained <- p.Drain(ctx) }()
	eventually(t, "the listener is closed", func() bool {
		n, err := net.Dial("tcp", p.addr)
		if err == nil {
			n.Close()
		}
		return err != nil
	})
	if _, err := io.WriteString(c, "x"); err != nil {
		t.Fatal(err)
	}
	if b, err := br.ReadByte(); err != nil || b != 'x' {
		t.Fatalf("read %q, %v while draining", b, err)
	}
	cancel()
	if err := <-drained; !errors.Is(err, context.Canceled) {
		t.Errorf("Drain: %v", err)
	}
	if b, err := br.ReadByte(); err == nil {
		t.Errorf("read %q after the drain", b)
	}
}

// TestUpgradedServerGone ends the client's connection too.
func TestUpgradedServerGone(t *testing.T) {
	leave := make(chan struct{})
	p := startProxy(t, routeTo(newUpstream(t, serveUpgrade(t, func(c net.Conn, _ *bufio.Reader) {
		<-leave
		_ = c.(*net.TCPConn).SetLinger(0) // a reset, not an end
	}))))
	_, br := dialUpgrade(t, p.addr, "")
	close(leave)
	if _, err := io.Copy(io.Discard, br); err != nil {
		t.Logf("the client saw %v", err)
	}
	eventually(t, "the error is counted", func() bool { return p.Stats().Errors["backend_gone"] == 1 })
}

// TestUpgradedStandsStill: an upgraded connection ends if no byte moves in either direction, and continues if one side
// sends.
func TestUpgradedStandsStill(t *testing.T) {
	paced(t, func(t testing.TB, unit time.Duration) {
		p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{IdleTimeout: 4 * unit, Upstream: newUpstream(t, serveRaw(t, func(c net.Conn) {
			br := bufio.NewReader(c)
			if _, err := http.ReadRequest(br); err == nil {
				_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
				_, _ = io.Copy(io.Discard, br)
			}
		}))}}})
		c, br := dialRaw(t, p.addr)
		resp, _ := roundTrip(t, c, br, upgradeRequest)
		if resp.StatusCode != 101 {
			t.Fatal(resp.Status)
		}
		for range 6 {
			<-time.After(unit)
			if _, err := io.WriteString(c, "x"); err != nil {
				t.Fatal(err)
			}
		}
		if n := p.Stats().Errors["timeout"]; n != 0 {
			t.Errorf("%d time-outs while bytes move", n)
		}
		if rest, err := io.ReadAll(br); len(rest) > 0 {
			t.Errorf("%q, %v", rest, err)
		}
		conntest.Eventually(t, "the error is counted", func() bool { return p.Stats().Errors["timeout"] == 1 })
	})
}

// TestUpgradedNobodyReads: both ends send, and neither reads; nothing moves, and the connection ends.
func TestUpgradedNobodyReads(t *testing.T) {
	fill := func(c net.Conn) {
		for piece := make([]byte, 1<<16); ; {
			if _, err := c.Write(piece); err != nil {
				return
			}
		}
	}
	over := make(chan struct{})
	u := newUpstream(t, serveUpgrade(t, func(c net.Conn, _ *bufio.Reader) {
		fill(c)
		close(over)
	}))
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{IdleTimeout: 2 * time.Second, Upstream: u}}})
	c, _ := dialUpgrade(t, p.addr, "")
	fill(c)
	<-over
	eventually(t, "the error is counted", func() bool { return p.Stats().Errors["timeout"] == 1 })
}

// TestUpgradeWithoutConnection: Upgrade alone is not about this connection.
func TestUpgradeWithoutConnection(t *testing.T) {
	backend := serveRaw(t, func(c net.Conn) {
		if readRequest(bufio.NewReader(c)) == nil {
			_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\nsecret")
		}
	})
	p := startProxy(t, routeTo(newUpstream(t, backend)))
	c, br := dialRaw(t, p.addr)
	if resp, body := roundTrip(t, c, br, upgradeRequest); resp.StatusCode != http.StatusBadGateway || strings.Contains(body, "secret") {
		t.Errorf("%s %q", resp.Status, body)
	}
}

// TestUpgradeThatNobodyAskedFor: an unrequested upgrade, or one to another protocol, is an invalid answer.
func TestUpgradeThatNobodyAskedFor(t *testing.T) {
	backend := serveRaw(t, func(c net.Conn) {
		if readRequest(bufio.NewReader(c)) == nil {
			_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: other\r\n\r\nsecret")
		}
	})
	p := startProxy(t, routeTo(newUpstream(t, backend)))
	for _, fields := range []string{
		"", "Connection: Upgrade\r\nUpgrade: websocket\r\n", "Upgrade: other\r\n", "Connection: Upgrade\r\nUpgrade: h2c, other\r\n",
		"Connection: Upgrade\r\nUpgrade: TLS/1.0, other\r\n", "Connection: Upgrade\r\nUpgrade: other, HTTP/2.0\r\n",
		"Connection: Upgrade\r\nUpgrade: H2C-16,other\r\n", "Connection: Upgrade\r\nUpgrade: other,\th2\r\n",
		"Connection: Upgrade\r\nUpgrade: other\r\nTransfer-Encoding: chunked\r\n",
	} {
		c, br := dialRaw(t, p.addr)
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\n"+fields+"\r\n")
		if strings.Contains(fields, "chunked") {
			_, _ = io.WriteString(c, "0\r\n\r\n")
		}
		if resp, body := readAnswer(t, br); resp.StatusCode != http.StatusBadGateway || strings.Contains(body, "secret") {
			t.Errorf("%q: %s %q", fields, resp.Status, body)
		}
	}
}
