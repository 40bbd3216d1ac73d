package tcpproxy_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"time"

	proxyproto "github.com/pires/go-proxyproto"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/certs"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/enginetest"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/tcpproxy"
	"github.com/headpond/headpond/upstream"
)

// combineCerts are certificates for all names.
type combineCerts struct {
	certificates []tls.Certificate
	pool         *x509.CertPool
}

func newCombineCerts() *combineCerts {
	a := certs.New()
	return &combineCerts{[]tls.Certificate{
		a.Issue("first", "localhost", "127.0.0.1", "other.example", "*.other.example"),
		a.Issue("second", "shop.example", "*.shop.example", "*.a.shop.example"),
	}, a.Pool}
}

// combineServer is a server of an upstream.
type combineServer struct {
	upstream *combineUpstream
	address  string
	kill     func()
	kind     string       // good, refuse (nobody listens), reset (at once), shut (after the first bytes)
	health   atomic.Int32 // 2 = checks fail, 3 = they are not answered, others = good
}

// combineBanner is what servers send first.
const combineBanner = "220 ready\r\n"

func newCombineUpstream(r *combineRound, rnd *rand.Rand, i int) *combineUpstream {
	u := &combineUpstream{r: r, i: i, tls: rnd.IntN(4) == 0, changes: rnd.IntN(2) == 0, small: rnd.IntN(6) == 0}
	u.banner = !u.tls && rnd.IntN(4) == 0
	for range 1 + rnd.IntN(4) {
		s := &combineServer{upstream: u, kind: "good"}
		if len(u.servers) > 0 {
			s.kind = [...]string{"good", "good", "good", "refuse", "reset", "shut"}[rnd.IntN(6)]
		}
		if s.kind == "refuse" {
			s.address, s.kill = r.nobody[len(u.servers)-1], func() {}
		} else {
			s.address, s.kill = conntest.ServeAt(r.t, "127.0.0.1:0", s.serve)
		}
		u.servers = append(u.servers, s)
		u.set.Endpoints = append(u.set.Endpoints, upstream.Endpoint{Address: s.address, Weight: 1 + rnd.IntN(3), Priority: rnd.IntN(4) / 3})
	}
	u.set.Endpoints[0].Priority = 0
	rnd.Shuffle(len(u.set.Endpoints), func(i, j int) {
		u.set.Endpoints[i], u.set.Endpoints[j] = u.set.Endpoints[j], u.set.Endpoints[i]
	})
	u.settings(rnd)
	o := tcpproxy.UpstreamOptions{Settings: u.set, Dial: enginetest.Dial, Go: fiber.Go, Logger: quiet}
	var err error
	if u.up, err = tcpproxy.NewUpstream(fmt.Sprintf("u%d", i), o); err != nil {
		r.t.Fatal(err)
	}
	return u
}

// settings chooses the upstream's settings.
func (u *combineUpstream) settings(rnd *rand.Rand) {
	u.set.Balance = [...]upstream.Balance{upstream.P2C, upstream.RoundRobin, upstream.RingHash, upstream.First}[rnd.IntN(4)]
	u.set.Limits = pool.Limits{MinIdle: max(0, rnd.IntN(6)-3), CheckInterval: 20 * time.Millisecond, OpenTimeout: conntest.Patience}
	if rnd.IntN(2) == 0 {
		u.set.Limits.MaxLifetime = 100 * time.Millisecond
	}
	if u.small {
		u.set.Limits.MinIdle, u.set.Limits.MaxSize, u.set.Limits.AcquireTimeout = 0, 2, 100*time.Millisecond
	}
	u.set.Ejection.Failures = [...]int{-1, 0, 2}[rnd.IntN(3)]
	u.set.Ejection.Base = 50 * time.Millisecond
	if !u.changes {
		return
	}
	u.set.OnRemoved = upstream.Removal(rnd.IntN(2))
	u.set.RemovedTimeout = time.Duration(rnd.IntN(2)) * 30 * time.Millisecond
	u.set.SlowStart = time.Duration(rnd.IntN(2)) * 50 * time.Millisecond
	if rnd.IntN(3) == 0 {
		u.set.Rebalance = upstream.Rebalance{PerMinute: 1200, Excess: 20, Order: upstream.RebalanceOrder(rnd.IntN(2))}
	}
	u.set.Health = upstream.Health{Probe: u.probe, Interval: 10 * time.Millisecond, Timeout: 20 * time.Millisecond, Rise: 1, Fall: 2, Stagger: 10 * time.Millisecond,
		OnUnhealthy: upstream.UnhealthyPolicy(rnd.IntN(3)), UnhealthyTimeout: 20 * time.Millisecond}
}

// probe is the health check.
func (u *combineUpstream) probe(ctx context.Context, endpoint string) error {
	for _, s := range u.servers {
		if s.address != endpoint {
			continue
		}
		switch s.health.Load() {
		case 2:
			return errors.New("sick")
		case 3:
			<-ctx.Done()
			return ctx.Err()
		}
	}
	return nil
}

// combineConn is a server's connection whose first bytes were read.
type combineConn struct {
	*net.TCPConn
	first *bufio.Reader
}

func (c combineConn) Read(p []byte) (int, error) { return c.first.Read(p) }

// serve serves a connection: whatever comes first says what it is.
func (s *combineServer) serve(c *net.TCPConn) {
	_ = c.SetDeadline(time.Now().Add(conntest.Patience))
	if s.kind == "reset" {
		_ = c.SetLinger(0)
		return
	}
	var bannerErr error
	if s.upstream.banner {
		_, bannerErr = io.WriteString(c, combineBanner)
	}
	r := bufio.NewReader(c)
	b, err := r.Peek(1)
	if err != nil { // it was not used
		return
	}
	if s.kind == "shut" {
		_ = c.CloseWrite()
		_, _ = io.Copy(io.Discard, c)
		return
	}
	var header *proxyproto.Header
	if b[0] == 'P' || b[0] == '\r' {
		if header, err = proxyproto.Read(r); err == nil {
			b, err = r.Peek(1)
		}
		if err != nil { // the proxy gave up, or the header is wrong
			if errors.Is(err, proxyproto.ErrNoProxyProtocol) {
				s.upstream.r.t.Errorf("a server gets no PROXY header, but %q", b)
			}
			return
		}
	}
	e := combineEnd{broke: wasReset(bannerErr), raw: c, stream: combineConn{c, r}}
	if b[0] == 22 {
		e.tls = tls.Server(e.stream, &tls.Config{Certificates: s.upstream.r.certs.certificates}) //nolint:gosec // the tests' own
		if e.tls.Handshake() != nil {
			return
		}
		e.stream = e.tls
	}
	s.talk(e, header)
}

// talk finds out which session it is, and does what its script says.
func (s *combineServer) talk(e combineEnd, header *proxyproto.Header) {
	tag := make([]byte, combineTag)
	if _, err := io.ReadFull(e.stream, tag); err != nil {
		return // the client gave up within it
	}
	found, ok := s.upstream.r.sessions.Load(string(tag))
	if !ok {
		s.upstream.r.t.Errorf("a server gets a session that begins with %q", tag)
		return
	}
	c := found.(*combined) //nolint:forcetypeassert // it has no others
	if !c.server.by.CompareAndSwap(nil, s) {
		s.upstream.r.failed(c, "two servers get the session")
		return
	}
	c.server.broke = e.broke
	c.checkArrival(s, e.tls != nil, header)
	defer close(c.served)
	c.server.play(c, e, &c.down, &c.up, s.upstream.banner)
}
