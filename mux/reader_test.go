package mux_test

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/headpond/headpond/mux"
	"github.com/headpond/headpond/mux/frame"
)

// TestCutMessageIsNotDelivered: the connection ends within the last frame of a
// message; what came of it is no message.
func TestCutMessageIsNotDelivered(t *testing.T) {
	for name, wire := range map[string][]byte{
		"one frame":  data(1, 0, 0, 30_000),
		"two frames": concat(data(1, 3, 40_000, 10_000), data(1, 0, 0, 30_000)),
		"stream":     data(1, 0, 0, 30_000),
	} {
		t.Run(name, func(t *testing.T) {
			kind := frame.KindMessages
			if name == "stream" {
				kind = frame.KindStream
			}
			s, h := attack(t, mux.Config{})
			h.send(concat(open(1, kind), wire[:len(wire)-5000]))
			if kind == frame.KindStream {
				st, err := s.AcceptStream(bg)
				if err != nil {
					t.Fatal(err)
				}
				h.Close()
				if n, err := st.Read(make([]byte, 64<<10)); n != 0 || !errors.Is(err, mux.ErrSessionLost) {
					t.Errorf("read %d bytes, %v", n, err)
				}
				return
			}
			ch, err := s.Accept(bg)
			if err != nil {
				t.Fatal(err)
			}
			h.Close()
			if m, err := ch.Receive(bg); !errors.Is(err, mux.ErrSessionLost) {
				t.Errorf("received %d bytes, %v", m.Len(), err)
			}
		})
	}
}

// TestReadingReceiverIsInterrupted: a receiver that reads the connection itself
// is told when something else ends its wait.
func TestReadingReceiverIsInterrupted(t *testing.T) {
	for name, end := range map[string]func(c, s *mux.Session, ch *mux.Channel, st *mux.Stream){
		"channel closed":     func(_, _ *mux.Session, ch *mux.Channel, st *mux.Stream) { ch.Close(); st.Close() },
		"channel reset":      func(_, _ *mux.Session, ch *mux.Channel, st *mux.Stream) { ch.Reset(1, ""); st.Reset(1, "") },
		"session closed":     func(c, _ *mux.Session, _ *mux.Channel, _ *mux.Stream) { c.Close() },
		"other side closed":  func(_, s *mux.Session, _ *mux.Channel, _ *mux.Stream) { s.Close() },
		"deadline, or close": func(_, _ *mux.Session, ch *mux.Channel, st *mux.Stream) { st.SetReadDeadline(time.Now()); ch.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			c, s := sessions(t, "tcp", mux.Config{}, mux.Config{})
			for range 20 { // receivers read themselves once they have waited
				here, there := channels(t, c, s)
				there.Send(bg, []byte("x"))
				expect(t, here, []byte("x"))
				here.Close()
				there.Close()
			}
			ch, err := c.Open(bg, "")
			if err != nil {
				t.Fatal(err)
			}
			st, err := c.OpenStream(bg, "")
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 2)
			go func() {
				_, err := ch.Receive(bg)
				done <- err
			}()
			go func() {
				_, err := st.Read(make([]byte, 10))
				done <- err
			}()
			end(c, s, ch, st)
			for range 2 {
				if err := <-done; err == nil {
					t.Error("received something")
				}
			}
		})
	}
}

// TestWhoReadsTakesTurns: receivers that read themselves, receivers with
// contexts, senders that wait for credit and pings, on one connection.
func TestWhoReadsTakesTurns(t *testing.T) {
	cfg := mux.Config{ChannelWindow: 8 << 10, MaxChannelWindow: 8 << 10}
	c, s := sessions(t, "tcp", cfg, cfg)
	ctx, cancel := context.WithCancel(bg)
	defer cancel()
	var wg sync.WaitGroup
	for i := range 6 {
		here, there := channels(t, c, s)
		ctx := ctx
		if i%2 == 0 {
			ctx = bg
		}
		wg.Go(func() {
			for j := range 300 {
				if err := here.Send(ctx, pattern(j*10)); err != nil {
					t.Error(err)
					return
				}
				if i%3 == 0 {
					expect(t, here, pattern(j))
				}
			}
		})
		wg.Go(func() {
			for j := range 300 {
				m, err := there.Receive(ctx)
				if err != nil || m.Len() != j*10 {
					t.Errorf("message of %d bytes, %v; want %d", m.Len(), err, j*10)
					return
				}
				m.Release()
				if i%3 == 0 {
					there.Send(ctx, pattern(j))
				}
			}
		})
	}
	wg.Wait()
}

// TestMessagesOfAllSizesInto: receivers with a buffer of their own, of messages
// that are empty, fit, do not, and come many at once.
func TestMessagesOfAllSizesInto(t *testing.T) {
	c, s := sessions(t, "tcp", mux.Config{}, mux.Config{})
	here, there := channels(t, c, s)
	sizes := []int{0, 1, 500, 1024, 1025, 5000, 40_000, 0, 3}
	go func() {
		for range 200 {
			for _, n := range sizes {
				if err := here.Send(bg, pattern(n)); err != nil {
					t.Error(err)
				}
			}
		}
		here.CloseWrite()
	}()
	small, large := make([]byte, 1024), make([]byte, 64<<10)
	for range 200 {
		for _, want := range sizes {
			p := small
			n, err := there.ReceiveInto(bg, p)
			if want > len(small) {
				if !errors.Is(err, mux.ErrShortBuffer) || n != want {
					t.Fatalf("%d bytes into 1024: %d, %v", want, n, err)
				}
				p = large
				n, err = there.ReceiveInto(bg, p)
			}
			if err != nil || string(p[:n]) != string(pattern(want)) {
				t.Fatalf("received %d bytes of %d, %v", n, want, err)
			}
		}
	}
	if n, err := there.ReceiveInto(bg, small); err != io.EOF || n != 0 {
		t.Errorf("at the end: %d, %v", n, err)
	}
	if b := s.Stats().Buffered; b != 0 {
		t.Errorf("%d bytes buffered", b)
	}
}
