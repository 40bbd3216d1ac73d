package tunnel_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/tunnel"
)

var (
	oldKey   = []byte("the old key of branch")
	newKey   = []byte("the new key of branch")
	depotKey = []byte("the key of the depot")
)

// peers is a server's configuration with keys of two peers' own and one for all others.
func peers(c *tunnel.ServerConfig) {
	c.Peers = []tunnel.Peer{{Name: "branch", Keys: [][]byte{oldKey, newKey}}, {Name: "depot", Keys: [][]byte{depotKey}}, {Name: "other"}}
}

// connected makes a client and returns the name that the server knows it by; "": it was denied.
func connected(t *testing.T, e *ends, name string, key []byte) string {
	t.Helper()
	before := e.server.Tunnel()
	c, err := tunnel.NewClient(tunnel.ClientConfig{Address: e.address, Config: tunnel.Config{Name: name, PSK: key, Logger: e.clientLog.Logger()}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	conntest.Eventually(t, "an answer", func() bool { return c.Stats().LastError != nil || c.Stats().Sessions > 0 })
	if c.Stats().LastError != nil {
		if !strings.Contains(c.Stats().LastError.Error(), "denied") {
			t.Errorf("%q: %v", name, c.Stats().LastError)
		}
		return ""
	}
	got := "?"
	conntest.Eventually(t, "the server has it", func() bool {
		for _, n := range e.server.Tunnel().Connected {
			if !slices.Contains(before.Connected, n) {
				got = n
			}
		}
		return got != "?"
	})
	c.Close()
	conntest.Eventually(t, "it is gone", func() bool { return len(e.server.Tunnel().Connected) == len(before.Connected) })
	return got
}

// TestPeerKeys: a name belongs to the peers with one of its keys, and a key determines a name.
func TestPeerKeys(t *testing.T) {
	e := start(t, options{server: peers, client: func(c *tunnel.ClientConfig) { c.Name = "other" }})
	conntest.Eventually(t, "the other is there", func() bool { return len(e.server.Tunnel().Connected) == 1 })
	for _, c := range []struct {
		name string
		key  []byte
		want string
	}{
		{"branch", oldKey, "branch"},
		{"branch", newKey, "branch"},
		{"depot", depotKey, "depot"},
		{"", newKey, "branch"},
		{"", depotKey, "depot"},
		{"branch", depotKey, ""}, // the name of another peer
		{"branch", key, ""},      // with the key of all other peers
		{"depot", oldKey, ""},
		{"other", depotKey, ""},
		{"nobody", key, ""}, // not one of the peers
		{"nobody", depotKey, ""},
		{"", []byte("a key of nobody at all"), ""},
	} {
		if got := connected(t, e, c.name, c.key); got != c.want {
			t.Errorf("%q with %q is %q, want %q", c.name, c.key, got, c.want)
		}
	}
	conntest.Eventually(t, "the log names the peer", func() bool {
		return e.serverLog.Line("no session with a peer", "peer=depot", "reason=auth_failed") != ""
	})
	for _, k := range [][]byte{oldKey, newKey, depotKey, key} {
		if e.serverLog.Line(string(k)) != "" || e.clientLog.Line(string(k)) != "" {
			t.Error("a key is in the log")
		}
	}
}

// TestPeerPolicy: each peer may connect to the common targets, and to its own.
func TestPeerPolicy(t *testing.T) {
	common, own, others := conntest.Serve(t, conntest.Echo), conntest.Serve(t, conntest.Echo), conntest.Serve(t, conntest.Echo)
	e := start(t, options{server: func(c *tunnel.ServerConfig) {
		allow(common)(c)
		c.Peers = []tunnel.Peer{{Name: "branch", Policy: policy(own)}, {Name: "depot", Policy: policy(others)}}
	}})
	for _, target := range []string{common, own} {
		conntest.Exchange(t, open(t, e, target), "hello")
	}
	if _, err := e.client.Dial(soon(t), others); !errors.Is(err, tunnel.ErrRefused) {
		t.Errorf("a target of another peer: %v", err)
	}
}

// TestRevoked: the sessions of a removed key end at once, those of other keys continue.
func TestRevoked(t *testing.T) {
	target := conntest.Serve(t, conntest.Echo)
	var sc tunnel.ServerConfig
	e := start(t, options{
		server: func(c *tunnel.ServerConfig) { peers(c); allow(target)(c); sc = *c },
		client: func(c *tunnel.ClientConfig) { c.PSK = oldKey },
	})
	other, err := tunnel.NewClient(tunnel.ClientConfig{Address: e.address, Config: tunnel.Config{Name: "branch", PSK: newKey, Logger: e.clientLog.Logger()}})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	revoked := open(t, e, target)
	conntest.Exchange(t, revoked, "hello")
	stays, err := other.Dial(soon(t), target)
	if err != nil {
		t.Fatal(err)
	}
	defer stays.Close()
	sc.Peers = slices.Clone(sc.Peers)
	sc.Peers[0].Keys = [][]byte{newKey}
	if err := e.server.Update(sc); err != nil {
		t.Fatal(err)
	}
	if _, err := revoked.Read(make([]byte, 1)); err == nil {
		t.Error("a stream of a revoked key continues")
	}
	conntest.Exchange(t, stays, "hello")
	conntest.Eventually(t, "it is denied", func() bool {
		err := e.client.Stats().LastError
		return err != nil && strings.Contains(err.Error(), "denied")
	})
	conntest.Eventually(t, "the log says why", func() bool { return e.serverLog.Line("session over", "peer=branch", "revoked") != "" })
	sc.Peers = sc.Peers[1:]
	if err := e.server.Update(sc); err != nil {
		t.Fatal(err)
	}
	if _, err := stays.Read(make([]byte, 1)); err == nil {
		t.Error("a stream of a peer that may no longer connect continues")
	}
	conntest.Eventually(t, "no session is left", func() bool { return e.server.Tunnel().Sessions == 0 })
}

func TestPeersAreChecked(t *testing.T) {
	for name, all := range map[string][]tunnel.Peer{
		"no name":         {{Keys: [][]byte{depotKey}}},
		"twice":           {{Name: "a", Keys: [][]byte{oldKey}}, {Name: "a", Keys: [][]byte{newKey}}},
		"short":           {{Name: "a", Keys: [][]byte{[]byte("short")}}},
		"a key of two":    {{Name: "a", Keys: [][]byte{oldKey}}, {Name: "b", Keys: [][]byte{oldKey}}},
		"without a proof": {{Name: "a", Keys: [][]byte{oldKey}}, {Name: "b"}},
	} {
		if s, err := tunnel.NewServer(tunnel.ServerConfig{Peers: all}); !errors.Is(err, tunnel.ErrConfig) {
			t.Errorf("%s: %v, %v", name, s, err)
		}
	}
}

// TestFallbacks: another server is used when the one in use is gone, for new streams also while those of
// the old one wait for it.
func TestFallbacks(t *testing.T) {
	target := conntest.Serve(t, conntest.Echo)
	second := start(t, options{server: allow(target), client: func(c *tunnel.ClientConfig) { c.Name = "somebody else" }})
	e := start(t, options{server: allow(target), client: func(c *tunnel.ClientConfig) {
		c.Fallbacks = []string{second.address}
		c.Tunnel = "far"
	}})
	held := open(t, e, target)
	conntest.Exchange(t, held, "hello")
	e.sockets.blockOnly(e.address)
	e.sockets.cut()
	conntest.Eventually(t, "it is noticed", func() bool { return e.client.Stats().Suspended == 1 })
	conn, err := e.client.Dial(soon(t), target)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conntest.Exchange(t, conn, "through the other")
	if got := second.server.Tunnel().Connected; !slices.Contains(got, "branch") {
		t.Errorf("%q", got)
	}
	e.sockets.blockOnly("")
	conntest.Exchange(t, held, "still there")
	_ = held.Close()
	conntest.Eventually(t, "the session of the first is over", func() bool { return e.server.Tunnel().Sessions == 0 })
}

// TestFallbacksAllFail: the error has them all.
func TestFallbacksAllFail(t *testing.T) {
	c, err := tunnel.NewClient(tunnel.ClientConfig{
		Address: "127.0.0.1:1", Fallbacks: []string{"127.0.0.1:2"}, Config: tunnel.Config{Name: "x", Logger: (&conntest.Log{}).Logger()},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = c.Open(soon(t), target1)
	for _, address := range []string{"127.0.0.1:1", "127.0.0.1:2"} {
		if !errors.Is(err, tunnel.ErrNotConnected) || strings.Count(fmt.Sprint(err), address) < 2 {
			t.Errorf("%v", err)
		}
	}
}

const target1 = "upstream:x"

// TestKeepAlive: a socket that brings nothing is replaced.
func TestKeepAlive(t *testing.T) {
	target := conntest.Serve(t, conntest.Echo)
	e := start(t, options{server: allow(target), client: func(c *tunnel.ClientConfig) { c.KeepAlive = 300 * time.Millisecond }})
	conn := open(t, e, target)
	conntest.Exchange(t, conn, "hello")
	e.sockets.freeze()
	conntest.Exchange(t, conn, "through another socket")
	if st := e.client.Stats(); st.Resumed == 0 {
		t.Errorf("%+v", st)
	}
}

// TestLogNamesThePeer: also where its key or its certificate identifies it.
func TestLogNamesThePeer(t *testing.T) {
	e := start(t, options{server: peers, client: func(c *tunnel.ClientConfig) { c.Name, c.PSK = "", depotKey }})
	conntest.Eventually(t, "it is there", func() bool { return len(e.server.Tunnel().Connected) == 1 })
	e.sockets.cut()
	conntest.Eventually(t, "the loss is logged", func() bool {
		return e.serverLog.Line("connection lost, session kept", "tunnel=peers", "peer=depot") != ""
	})
}
