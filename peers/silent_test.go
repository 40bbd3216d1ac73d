package peers_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

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
