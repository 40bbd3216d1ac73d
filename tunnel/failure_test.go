package tunnel_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/tunnel"
)

// TestClientSaysWhatFails: the last error and when it began, until there is a session; and again when that has lost its socket.
func TestClientSaysWhatFails(t *testing.T) {
	attempts, free := make(chan struct{}), make(chan struct{})
	var dead atomic.Bool
	dead.Store(true)
	began := time.Now()
	e := start(t, options{client: func(c *tunnel.ClientConfig) {
		inner := c.Dial
		c.Dial = func(ctx context.Context, address string) (net.Conn, error) {
			if dead.Load() {
				select {
				case attempts <- struct{}{}:
				case <-free:
				case <-ctx.Done():
				}
				return nil, errors.New("no way there")
			}
			return inner(ctx, address)
		}
	}})
	<-attempts
	<-attempts // the first has ended
	first := e.client.Stats()
	if first.LastError == nil || !strings.Contains(first.LastError.Error(), "no way there") || first.FailingSince.Before(began) || first.FailingSince.After(time.Now()) {
		t.Fatalf("%v since %v", first.LastError, first.FailingSince)
	}
	<-attempts
	if s := e.client.Stats(); !s.FailingSince.Equal(first.FailingSince) {
		t.Errorf("it fails since %v, and since %v", first.FailingSince, s.FailingSince)
	}
	dead.Store(false)
	close(free)
	conntest.Eventually(t, "it is connected", func() bool {
		s := e.client.Stats()
		return s.Sessions == 1 && s.LastError == nil && s.FailingSince.IsZero()
	})
	dead.Store(true)
	e.sockets.cut()
	conntest.Eventually(t, "the socket is missed", func() bool {
		s := e.client.Stats()
		return s.Suspended == 1 && s.LastError != nil && s.FailingSince.After(first.FailingSince)
	})
	dead.Store(false)
	conntest.Eventually(t, "it has another", func() bool { s := e.client.Stats(); return s.Suspended == 0 && s.LastError == nil })
}

// TestServerSaysWhoIsAbsent: a peer that never came, one that was turned away, and one that has gone.
func TestServerSaysWhoIsAbsent(t *testing.T) {
	began := time.Now()
	e := start(t, options{})
	conntest.Eventually(t, "the peer is there", func() bool { _, err := e.server.Absent("branch"); return err == nil })
	since, err := e.server.Absent("other")
	if !errors.Is(err, tunnel.ErrNotConnected) || !strings.Contains(err.Error(), `"other"`) || since.Before(began) {
		t.Errorf("%v since %v", err, since)
	}
	bad, err := tunnel.NewClient(tunnel.ClientConfig{Address: e.address, Config: tunnel.Config{Name: "other", PSK: []byte("another key altogether"), Logger: slog.New(slog.DiscardHandler)}})
	if err != nil {
		t.Fatal(err)
	}
	defer bad.Close()
	conntest.Eventually(t, "it is turned away", func() bool { _, err := e.server.Absent("other"); return strings.Contains(err.Error(), "turned away") })
	e.client.Close()
	conntest.Eventually(t, "the peer is gone", func() bool {
		since, err := e.server.Absent("branch")
		return errors.Is(err, tunnel.ErrNotConnected) && since.After(began)
	})
}
