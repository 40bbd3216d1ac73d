package mux_test

import (
	"context"
	"errors"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/headpond/headpond/mux"
)

// TestStalledReceiverStopsNobodyElse: 63 channels move far more than the session
// could hold while the receiver of another never reads.
func TestStalledReceiverStopsNobodyElse(t *testing.T) {
	for name := range transports {
		t.Run(name, func(t *testing.T) {
			cfg := mux.Config{ChannelWindow: 16 << 10, MaxChannelWindow: 64 << 10, SessionWindow: 2 << 20}
			c, s := sessions(t, name, cfg, cfg)
			stalled, _ := channels(t, c, s)
			ctx, cancel := context.WithCancel(bg)
			blocked := make(chan error, 1)
			go func() {
				var err error
				for err == nil {
					err = stalled.Send(ctx, make([]byte, 1024))
				}
				blocked <- err
			}()
			var wg sync.WaitGroup
			for range 63 {
				here, there := channels(t, c, s)
				wg.Go(func() {
					for range 100 {
						if err := here.Send(bg, make([]byte, 1024)); err != nil {
							t.Error(err)
						}
					}
				})
				wg.Go(func() {
					for range 100 {
						m, err := there.Receive(bg)
						if err != nil {
							t.Error(err)
							return
						}
						m.Release()
					}
				})
			}
			wg.Wait()
			cancel()
			if err := <-blocked; !errors.Is(err, context.Canceled) || !mux.SafeToRetry(err) {
				t.Errorf("the stalled sender ended with %v", err)
			}
		})
	}
}

// exchangeLarge begins to send large messages on many channels, both ways. received is called after each.
func exchangeLarge(t *testing.T, c, s *mux.Session, received func()) *sync.WaitGroup {
	wg := new(sync.WaitGroup)
	for i := range 8 {
		here, there := channels(t, c, s)
		for _, ch := range []*mux.Channel{here, there} {
			wg.Go(func() {
				for j := range 6 {
					if err := ch.Send(bg, pattern(j*30_000+i*1000)); err != nil {
						t.Error(err)
					}
				}
			})
			wg.Go(func() {
				for j := range 6 {
					expect(t, ch, pattern(j*30_000+i*1000))
					received()
				}
			})
		}
	}
	return wg
}

// TestBothSidesWriteBlocked: both sides send large messages on many channels and
// receive only between them. With a reader that waits for its application, or
// that writes, this locks up.
func TestBothSidesWriteBlocked(t *testing.T) {
	for name := range transports {
		t.Run(name, func(t *testing.T) {
			cfg := mux.Config{ChannelWindow: 8 << 10, MaxChannelWindow: 8 << 10, SessionWindow: 1 << 20, MaxMessage: 1 << 20}
			c, s := sessions(t, name, cfg, cfg)
			exchangeLarge(t, c, s, func() {}).Wait()
		})
	}
}

// TestManySendersOneChannel: concurrent messages arrive whole.
func TestManySendersOneChannel(t *testing.T) {
	for name := range transports {
		t.Run(name, func(t *testing.T) {
			c, s := sessions(t, name, mux.Config{}, mux.Config{})
			here, there := channels(t, c, s)
			const senders, each = 16, 40
			var wg sync.WaitGroup
			for i := range senders {
				wg.Go(func() {
					for range each {
						if err := here.Send(bg, pattern(i*i*i*20)); err != nil {
							t.Error(err)
						}
					}
				})
			}
			got := map[int]int{}
			for range senders * each {
				m, err := there.Receive(bg)
				if err != nil {
					t.Fatal(err)
				}
				if string(m.Bytes()) != string(pattern(m.Len())) {
					t.Fatalf("a message of %d bytes is damaged", m.Len())
				}
				got[m.Len()]++
				m.Release()
			}
			wg.Wait()
			for i := range senders {
				if got[i*i*i*20] != each {
					t.Errorf("%d messages of sender %d", got[i*i*i*20], i)
				}
			}
		})
	}
}

// TestStreamOfSmallMessagesSharesWrites: a sender that sends without a pause does not make a system
// call for each message, and a sender that waits for answers does not wait for others. (With
// several processors the writer may be as fast as the sender.)
func TestStreamOfSmallMessagesSharesWrites(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for _, resume := range []*mux.Resume{nil, {}} {
		synctest.Test(t, func(t *testing.T) {
			n := newLine(t, true, mux.Config{Resume: resume})
			counted := &counter{}
			n.wrap = func(c net.Conn) net.Conn {
				counted.Conn = c
				return counted
			}
			c, s := n.join(mux.Config{})
			here, there := channels(t, c, s)
			const messages = 2000
			go func() {
				for i := range messages {
					if err := here.Send(bg, pattern(i%50)); err != nil {
						t.Error(err)
					}
				}
			}()
			before := counted.writes.Load()
			for i := range messages {
				expect(t, there, pattern(i%50))
			}
			if w := counted.writes.Load() - before; w > messages/2 {
				t.Errorf("%d writes for %d messages", w, messages)
			}
			before = counted.writes.Load()
			for i := range 100 {
				if err := here.Send(bg, pattern(i)); err != nil {
					t.Fatal(err)
				}
				expect(t, there, pattern(i))
				if err := there.Send(bg, pattern(i)); err != nil {
					t.Fatal(err)
				}
				expect(t, here, pattern(i))
			}
			if w := counted.writes.Load() - before; w < 100 {
				t.Errorf("%d writes for 100 messages that were waited for", w)
			}
			n.end(c, s)
		})
	}
}

// counter is a connection that counts its writes.
type counter struct {
	net.Conn
	writes atomic.Int64
}

func (c *counter) Write(p []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(p)
}
