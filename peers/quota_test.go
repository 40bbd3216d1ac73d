package peers_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/peers"
	"github.com/headpond/headpond/tunnel"
)

// TestQuotas: how many connections and bytes a peer may have at a time, by a clock of its own.
func TestQuotas(t *testing.T) {
	q, now := peers.NewQuotas(), time.Unix(1_000_000, 0)
	limits := peers.Limits{Rate: 4}
	for i := range 5 {
		_, err := q.Enter("svc", "a", limits, now)
		if (err == nil) != (i < 4) || err != nil && (!errors.Is(err, tunnel.ErrBusy) || !strings.Contains(err.Error(), "more than 4 connections a second to service svc")) {
			t.Errorf("%d: %v", i, err)
		}
	}
	if _, err := q.Enter("svc", "b", limits, now); err != nil {
		t.Error("another peer:", err)
	}
	now = now.Add(250 * time.Millisecond)
	for i := range 2 {
		if _, err := q.Enter("svc", "a", limits, now); (err == nil) != (i == 0) {
			t.Errorf("%d a quarter of a second later: %v", i, err)
		}
	}
	k, err := q.Enter("svc", "c", peers.Limits{}, now)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []time.Duration{0, 500 * time.Millisecond, time.Second} { // 1,000 bytes at once, and then 1,000 a second
		if got := q.Spend(k, []int{1000, 500, 500}[i], 1000, now); got != want {
			t.Errorf("%d: a wait of %v, want %v", i, got, want)
		}
	}
	if got := q.Spend(k, 1000, 1000, now.Add(2*time.Second)); got != 0 {
		t.Error(got)
	}
	if s := q.Stats(); s.Refused != 2 || s.Waited != 1500*time.Millisecond {
		t.Errorf("%+v", s)
	}
}

// TestQuotasAreForgotten: identities by the thousand do not fill the memory, and keep nobody out for long.
func TestQuotasAreForgotten(t *testing.T) {
	q, now := peers.NewQuotas(), time.Unix(1_000_000, 0)
	limits := peers.Limits{Conns: 1}
	for i := range peers.MaxQuotas {
		k, err := q.Enter("svc", fmt.Sprint(i), limits, now)
		if err != nil {
			t.Fatal(err)
		}
		if i > 0 {
			q.Leave(k)
		}
	}
	if _, err := q.Enter("svc", "one more", limits, now); !errors.Is(err, tunnel.ErrBusy) {
		t.Error(err)
	}
	now = now.Add(2 * time.Second)
	if _, err := q.Enter("svc", "one more", limits, now); err != nil || q.Len() != 2 {
		t.Errorf("%v, %d", err, q.Len())
	}
	if _, err := q.Enter("svc", "0", limits, now); !errors.Is(err, tunnel.ErrBusy) {
		t.Error("the one that is still there may have a second connection:", err)
	}
}

// TestLimitsPerPeer: a peer that has what it may gets a clear error, others get theirs, and whoever is too fast waits.
func TestLimitsPerPeer(t *testing.T) {
	s := echo(t)
	s.PerPeer = peers.Limits{Conns: 2, BytesPerSecond: 1 << 10}
	far, log := start(t, peers.Config{Services: []peers.Service{s}})
	a, _ := start(t, peers.Config{Bootstrap: far.Addrs()})
	b, _ := start(t, peers.Config{Bootstrap: far.Addrs()})
	connected(t, a, far)
	connected(t, b, far)
	one, two := reach(t, a, far), reach(t, a, far)
	target := peers.Target{Peer: far.ID(), Service: "echo"}
	if _, err := a.Dial(soon(t), target); !errors.Is(err, peers.ErrBusy) || !strings.Contains(err.Error(), "the peer has 2 connections to service echo open, the most it may have") {
		t.Error(err)
	}
	if s := far.Status(); s.Limits.Refused != 1 || s.Served.Refused != 1 {
		t.Errorf("%+v %+v", s.Limits, s.Served)
	}
	conntest.Eventually(t, "the log names it", func() bool { return log.Line("stream refused", a.ID(), "the most it may have") != "" })
	other := reach(t, b, far)
	_ = one.Close()
	conntest.Eventually(t, "it may have another one", func() bool {
		c, err := a.Dial(soon(t), target)
		if err == nil {
			one = c
		}
		return err == nil
	})
	if far.Status().Limits.Waited != 0 {
		t.Error("they have waited for nothing")
	}
	conntest.Exchange(t, one.(net.Conn), strings.Repeat("x", 3<<9)) // more than a second's at once
	if far.Status().Limits.Waited == 0 {
		t.Error("nothing has waited")
	}
	for _, c := range []io.Closer{one, two, other} {
		_ = c.Close()
	}
	if err := far.SetServices([]peers.Service{{Name: "bad", Connect: s.Connect, PerPeer: peers.Limits{Rate: -1}}}); !errors.Is(err, peers.ErrConfig) {
		t.Error(err)
	}
}
