//go:build !race

package http3_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/quic-go/quic-go"
	quichttp3 "github.com/quic-go/quic-go/http3"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/listener"
)

// Clients give their handshakes up after seconds. With the race detector, a busy machine cannot begin enough of them by then.

// isRetry reports whether a packet is a Retry (RFC 9000, section 17.2.5).
func isRetry(packet []byte) bool { return len(packet) > 0 && packet[0]>>4 == 0xf }

// deaf is the socket of a client that gets Retry packets only, so that its handshake goes on until it times out.
type deaf struct{ net.PacketConn }

func (d deaf) ReadFrom(p []byte) (int, net.Addr, error) {
	for {
		n, from, err := d.PacketConn.ReadFrom(p)
		if err != nil || isRetry(p[:n]) {
			return n, from, err
		}
	}
}

// begin has clients at an address begin handshakes that do not end, until the test ends.
func (w *world) begin(host string, clients int) {
	w.t.Helper()
	to, err := net.ResolveUDPAddr("udp", w.gw.Addr("web"))
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	w.t.Cleanup(func() { cancel(); all.Wait() })
	for range clients {
		socket, err := net.ListenPacket("udp", net.JoinHostPort(host, "0"))
		if err != nil {
			w.t.Fatal(err)
		}
		all.Go(func() {
			tr := &quic.Transport{Conn: deaf{socket}}
			for ctx.Err() == nil { // each gives up after some seconds
				_, _ = tr.Dial(ctx, to, w.tls(), &quic.Config{})
			}
			_ = socket.Close()
			_ = tr.Close()
		})
	}
}

// watching is a client's socket that notes whether a Retry has come.
type watching struct {
	net.PacketConn
	retry atomic.Bool
}

func (c *watching) ReadFrom(p []byte) (int, net.Addr, error) {
	n, from, err := c.PacketConn.ReadFrom(p)
	if isRetry(p[:n]) {
		c.retry.Store(true)
	}
	return n, from, err
}

// getFrom asks by a new connection from an address, and reports whether that had to show that the address is its own.
func (w *world) getFrom(host string) (shown bool, err error) {
	w.t.Helper()
	to, err := net.ResolveUDPAddr("udp", w.gw.Addr("web"))
	if err != nil {
		w.t.Fatal(err)
	}
	socket, err := net.ListenPacket("udp", net.JoinHostPort(host, "0"))
	if err != nil {
		w.t.Fatal(err)
	}
	defer socket.Close()
	c := &watching{PacketConn: socket}
	tr := &quic.Transport{Conn: c}
	defer tr.Close()
	conn, err := tr.Dial(context.Background(), to, w.tls(), &quic.Config{})
	if err != nil {
		return c.retry.Load(), err
	}
	defer func() { _ = conn.CloseWithError(0, "") }()
	resp, err := (&quichttp3.Transport{}).NewClientConn(conn).RoundTrip(request(w.t, w.url("/")))
	if err == nil {
		<-w.started
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			w.t.Error(resp.Status)
		}
	}
	return c.retry.Load(), err
}

// TestFloodOfHandshakes: while clients begin handshakes and do not end them, others are served once they have shown that their address is
// theirs, but not from an address that has shown itself and has begun very many.
func TestFloodOfHandshakes(t *testing.T) {
	w := run(t, standard)
	if shown, err := w.getFrom("127.0.0.1"); shown || err != nil {
		t.Errorf("before: %v, had to show its address: %v", err, shown)
	}
	w.begin("127.0.0.2", 70)
	conntest.Eventually(t, "clients have to show their addresses", func() bool {
		shown, err := w.getFrom("127.0.0.1")
		if err != nil {
			t.Error(err)
		}
		return shown
	})
	w.begin("127.0.0.2", 150)
	conntest.Eventually(t, "clients at the address of the flood are refused", func() bool {
		shown, err := w.getFrom("127.0.0.2")
		late, ok := errors.AsType[net.Error](err)
		switch {
		case ok && late.Timeout(): // a machine that is too busy for a handshake
			return false
		case err != nil && (!shown || !refusedAtOnce(err)):
			t.Errorf("%v, had to show its address: %v", err, shown)
		}
		return err != nil
	})
	if shown, err := w.getFrom("127.0.0.1"); !shown || err != nil {
		t.Errorf("elsewhere: %v, had to show its address: %v", err, shown)
	}
	if _, rejected := w.counted(listener.ReasonRejected); rejected == 0 {
		t.Error("the refusals are not counted")
	}
}
