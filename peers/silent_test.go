package peers_test

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/p2p/protocol/identify"
	"github.com/libp2p/go-libp2p/p2p/protocol/ping"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/peers"
)

// TestSilentConnection: a connection whose packets are dropped is replaced when the peer can be reached elsewhere, and what is open in it goes on.
func TestSilentConnection(t *testing.T) {
	tcp := []string{"/ip4/127.0.0.1/tcp/0"}
	through := newCable(t)
	far, _ := start(t, peers.Config{Listen: tcp, Services: []peers.Service{echo(t)}})
	through.lead(far)
	near, log := start(t, peers.Config{Listen: []string{}, Bootstrap: []string{through.address + "/p2p/" + far.ID()}})
	connected(t, near, far)
	c, err := near.Dial(soon(t), peers.Target{Peer: far.ID(), Service: "echo"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	conntest.Exchange(t, c, "before")
	if path := statusOf(near, far).Path; !strings.HasPrefix(path, through.address) {
		t.Fatalf("the path is %s, not %s", path, through.address)
	}
	conntest.Eventually(t, "its own address is known", func() bool { return len(near.Host().Peerstore().Addrs(far.Host().ID())) > 1 })
	through.silence(t)
	conntest.Exchange(t, c, "after")
	if log.Line("no answer on a connection", "another can be made", far.ID(), through.address) == "" {
		t.Errorf("the log does not say that the connection was replaced: %s", log)
	}
	if s := statusOf(near, far); strings.HasPrefix(s.Path, through.address) || s.Calls.Opened != 1 {
		t.Errorf("%+v", s)
	}
}

// TestSilentConnectionIsKept: while no other one can be made, a connection whose packets are held up is kept, and goes on when they pass again.
func TestSilentConnectionIsKept(t *testing.T) {
	through, log := newCable(t), &conntest.Log{}
	far, _ := start(t, peers.Config{Listen: []string{"/ip4/127.0.0.1/tcp/0"}, Announce: []string{through.address}, Services: []peers.Service{echo(t)}})
	through.lead(far)
	near, _ := start(t, peers.Config{
		Listen: []string{}, KeepAlive: 300 * time.Millisecond, Bootstrap: far.Addrs(),
		Logger: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	connected(t, near, far)
	c, err := near.Dial(soon(t), peers.Target{Peer: far.ID(), Service: "echo"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	conntest.Exchange(t, c, "before")
	const closed = "closed, as another can be made"
	end := through.silence(t)
	before := strings.Count(log.String(), closed) // a busy machine may have replaced it while another could be made
	conntest.Eventually(t, "another connection was tried", func() bool { return log.Line("no answer on a connection, and no other can be made") != "" })
	if strings.Count(log.String(), closed) > before {
		t.Errorf("it was closed: %s", log)
	}
	end()
	conntest.Exchange(t, c, "after")
}

// TestUnidentifiedIsNotSilent: a connection on which libp2p waits for a peer's identification, for longer than a call may take, is not replaced,
// and calls use it afterwards.
func TestUnidentifiedIsNotSilent(t *testing.T) {
	far, _ := start(t, peers.Config{Listen: []string{"/ip4/127.0.0.1/tcp/0"}, Services: []peers.Service{echo(t)}})
	identifies, err := peers.HandlerOf(far.Host(), identify.ID)
	if err != nil {
		t.Fatal(err)
	}
	kept := make(chan struct{})
	far.Host().SetStreamHandler(identify.ID, func(s network.Stream) {
		<-kept
		_ = identifies(identify.ID, s)
	})
	log := &conntest.Log{}
	near, _ := start(t, peers.Config{
		Listen: []string{}, KeepAlive: 300 * time.Millisecond, Bootstrap: far.Addrs(),
		Logger: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	var once sync.Once
	release := func() { once.Do(func() { close(kept) }) }
	t.Cleanup(release) // before the nodes end
	ctx, cancel := context.WithCancel(t.Context())
	var called atomic.Bool // before the connection was kept: on a machine that stood still until libp2p gave up
	var work sync.WaitGroup
	work.Go(func() {
		for ctx.Err() == nil {
			if c, err := near.Dial(ctx, peers.Target{Peer: far.ID(), Service: "echo"}); err == nil {
				called.Store(true)
				_ = c.Close()
				return
			}
		}
	})
	defer work.Wait()
	defer cancel()
	conntest.Eventually(t, "the connection is kept", func() bool {
		return called.Load() || log.Line("a connection answers only pings; keeping it", far.ID()) != ""
	})
	release()
	work.Wait()
	var c net.Conn
	conntest.Eventually(t, "the service can be called", func() (ok bool) {
		var err error
		c, err = near.Dial(soon(t), peers.Target{Peer: far.ID(), Service: "echo"})
		return err == nil
	})
	defer c.Close()
	conntest.Exchange(t, c, "identified")
}

// TestFailedPing: a connection is not closed because the peer resets a ping, or the caller goes before it is answered, though another can be made.
func TestFailedPing(t *testing.T) {
	for _, resets := range []bool{true, false} {
		t.Run(map[bool]string{true: "reset", false: "caller goes"}[resets], func(t *testing.T) {
			conntest.Eventually(t, "the machine does not stop for two seconds during a ping", func() bool { return failedPing(t, resets) })
		})
	}
}

// failedPing reports false if the time of the ping was over before it was reset, or the caller went, which proves nothing.
func failedPing(t *testing.T, resets bool) bool {
	t.Helper()
	far, _ := start(t, peers.Config{Listen: []string{"/ip4/127.0.0.1/tcp/0"}, Services: []peers.Service{echo(t)}})
	near, log := start(t, peers.Config{Listen: []string{}, Bootstrap: far.Addrs()})
	c, err := near.Dial(soon(t), peers.Target{Peer: far.ID(), Service: "echo"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	conntest.Exchange(t, c, "before")
	answer, tried := make(chan struct{}), make(chan struct{})
	answers := sync.OnceFunc(func() { close(answer) })
	defer answers()
	if resets {
		answers()
	}
	far.Host().SetStreamHandler(ping.ID, func(s network.Stream) {
		<-answer
		_ = s.Reset()
	})
	disconnected := sync.OnceFunc(func() { close(tried) })
	far.Host().Network().Notify(&network.NotifyBundle{DisconnectedF: func(network.Network, network.Conn) { disconnected() }})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	began, looked := time.Now(), make(chan struct{})
	go func() {
		defer close(looked)
		near.ReplaceSilent(ctx, far.Host().ID())
	}()
	if resets {
		<-looked
	} else {
		select {
		case <-tried: // another one can be made
		case <-looked:
			return false
		}
		cancel()
	}
	proves := time.Since(began) < peers.TryTimeout
	<-looked
	if !proves {
		return false
	}
	if log.Line("closed, as another can be made") != "" {
		t.Errorf("it was closed: %s", log)
	}
	conntest.Exchange(t, c, "after")
	return true
}
