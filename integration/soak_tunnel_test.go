package integration

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/conntest"
)

// TestSoakTunnel moves connections through a tunnel between two gateways while its sockets are cut
// and both gateways reload, for a second. With HEADPOND_SOAK (`make soak`) it runs that long, and
// in each round the gateways stand still for a while and the far one is killed and restarted. Cuts,
// standstills and reloads must not be visible, data cut off by a kill must not look complete, and
// the near gateway must hold no more resources at the end.
func TestSoakTunnel(t *testing.T) {
	length, kill := conntest.SoakLength(t, time.Second)
	echoAddr, _ := startEcho(t)
	backend := startHTTP(t)
	peers, raw, web := address(t), address(t), address(t)
	farText := farConfig(peers, fmt.Sprintf("%q", backend.addr()), map[string]string{"echo": echoAddr})
	far := startGateway(t, farText)
	cut := startCutter(t, peers)
	near := startGateway(t, join(nearConfigListeners(raw), fmt.Sprintf(`listeners:
  - {name: web, protocol: http, listen: "%s", upstream: api}
upstreams:
  api: {endpoints: ["%s"], tunnel: far, %s}
`, web, backend.addr(), patient))+fmt.Sprintf("tunnels:\n  far: {connect: \"%s\", as: near, psk: %s}\n", cut.addr, tunnelPSK))
	client := httpClient(t)
	if err := echoSum(raw, 1); err != nil {
		t.Fatal(err)
	}
	before := near.footprint()
	var kills atomic.Int64 // counted before and after each
	loads := []*load{
		startLoad(t, 4, unlessKilled(t, &kills, func() error { return echoSum(raw, 1<<rand.IntN(20)) })),
		startLoad(t, 2, unlessKilled(t, &kills, func() error { _, _, err := get(client, "http://"+web+"/bytes/30000"); return err })),
		startLoad(t, 1, func(context.Context) error {
			<-time.After(10 * time.Millisecond) // a connection that fails at once must not starve the others
			return vanishOnce(web)
		}),
	}
	more := func() {
		for _, l := range loads {
			l.awaitMore(t, 5)
		}
	}
	for start := time.Now(); time.Since(start) < length; {
		for range 3 {
			more()
			cut.cut()
		}
		near.signal(syscall.SIGHUP)
		far.signal(syscall.SIGHUP)
		more()
		if !kill {
			continue
		}
		for _, g := range []*gateway{near, far} {
			g.freeze(t, 3*time.Second)
			more()
		}
		kills.Add(1)
		far.signal(syscall.SIGKILL)
		<-far.Done
		far = startGateway(t, farText)
		more()
		kills.Add(1)
	}
	for i, l := range loads {
		l.end()
		t.Logf("%d: %d operations, %d failed in %d kills, last error %v", i, l.ok.Load(), l.failed.Load(), kills.Load()/2, l.lastError())
	}
	client.CloseIdleConnections()
	near.awaitFootprint(before)
	eventually(t, "only idle connections have streams, and a session was resumed", func() error {
		if m := near.scrape(); m.sum("headpond_tunnel_resumed_total") < 1 || m.sum("headpond_tunnel_streams") > m.sum("headpond_pool_idle") {
			return fmt.Errorf("resumed %v, streams %v, idle %v", m.sum("headpond_tunnel_resumed_total"), m.sum("headpond_tunnel_streams"), m.sum("headpond_pool_idle"))
		}
		return nil
	})
	if code, body := near.get("/readyz"); code != http.StatusOK {
		t.Errorf("/readyz: %d %s", code, body)
	}
}

// freeze suspends the process, as a starved or paused machine does.
func (g *gateway) freeze(t *testing.T, d time.Duration) {
	g.signal(syscall.SIGSTOP)
	pause(t.Context(), d)
	g.signal(syscall.SIGCONT)
}

// unlessKilled wraps an operation that may fail only while the far gateway is killed, and then not
// with errTruncated.
func unlessKilled(t *testing.T, kills *atomic.Int64, op func() error) func(context.Context) error {
	return func(context.Context) error {
		before := kills.Load()
		err := op()
		switch {
		case errors.Is(err, errTruncated):
			t.Error(err)
		case err != nil && before%2 == 0 && kills.Load() == before:
			t.Errorf("though nothing worse happened than lost sockets: %v", err)
		}
		return err
	}
}

// errTruncated means that an answer ended early without an error.
var errTruncated = errors.New("truncated")

// echoSum sends n bytes and a half-close through a new connection, and expects both back.
func echoSum(addr string, n int) error {
	c, err := net.DialTimeout("tcp", addr, opTimeout)
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(opTimeout))
	want := make(chan []byte, 1)
	go func() {
		sum := sha256.New()
		_, err := io.Copy(io.MultiWriter(c, sum), io.LimitReader(rand.NewChaCha8([32]byte{byte(n), byte(n >> 8)}), int64(n)))
		if err == nil {
			_ = c.(*net.TCPConn).CloseWrite()
		}
		want <- sum.Sum(nil)
	}()
	sum := sha256.New()
	got, err := io.Copy(sum, c)
	if err != nil {
		_ = c.Close()
	}
	sent := <-want
	switch {
	case err != nil:
		return err
	case got == 0:
		return errors.New("no answer")
	case got != int64(n) || !bytes.Equal(sum.Sum(nil), sent):
		return fmt.Errorf("%w: %d bytes of %d, or others", errTruncated, got, n)
	}
	return nil
}
