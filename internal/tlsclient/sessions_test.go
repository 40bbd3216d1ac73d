package tlsclient_test

import (
	"crypto/tls"
	"fmt"
	"testing"

	"github.com/headpond/headpond/internal/tlsclient"
)

func session() *tls.ClientSessionState { return new(tls.ClientSessionState) }

func TestSessionsAreUsedOnceButTheLast(t *testing.T) {
	s := tlsclient.NewSessions()
	if _, ok := s.Get("a"); ok {
		t.Error("a session out of nowhere")
	}
	var put []*tls.ClientSessionState
	for range 20 {
		put = append(put, session())
		s.Put("a", put[len(put)-1])
	}
	for i := range 8 {
		if got, ok := s.Get("a"); !ok || got != put[19-i] {
			t.Errorf("session %d is not the newest that was not used", i)
		}
	}
	if got, ok := s.Get("a"); !ok || got != put[12] {
		t.Error("the last one is gone")
	}
	s.Put("a", nil)
	if _, ok := s.Get("a"); ok {
		t.Error("a session after Put(nil)")
	}
}

func TestSessionsAreBounded(t *testing.T) {
	s := tlsclient.NewSessions()
	for i := range 1000 {
		s.Put(fmt.Sprint(i), session())
	}
	kept := 0
	for i := range 1000 {
		if _, ok := s.Get(fmt.Sprint(i)); ok {
			kept++
		}
	}
	if kept != 256 {
		t.Errorf("sessions of %d endpoints are kept", kept)
	}
	if _, ok := s.Get("999"); !ok {
		t.Error("the newest is not")
	}
}

func TestSessionsOfEndpoints(t *testing.T) {
	cfg := tlsclient.WithSessions(&tls.Config{})
	for endpoint, name := range map[string]string{
		"db.example:5432": "db.example", "10.0.0.1:443": "10.0.0.1", "[::1]:443": "::1", "[fe80::1%eth0]:443": "fe80::1", "unix:/run/x.sock": "localhost",
	} {
		if got := tlsclient.For(cfg, endpoint).ServerName; got != name {
			t.Errorf("the server name of %s is %q, want %q", endpoint, got, name)
		}
	}
	named := tlsclient.WithSessions(&tls.Config{ServerName: "api"})
	a, again, b := tlsclient.For(named, "10.0.0.1:443"), tlsclient.For(named, "10.0.0.1:443"), tlsclient.For(named, "10.0.0.2:443")
	if a.ServerName != "api" {
		t.Errorf("the server name is %q", a.ServerName)
	}
	a.ClientSessionCache.Put("api", session())
	if _, ok := again.ClientSessionCache.Get("api"); !ok {
		t.Error("an endpoint's connections do not share sessions")
	}
	if _, ok := b.ClientSessionCache.Get("api"); ok {
		t.Error("another endpoint was given the session")
	}
}

func TestWithSessionsLeavesOthersAlone(t *testing.T) {
	own := tls.NewLRUClientSessionCache(1)
	if got := tlsclient.WithSessions(&tls.Config{ClientSessionCache: own}); got.ClientSessionCache != own {
		t.Error("a cache was replaced")
	}
	if tlsclient.WithSessions(nil) != nil {
		t.Error("no configuration became one")
	}
}
