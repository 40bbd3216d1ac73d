package mux_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headpond/headpond/mux"
)

// cutter is a connection that breaks after a number of bytes, in either direction.
type cutter struct {
	net.Conn
	mu   sync.Mutex
	left int
}

var errCut = errors.New("cut")

// allow returns how many of n bytes may pass.
func (c *cutter) allow(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n = min(n, c.left)
	c.left -= n
	return n
}

func (c *cutter) Write(p []byte) (n int, err error) {
	allowed := c.allow(len(p))
	if allowed > 0 {
		n, err = c.Conn.Write(p[:allowed])
	}
	if allowed < len(p) && err == nil {
		c.Close()
		err = errCut
	}
	return n, err
}

func (c *cutter) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	allowed := c.allow(n)
	if allowed < n {
		c.Close()
		err = errCut
	}
	return allowed, err
}

// TestCutAnywhere breaks connections after any number of bytes: in headers, in payloads, in the
// middle of resuming. A message that Send accepted arrives once and in order, one that it gave up
// never, and streams have no gap.
func TestCutAnywhere(t *testing.T) {
	for seed := range uint64(12) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 3))
			n := newLine(t, true, mux.Config{Resume: &mux.Resume{Buffer: 64 << 10}, MaxFrame: 1024 << r.IntN(6)})
			first := true
			n.wrap = func(c net.Conn) net.Conn {
				left := r.IntN(200)
				if first || r.IntN(3) > 0 {
					left = 2000 + r.IntN(300_000)
				}
				first = false
				return &cutter{Conn: c, left: left}
			}
			c, s := n.join(mux.Config{Resume: &mux.Resume{Buffer: 64 << 10}, MaxFrame: 1024 << r.IntN(6)})
			var wg sync.WaitGroup
			for i := range uint64(2) {
				here, there := channels(t, c, s)
				for dir, ends := range [2][2]*mux.Channel{{here, there}, {there, here}} {
					wg.Go(func() { passes(t, seed<<8+i<<1+uint64(dir), ends[0], ends[1]) })
				}
			}
			one, other := streams(t, c, s)
			wg.Go(func() { flows(t, seed<<1, one, other) })
			wg.Go(func() { flows(t, seed<<1+1, other, one) })
			wg.Wait()
			if t.Failed() || c.Stats().Resumed < 5 {
				t.Errorf("seed %d: %+v, %v, %v", seed, c.Stats(), c.Err(), s.Err())
			}
			n.wrap = nil
			n.end(c, s)
		})
	}
}

func streams(t testing.TB, c, s *mux.Session) (here, there *mux.Stream) {
	t.Helper()
	here, err := c.OpenStream(bg, t.Name())
	if err != nil {
		t.Fatal(err)
	}
	if there, err = s.AcceptStream(bg); err != nil {
		t.Fatal(err)
	}
	return here, there
}

// passes sends numbered messages, some with little time, and compares the received ones with the
// results of Send.
func passes(t *testing.T, seed uint64, from, to *mux.Channel) {
	const messages = 150
	var said [messages]error
	var wg sync.WaitGroup
	wg.Go(func() {
		r := rand.New(rand.NewPCG(seed, 4))
		for i := range said {
			ctx, cancel := context.WithCancel(bg)
			if r.IntN(2) == 0 {
				ctx, cancel = context.WithTimeout(bg, time.Duration(r.IntN(50))*time.Millisecond)
			}
			said[i] = from.Send(ctx, numbered(r, i))
			cancel()
			if err := said[i]; err != nil && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("message %d: %v", i, err)
			}
		}
		from.CloseWrite()
	})
	var arrived [messages]bool
	for last := -1; ; {
		m, err := to.Receive(bg)
		if err != nil {
			if err != io.EOF {
				t.Errorf("receive: %v", err)
			}
			break
		}
		i := int(binary.BigEndian.Uint64(m.Bytes()))
		if err := checkNumbered(m.Bytes(), i); err != nil || i <= last || i >= messages {
			t.Errorf("message %d after %d: %v", i, last, err)
			break
		}
		last, arrived[i] = i, true
		m.Release()
	}
	wg.Wait()
	for i, err := range said {
		if arrived[i] != (err == nil) && !(arrived[i] && !mux.SafeToRetry(err)) {
			t.Errorf("message %d: arrived %v, Send said %v", i, arrived[i], err)
		}
	}
}

// flows writes pieces of all sizes to a stream and compares the received bytes.
func flows(t *testing.T, seed uint64, from, to *mux.Stream) {
	r := rand.New(rand.NewPCG(seed, 5))
	data := pattern(1_000_000 + r.IntN(1000))
	var wg sync.WaitGroup
	wg.Go(func() {
		for rest := data; len(rest) > 0; {
			n := min(1+r.IntN([]int{10, 1000, 50_000}[r.IntN(3)]), len(rest))
			if w, err := from.Write(rest[:n]); w != n || err != nil {
				t.Errorf("%d of %d bytes written: %v", w, n, err)
			}
			rest = rest[n:]
		}
		from.CloseWrite()
	})
	got, err := io.ReadAll(to)
	wg.Wait()
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d of %d bytes arrived: %v", len(got), len(data), err)
	}
}
