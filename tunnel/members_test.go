package tunnel_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/certs"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/mux"
	"github.com/headpond/headpond/tunnel"
)

// TestHelloAgainAndAgain: hellos of many new processes of one peer do not start as many goroutines that check whether
// its session still answers.
func TestHelloAgainAndAgain(t *testing.T) {
	e := start(t, options{})
	conntest.Eventually(t, "the session", func() bool { return e.server.Tunnel().Sessions == 1 })
	before := runtime.NumGoroutine()
	for i := range 1000 {
		e.server.Restarted("branch", [16]byte{byte(i), byte(i >> 8), 1})
	}
	if n := runtime.NumGoroutine(); n > before+100 {
		t.Errorf("%d goroutines more", n-before)
	}
	if e.server.Tunnel().Sessions != 1 {
		t.Error("a session that answers was ended")
	}
}

// TestStreamsToASuccessor: once a peer's new process has connected, streams to the peer go there, and not to a session whose
// process may be gone.
func TestStreamsToASuccessor(t *testing.T) {
	target := conntest.Serve(t, conntest.Echo)
	var cfg tunnel.ClientConfig
	e := start(t, options{
		server: func(c *tunnel.ServerConfig) { c.KeepAlive = time.Hour },
		client: func(c *tunnel.ClientConfig) {
			c.KeepAlive, c.Policy = time.Hour, policy(target)
			cfg = *c
		},
	})
	conntest.Eventually(t, "the session", func() bool { return e.server.Tunnel().Sessions == 1 })
	e.sockets.freeze()
	e.server.Restarted("branch", [16]byte{1})
	cfg.Dial = nil
	successor, err := tunnel.NewClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(successor.Close)
	conntest.Eventually(t, "the successor's session", func() bool { return e.server.Tunnel().Sessions == 2 })
	for range 10 {
		c, err := e.server.Dial(soon(t), "branch", target)
		if err != nil {
			t.Fatal(err)
		}
		conntest.Exchange(t, c, "hello")
		t.Cleanup(func() { _ = c.Close() })
	}
}

// TestStreamsOfASessionGivenUp: no more are accepted, because they would not be counted.
func TestStreamsOfASessionGivenUp(t *testing.T) {
	members, session := tunnel.NewMembers(2), anySession(t)
	m := members.Add("branch", session)
	if !members.Enter(m) {
		t.Error("a stream is refused")
	}
	members.Drop(m)
	if members.Enter(m) {
		t.Error("a stream of a session that was given up is taken")
	}
}

// TestStreamsInTurn: streams above the limit are admitted in their order, those of all sessions of a peer together. A session that is given
// up makes room for the others.
func TestStreamsInTurn(t *testing.T) {
	members, session := tunnel.NewMembers(2), anySession(t)
	one, other := members.Add("branch", session), members.Add("branch", session)
	if !members.Enter(one) || !members.Enter(one) {
		t.Error("a stream is refused")
	}
	first, second, third := members.Queue(other), members.Queue(one), members.Queue(other)
	members.Leave(one)
	if !first() || second() || third() {
		t.Errorf("with room for one: %v, %v, %v", first(), second(), third())
	}
	members.Drop(one)
	if second() || !third() {
		t.Error("not the stream of the session that remains")
	}
}

// TestLateReleaseOfAnEndedSession: it does not change the limits of the next peer of its name.
func TestLateReleaseOfAnEndedSession(t *testing.T) {
	members, session := tunnel.NewMembers(2), anySession(t)
	old := members.Add("branch", session)
	if !members.Enter(old) || !members.Enter(old) {
		t.Error("a stream is refused")
	}
	members.Remove(old)
	next := members.Add("branch", session)
	members.Drop(old)
	if !members.Enter(next) || !members.Enter(next) || members.Enter(next) {
		t.Error("the next peer has not two streams")
	}
}

func anySession(t *testing.T) *mux.Session {
	t.Helper()
	s, err := join(t, dialTCP(t, start(t, options{}).address), mux.Config{Name: "any", PSK: key})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestAuthorityIsDropped: sessions of peers end when the authority of their certificates is
// removed.
func TestAuthorityIsDropped(t *testing.T) {
	ca, other := certs.New(), certs.New()
	o := mutual(t, ca, ca, "branch", "branch")
	var sc tunnel.ServerConfig
	inner := o.server
	o.server = func(c *tunnel.ServerConfig) { inner(c); sc = *c }
	e := start(t, o)
	conntest.Eventually(t, "the session", func() bool { return e.server.Tunnel().Sessions == 1 })
	update := func(cas *certs.Authority) {
		sc.TLS = sc.TLS.Clone()
		sc.TLS.ClientCAs = cas.Pool
		if err := e.server.Update(sc); err != nil {
			t.Fatal(err)
		}
	}
	update(ca)
	if st := e.server.Tunnel(); st.Sessions != 1 || st.Made != 1 {
		t.Errorf("after an update that changes nothing: %+v", st)
	}
	update(other)
	conntest.Eventually(t, "no session is left", func() bool { return e.server.Tunnel().Sessions == 0 })
	conntest.Eventually(t, "the log says why", func() bool { return e.serverLog.Line("session over", "peer=branch", "revoked") != "" })
	if sc.TLS.ClientAuth != tls.RequireAndVerifyClientCert {
		t.Error("certificates are not asked for")
	}
}

// TestCertificateIsRevoked: sessions of peers end when their certificates are not accepted any more.
func TestCertificateIsRevoked(t *testing.T) {
	ca := certs.New()
	o := mutual(t, ca, ca, "branch", "branch")
	var sc tunnel.ServerConfig
	inner := o.server
	o.server = func(c *tunnel.ServerConfig) { inner(c); sc = *c }
	e := start(t, o)
	conntest.Eventually(t, "the session", func() bool { return e.server.Tunnel().Sessions == 1 })
	update := func(revoked error) {
		sc.TLS = sc.TLS.Clone()
		sc.TLS.VerifyConnection = func(s tls.ConnectionState) error {
			if len(s.VerifiedChains) == 0 {
				t.Error("the certificate is not verified")
			}
			return revoked
		}
		if err := e.server.Update(sc); err != nil {
			t.Fatal(err)
		}
	}
	update(nil)
	if st := e.server.Tunnel(); st.Sessions != 1 || st.Made != 1 {
		t.Errorf("after an update that changes nothing: %+v", st)
	}
	update(errors.New("revoked"))
	conntest.Eventually(t, "no session is left", func() bool { return e.server.Tunnel().Sessions == 0 })
}

// TestPeersWithoutAName: the number of keys tried for an unproved peer is limited.
func TestPeersWithoutAName(t *testing.T) {
	for _, peers := range []int{64, 65} {
		var last []byte
		e := start(t, options{server: func(c *tunnel.ServerConfig) {
			c.PSK = nil
			for i := range peers {
				last = fmt.Appendf(nil, "the key of peer %04d", i)
				c.Peers = append(c.Peers, tunnel.Peer{Name: fmt.Sprint("peer", i), Keys: [][]byte{last}})
			}
		}})
		_, err := join(t, dialTCP(t, e.address), mux.Config{PSK: last})
		if (err == nil) != (peers == 64) {
			t.Errorf("%d peers, and one without a name: %v", peers, err)
		}
		if _, err := join(t, dialTCP(t, e.address), mux.Config{PSK: last, Name: fmt.Sprint("peer", peers-1)}); err != nil {
			t.Errorf("%d peers, and one with a name: %v", peers, err)
		}
	}
}
