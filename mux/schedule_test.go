package mux_test

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"

	"github.com/headpond/headpond/mux"
	"github.com/headpond/headpond/mux/frame"
)

// frames calls fn for each frame of the wire's.
func frames(t testing.TB, wire []byte, fn func(h frame.Header, body []byte)) {
	t.Helper()
	for len(wire) > 0 {
		h, err := frame.ParseHeader(wire)
		if err != nil {
			t.Fatal(err)
		}
		body := wire[frame.HeaderSize:][:h.Length]
		wire = wire[frame.HeaderSize+len(body):]
		fn(h, body)
	}
}

// TestPrioritiesShareTheConnection: each step doubles a channel's share while all channels have
// data to send.
func TestPrioritiesShareTheConnection(t *testing.T) {
	client, _ := mux.NewCorePair(mux.Config{ChannelWindow: 16 << 20, MaxChannelWindow: 16 << 20, SessionWindow: 128 << 20}, true)
	const size = 8 << 20
	for prio := mux.Priority(0); prio <= 4; prio++ {
		ch, err := client.Open(prio, byte(prio))
		if err != nil {
			t.Fatal(err)
		}
		client.Send(ch, make([]byte, size))
	}
	got := map[uint32]int{} // by channel: 1 to 9
	for got[9] < size/2 {
		frames(t, client.Output(), func(h frame.Header, _ []byte) {
			if h.Type == frame.TypeData {
				got[h.Channel] += int(h.Length)
			}
		})
	}
	for ch := uint32(3); ch <= 9; ch += 2 {
		if ratio := float64(got[ch]) / float64(got[ch-2]); ratio < 1.8 || ratio > 2.2 {
			t.Errorf("channel %d had %d bytes and the one below %d, %.2f times as much; want 2", ch, got[ch], got[ch-2], ratio)
		}
	}
}

// TestWindowFollowsItsReader: it grows to its bound while the reader keeps up, and not otherwise.
func TestWindowFollowsItsReader(t *testing.T) {
	const first, most = 8 << 10, 64 << 10
	for _, c := range []struct {
		name  string
		pause int64 // ns for each message of 1 KiB
		want  uint64
	}{{"fast", 10e3, most}, {"slow", 100e6, first}} {
		t.Run(c.name, func(t *testing.T) {
			client, server := mux.NewCorePair(mux.Config{ChannelWindow: first, MaxChannelWindow: most, SessionWindow: 1 << 20}, true)
			to := func(s *mux.Core) func(h frame.Header, body []byte) {
				return func(h frame.Header, body []byte) {
					if err := s.Input(h, body, true); err != nil {
						t.Fatal(err)
					}
				}
			}
			here, err := client.Open(mux.PriorityNormal, 0)
			if err != nil {
				t.Fatal(err)
			}
			frames(t, client.Output(), to(server))
			there, _ := server.Accept()
			for range 1000 {
				client.Send(here, make([]byte, 1<<10))
				frames(t, client.Output(), to(server))
				server.Now += c.pause
				if m, ok := server.Receive(there); !ok || len(m) != 1<<10 {
					t.Fatal("no message: the sender has no credit")
				}
				frames(t, server.Output(), to(client))
				if w := server.Windows(); w > most {
					t.Fatalf("a window of %d", w)
				}
			}
			if w := server.Windows(); w != c.want {
				t.Errorf("in the end a window of %d, want %d", w, c.want)
			}
		})
	}
}

func TestSendBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newLine(t, true, mux.Config{Resume: &mux.Resume{}})
		counted := &counter{}
		n.wrap = func(c net.Conn) net.Conn {
			counted.Conn = c
			return counted
		}
		c, s := n.join(mux.Config{MaxMessage: 1 << 20})
		here, there := channels(t, c, s)
		var batch [][]byte
		for i := range 100 {
			batch = append(batch, pattern(i*5))
		}
		synctest.Wait()
		before := counted.writes.Load()
		if sent, err := here.SendBatch(bg, batch); sent != len(batch) || err != nil {
			t.Fatalf("%d sent, %v", sent, err)
		}
		for _, want := range batch {
			expect(t, there, want)
		}
		if w := counted.writes.Load() - before; w > 4 {
			t.Errorf("%d writes for 100 messages of 25 KB together", w)
		}
		large := [][]byte{pattern(300_000), pattern(0), pattern(1<<20 + 1), pattern(1)}
		received := make(chan struct{})
		go func() {
			defer close(received)
			expect(t, there, large[0])
			expect(t, there, large[1])
		}()
		if sent, err := here.SendBatch(bg, large); sent != 2 || !errors.Is(err, mux.ErrTooLarge) || !mux.SafeToRetry(err) {
			t.Errorf("with one that is too large: %d sent, %v", sent, err)
		}
		<-received
		over, cancel := context.WithCancel(bg)
		cancel()
		if sent, err := here.SendBatch(over, batch); sent != 0 || !errors.Is(err, context.Canceled) || !mux.SafeToRetry(err) {
			t.Errorf("with a context that is over: %d sent, %v", sent, err)
		}
		n.end(c, s)
	})
}
