package tunnel_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"runtime/pprof"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/tunnel"
)

// TestSoak sends streams through a tunnel, both ways, with slow readers and clients
// that leave, while its sockets are delayed, cut and lost, and both ends reload; for a
// second or HEADPOND_SOAK (`make soak`). Every byte is accounted for, and at the end
// nothing may be left over.
func TestSoak(t *testing.T) {
	length, _ := conntest.SoakLength(t, time.Second)
	k := newSoak(t)
	ctx, cancel := context.WithTimeout(bg, length)
	defer cancel()
	before := k.footprint()
	var loads sync.WaitGroup
	for i := range uint64(3) {
		for j, one := range []func(*rand.Rand) error{k.forward, k.reverse, k.giveUp, k.refused} {
			loads.Go(func() { k.repeat(ctx, rand.New(rand.NewPCG(i, uint64(j))), one) })
		}
	}
	var half footprint
	for began, i := time.Now(), 0; ctx.Err() == nil; i++ {
		k.await(ctx, 40)
		k.disturb(rand.New(rand.NewPCG(uint64(i), 99)), i)
		if half == (footprint{}) && time.Since(began) > length/2 {
			half = k.footprint()
		}
	}
	k.weather.slow.Store(0)
	loads.Wait()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("before: %+v, at the end %+v, server %+v, client %+v", before, k.footprint(), k.server.Load().Tunnel(), k.e.client.Stats())
			_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 1)
		}
	})
	conntest.Eventually(t, "two sessions at the end", k.connected)
	conntest.Eventually(t, "no stream is left", func() bool {
		return k.server.Load().Tunnel().Streams == 0 && k.e.client.Stats().Streams == 0 && k.e.client.Stats().Suspended == 0
	})
	conntest.Eventually(t, "nothing is left", func() bool { return k.footprint().within(before) })
	st := k.e.client.Stats()
	t.Logf("%d streams, %d cut off by lost sessions, %d MiB each way; %d sockets lost, %d resumed, %d sessions lost; at half time %+v, at the end %+v",
		k.done.Load(), k.lost.Load(), k.bytes.Load()>>20, st.Broken, st.Resumed, st.Lost, half, k.footprint())
	if grown := k.footprint().heap - max(half.heap, before.heap); grown > 32<<20 {
		t.Errorf("%d KiB more than at half time", grown>>10)
	}
}

// soak is a tunnel with two sessions, and an echo server at each side.
type soak struct {
	t        testing.TB
	e        *ends
	weather  *weather
	far      tunnel.ServerConfig
	target   string
	progress chan struct{}
	done     atomic.Int64 // streams
	lost     atomic.Int64 // of them, by sessions that were
	bytes    atomic.Int64 // each way
	losses   atomic.Int64 // of sessions, by disturb: counted before and after
	server   atomic.Pointer[tunnel.Server]
}

func newSoak(t testing.TB) *soak {
	k := &soak{t: t, weather: &weather{}, target: conntest.Serve(t, conntest.Echo), progress: make(chan struct{}, 1)}
	k.e = start(t, options{
		server: func(c *tunnel.ServerConfig) {
			c.Policy = patientPolicy(k.target)
			c.ResumeWindow = time.Minute
			k.far = *c
		},
		client: func(c *tunnel.ClientConfig) {
			c.Sessions, c.Policy = 2, patientPolicy(k.target)
			dial := c.Dial
			c.Dial = func(ctx context.Context, address string) (net.Conn, error) {
				conn, err := dial(ctx, address)
				if err != nil {
					return nil, err
				}
				return k.weather.over(conn), nil
			}
		},
	})
	k.server.Store(k.e.server)
	conntest.Eventually(t, "two sessions", k.connected)
	c := open(t, k.e, k.target)
	conntest.Exchange(t, c, "hello") // so that everything made once exists
	_ = c.Close()
	return k
}

// patientPolicy allows connections to take as long as they may on a machine that is too busy to accept them.
func patientPolicy(rules ...string) tunnel.Policy {
	p := policy(rules...)
	p.Timeout = 30 * time.Second
	return p
}

// disturb does one thing that must not matter, or, each eighth time, ends the sessions.
func (k *soak) disturb(r *rand.Rand, i int) {
	switch i % 8 {
	case 1, 5:
		k.weather.slow.Store(int64(r.IntN(3)) * int64(time.Millisecond))
	case 3: // a reload
		k.far.MaxStreams = 1000 + r.IntN(100)
		if err := errors.Join(k.server.Load().Update(k.far), k.e.client.SetPolicy(patientPolicy(k.target, "127.0.0.1:1"))); err != nil {
			k.t.Error(err)
		}
	case 7: // no session survives that
		k.restart()
	default:
		k.e.sockets.cut()
	}
}

// restart replaces the server by another at the same address.
func (k *soak) restart() {
	k.losses.Add(1)
	defer k.losses.Add(1)
	k.server.Load().Close()
	next, err := tunnel.NewServer(k.far)
	if err != nil {
		k.t.Fatal(err)
	}
	l := listenAgain(k.t, k.e.address)
	served := make(chan error, 1)
	go func() { served <- next.Serve(l) }()
	k.server.Store(next)
	k.t.Cleanup(func() {
		next.Close()
		if err := <-served; err != nil {
			k.t.Error(err)
		}
	})
	conntest.Eventually(k.t, "two new sessions", k.connected)
}

// connected reports whether both sides know two sessions. The server may know more: one whose handshake lost its socket
// on the way to the client stays for the resume window.
func (k *soak) connected() bool {
	return k.server.Load().Tunnel().Sessions >= 2 && k.e.client.Stats().Sessions == 2
}

// repeat runs one until ctx ends.
func (k *soak) repeat(ctx context.Context, r *rand.Rand, one func(*rand.Rand) error) {
	for ctx.Err() == nil {
		before := k.losses.Load()
		err := one(r)
		switch now := k.losses.Load(); {
		case err == nil:
		case now != before || now%2 == 1 || errors.Is(err, tunnel.ErrNotConnected):
			k.lost.Add(1)
			k.pause(time.Millisecond)
		default:
			k.t.Error(err)
			return
		}
		k.done.Add(1)
		select {
		case k.progress <- struct{}{}:
		default:
		}
	}
}

// await waits for n more streams.
func (k *soak) await(ctx context.Context, n int64) {
	for want := k.done.Load() + n; ctx.Err() == nil && k.done.Load() < want; {
		select {
		case <-k.progress:
		case <-ctx.Done():
		}
	}
}

func (k *soak) forward(r *rand.Rand) error {
	c, err := k.e.client.Open(bg, k.target)
	if err != nil {
		return err
	}
	return k.echo(c, r)
}

func (k *soak) reverse(r *rand.Rand) error {
	c, err := k.server.Load().Dial(bg, "branch", k.target)
	if err != nil {
		return err
	}
	return k.echo(c, r)
}

// echo sends up to 1 MiB, ends its direction, and wants the same bytes and the end. One in
// four reads slowly.
func (k *soak) echo(c *tunnel.Conn, r *rand.Rand) error {
	defer c.Close()
	size, seed := r.IntN(1<<r.IntN(20)), [32]byte{byte(r.Uint32()), byte(r.Uint32())}
	sent, received := sha256.New(), sha256.New()
	slow := r.IntN(4) == 0
	var sender sync.WaitGroup
	sender.Go(func() {
		src := io.TeeReader(io.LimitReader(rand.NewChaCha8(seed), int64(size)), sent)
		if _, err := io.CopyBuffer(struct{ io.Writer }{c}, src, make([]byte, 20<<10)); err == nil {
			_ = c.CloseWrite()
		}
	})
	total := 0
	var err error
	for buf := make([]byte, 32<<10); err == nil; {
		var n int
		n, err = c.Read(buf)
		received.Write(buf[:n])
		if total += n; slow && n > 0 {
			k.pause(200 * time.Microsecond)
		}
	}
	if err != io.EOF {
		_ = c.Close() // or the sender waits for it
	}
	sender.Wait()
	switch {
	case err != io.EOF:
		return err
	case total != size || string(sent.Sum(nil)) != string(received.Sum(nil)):
		k.t.Errorf("%d bytes of %d were echoed, or different ones, and then the end", total, size) // bytes were lost
	}
	k.bytes.Add(int64(total))
	return nil
}

// giveUp leaves in the middle, in one of several ways.
func (k *soak) giveUp(r *rand.Rand) error {
	ctx, cancel := context.WithTimeout(bg, time.Duration(r.IntN(2000))*time.Microsecond)
	defer cancel()
	c, err := k.e.client.Dial(ctx, k.target)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	_, _ = c.Write(make([]byte, r.IntN(100_000)))
	if r.IntN(2) == 0 {
		_ = c.SetLinger(0)
	}
	return c.Close()
}

// refused asks for targets that are not allowed.
func (k *soak) refused(*rand.Rand) error {
	_, err := k.e.client.Dial(bg, "127.0.0.1:2")
	if errors.Is(err, tunnel.ErrRefused) {
		return nil
	}
	return fmt.Errorf("a target that is not allowed: %w", err)
}

func (k *soak) pause(d time.Duration) { <-time.After(d) }

// footprint is the resources of the process.
type footprint struct {
	goroutines, descriptors int
	heap                    int64
}

func (k *soak) footprint() footprint {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	files, _ := os.ReadDir("/proc/self/fd") // none where there is no such thing
	return footprint{runtime.NumGoroutine(), len(files), int64(m.HeapAlloc)}
}

// within reports whether f has no more than before, except the resources of a socket being
// replaced.
func (f footprint) within(before footprint) bool {
	return f.goroutines <= before.goroutines && f.descriptors <= before.descriptors && f.heap < before.heap+32<<20
}

// weather disturbs bytes on their way.
type weather struct{ slow atomic.Int64 } // ns that each write takes at most

type weathered struct {
	net.Conn
	w *weather
}

func (w *weather) over(c net.Conn) net.Conn { return &weathered{c, w} }

func (c *weathered) Write(p []byte) (int, error) {
	if d := c.w.slow.Load(); d > 0 {
		<-time.After(rand.N(time.Duration(d)))
	}
	return c.Conn.Write(p)
}

func (c *weathered) CloseWrite() error { return c.Conn.(interface{ CloseWrite() error }).CloseWrite() }
