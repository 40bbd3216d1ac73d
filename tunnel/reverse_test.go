package tunnel_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"testing"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/tunnel"
)

// The peer keeps its session to the server, and dials out for it.
func TestReverse(t *testing.T) {
	target := conntest.Serve(t, conntest.Echo)
	e := start(t, options{client: func(c *tunnel.ClientConfig) { c.Policy = policy(target); c.Sessions = 3 }})
	conntest.Eventually(t, "the sessions", func() bool { return e.server.Tunnel().Sessions == 3 })
	var all sync.WaitGroup
	for range 30 {
		all.Go(func() {
			c, err := e.server.Open(soon(t), "branch", target)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			conntest.Exchange(t, c, "hello")
		})
	}
	all.Wait()
	if st := e.client.Stats(); st.Accepted != 30 || st.Refused != 0 {
		t.Errorf("%+v", st)
	}
	if _, err := e.server.Dial(soon(t), "branch", "127.0.0.1:1"); !errors.Is(err, tunnel.ErrRefused) {
		t.Error(err)
	}
	conntest.Eventually(t, "the client's log", func() bool { return e.clientLog.Line("stream refused", "tunnel=far", "127.0.0.1:1") != "" })
	if _, err := e.server.Open(soon(t), "depot", target); !errors.Is(err, tunnel.ErrNotConnected) {
		t.Error(err)
	}
	if _, err := e.client.Dial(soon(t), target); !errors.Is(err, tunnel.ErrRefused) { // the server allows nothing
		t.Error(err)
	}
}

// A reverse stream outlives the socket under it, too.
func TestReverseResume(t *testing.T) {
	target := conntest.Serve(t, conntest.Echo)
	e := start(t, options{client: func(c *tunnel.ClientConfig) { c.Policy = policy(target) }})
	conntest.Eventually(t, "the session", func() bool { return e.server.Tunnel().Sessions == 1 })
	c, err := e.server.Open(soon(t), "branch", target)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 3 {
		conntest.Exchange(t, c, "hello")
		e.sockets.cut()
	}
	conntest.Exchange(t, c, "still there")
}

// A drain lets the streams end and takes no more.
func TestDrain(t *testing.T) {
	for _, side := range []string{"server", "client"} {
		t.Run(side, func(t *testing.T) {
			target := conntest.Serve(t, conntest.Echo)
			e := start(t, options{server: allow(target)})
			c := open(t, e, target)
			conntest.Exchange(t, c, "before")
			drained := make(chan error, 1)
			go func() {
				if side == "server" {
					drained <- e.server.Drain(soon(t))
				} else {
					drained <- e.client.Drain(soon(t))
				}
			}()
			conntest.Eventually(t, "no new stream", func() bool {
				extra, err := e.client.Dial(soon(t), target)
				if err == nil {
					_ = extra.Close()
				}
				return err != nil
			})
			large := bytes.Repeat([]byte("0123456789abcdef"), 64<<10)
			go func() {
				_, _ = c.Write(large)
				_ = c.CloseWrite()
			}()
			if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, large) {
				t.Errorf("%d bytes, %v", len(got), err)
			}
			if err := <-drained; err != nil {
				t.Error(err)
			}
		})
	}
}

// At the end of its time a drain cuts remaining streams and reports it.
func TestDrainTimeout(t *testing.T) {
	target := conntest.Serve(t, conntest.Echo)
	e := start(t, options{server: allow(target)})
	c := open(t, e, target)
	conntest.Exchange(t, c, "before")
	ctx, cancel := context.WithCancel(bg)
	cancel()
	if err := e.server.Drain(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if _, err := io.ReadAll(c); err == nil {
		t.Error("the cut stream looks complete")
	}
}

// A server that drains a session makes the client begin another, at another address or with a new
// server there, while the streams in the old one continue.
func TestDrainedSessionIsReplaced(t *testing.T) {
	target := conntest.Serve(t, conntest.Echo)
	e := start(t, options{server: allow(target)})
	old := open(t, e, target)
	conntest.Exchange(t, old, "old")
	var cfg tunnel.ServerConfig
	allow(target)(&cfg)
	cfg.PSK = key
	next, err := tunnel.NewServer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	drained := make(chan error, 1)
	go func() { drained <- e.server.Drain(soon(t)) }()
	l := listenAgain(t, e.address)
	go next.Serve(l)
	defer next.Close()
	conntest.Eventually(t, "a stream through the next server", func() bool {
		c, err := e.client.Dial(soon(t), target)
		if err != nil {
			return false
		}
		defer c.Close()
		conntest.Exchange(t, c, "next")
		return next.Tunnel().Accepted > 0
	})
	conntest.Exchange(t, old, "still there")
	_ = old.Close()
	if err := <-drained; err != nil {
		t.Error(err)
	}
}
