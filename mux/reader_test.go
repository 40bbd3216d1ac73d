package mux_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/headpond/headpond/mux"
	"github.com/headpond/headpond/mux/frame"
)

// TestCutMessageIsNotDelivered: the connection ends within the last frame of a message; the
// received part is no message.
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

// TestReadingReceiverIsInterrupted: a receiver that reads the connection itself is interrupted when
// something else ends its wait.
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

// TestMessagesOfAllSizesInto: receivers with their own buffer get messages that are empty, fit, do
// not fit, and arrive many at once.
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

// TestLargeMessagesInto: messages assembled in the memory of their receiver, which reads
// alternately with the session.
func TestLargeMessagesInto(t *testing.T) {
	c, s := sessions(t, "tcp", mux.Config{}, mux.Config{ChannelWindow: 256 << 10})
	here, there := channels(t, c, s)
	ctx, cancel := context.WithCancel(bg)
	var wg sync.WaitGroup
	wg.Go(func() { // now and then a caller waits that does not read
		for ctx.Err() == nil {
			short, stop := context.WithTimeout(ctx, 100*time.Microsecond)
			s.Accept(short)
			stop()
			runtime.Gosched()
		}
	})
	sizes := []int{1 << 20, 10, 300_000, 66_000, 0, 700_000, 33_000, 1 << 20, 900_000}
	wg.Go(func() {
		for range 4 {
			for _, n := range sizes {
				if err := here.Send(bg, pattern(n)); err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	p := make([]byte, 1<<20)
	for range 4 {
		for _, want := range sizes {
			n, err := there.ReceiveInto(bg, p)
			if err != nil || !bytes.Equal(p[:n], pattern(want)) {
				t.Fatalf("received %d bytes of %d, %v", n, want, err)
			}
			clear(p[:n])
		}
	}
	cancel()
	wg.Wait()
	if b := s.Stats().Buffered; b != 0 {
		t.Errorf("%d bytes buffered", b)
	}
}

// leading is a session whose receiver on channel 1 reads the connection itself,
// again and again into p, which it passes on. Channel 3 is there too.
func leading(t *testing.T, p []byte) (s *mux.Session, h *hostile, one, three *mux.Channel, done chan error, got chan int) {
	s, h = attack(t, mux.Config{ChannelWindow: 4 << 20, CloseTimeout: 10 * time.Millisecond})
	h.send(concat(open(1, frame.KindMessages), open(3, frame.KindMessages)))
	one, err := s.Accept(bg)
	if err != nil {
		t.Fatal(err)
	}
	if three, err = s.Accept(bg); err != nil {
		t.Fatal(err)
	}
	done, got = make(chan error, 1), make(chan int, 1)
	go func() {
		for {
			n, err := one.ReceiveInto(bg, p)
			if err != nil {
				done <- err
				return
			}
			if n > 1 {
				got <- n
			}
		}
	}()
	return s, h, one, three, done, got
}

// lend sends the beginning of a message to a receiver that leads, until it comes into its memory.
// On a busy machine the session's reader may have taken over, because nothing read for a while:
// then the message is ended, by rest, and another one begun. whole says that it is received then.
func lend(s *mux.Session, h *hostile, got <-chan int, wire []byte, cut int, rest []byte, whole bool) {
	for {
		for !mux.Leads(s) { // the test's time limit bounds it
			h.send(data(1, 0, 0, 1))
			runtime.Gosched()
		}
		h.send(wire[:cut])
		for !mux.Lent(s) && !mux.Elsewhere(s) {
			runtime.Gosched()
		}
		if mux.Lent(s) {
			return
		}
		h.send(concat(wire[cut:], rest))
		if whole {
			<-got
		}
	}
}

// TestReceiverGoesInMidMessage: a receiver whose channel is closed while a message comes into its
// memory gets it back, and the session continues.
func TestReceiverGoesInMidMessage(t *testing.T) {
	for name, wire := range map[string][]byte{
		"first frame":   data(1, 3, 600_000, 200_000),
		"a later one":   concat(data(1, 3, 600_000, 100_000), data(1, 1, 0, 100_000)),
		"only one":      data(1, 0, 0, 200_000),
		"another reads": concat(data(1, 3, 600_000, 100_000), data(1, 1, 0, 100_000)),
		"between two":   data(1, 3, 600_000, 150_000),
	} {
		t.Run(name, func(t *testing.T) {
			p := make([]byte, 600_000)
			s, h, one, three, done, got := leading(t, p)
			cut := len(wire) - 50_000
			if name == "between two" {
				cut = len(wire)
			}
			if name == "only one" {
				lend(s, h, got, wire, 50_000, nil, true)
			} else {
				lend(s, h, got, wire, 50_000, data(1, frame.FlagAbort, 0, 0), false)
			}
			ctx, cancel := context.WithCancel(bg)
			var wg sync.WaitGroup
			if name == "another reads" {
				wg.Go(func() { s.Accept(ctx) })
				for mux.Waiting(s) == 0 {
					runtime.Gosched()
				}
			}
			h.send(wire[50_000:cut])
			for name == "another reads" && mux.Leads(s) {
				runtime.Gosched()
			}
			cancel()
			wg.Wait()
			one.Close()
			if err := <-done; !errors.Is(err, mux.ErrClosed) {
				t.Fatalf("got %v, want ErrClosed", err)
			}
			for i := range p {
				p[i] = 7 // the race detector sees other writers
			}
			h.send(concat(wire[cut:], data(3, 0, 0, 77)))
			expect(t, three, make([]byte, 77))
			for i := range p {
				if p[i] != 7 {
					t.Fatalf("written to at %d after it was given back", i)
				}
			}
		})
	}
}

// TestReaderTakesOver: a caller begins to wait that does not read, so that the session's reader
// takes over while a message comes into a receiver's memory.
func TestReaderTakesOver(t *testing.T) {
	p, whole := make([]byte, 600_000), pattern(600_000)
	s, h, _, _, done, got := leading(t, p)
	var wire []byte
	for at := 0; at < len(whole); at += 150_000 {
		f := frame.Data{Channel: 1, Flags: frame.FlagMore, Payload: whole[at : at+150_000]}
		switch {
		case at == 0:
			f.Flags, f.Size = frame.FlagMore|frame.FlagSized, uint32(len(whole))
		case at+150_000 == len(whole):
			f.Flags = 0
		}
		wire = f.Append(wire)
	}
	lend(s, h, got, wire, 100_000, nil, true)
	ctx, cancel := context.WithCancel(bg)
	var wg sync.WaitGroup
	wg.Go(func() { s.Accept(ctx) })
	for mux.Waiting(s) == 0 {
		runtime.Gosched()
	}
	h.send(wire[100_000:200_000])
	for mux.Lent(s) { // the rest of the second frame goes elsewhere
		runtime.Gosched()
	}
	h.send(wire[200_000:])
	if n := <-got; !bytes.Equal(p[:n], whole) {
		t.Errorf("received %d bytes of %d, or others", n, len(whole))
	}
	cancel()
	wg.Wait()
	s.Close()
	<-done
}
