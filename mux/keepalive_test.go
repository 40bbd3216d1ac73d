package mux_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headpond/headpond/mux"
	"github.com/headpond/headpond/mux/frame"
)

// TestKeepAlive: an idle session lives on as long as the other side answers, and
// ends soon after it stops to.
func TestKeepAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := mux.Config{KeepAlive: 10 * time.Second, KeepAliveTimeout: 5 * time.Second}
		cc, sc := net.Pipe()
		mine, dead := net.Pipe()
		cut := make(chan struct{})
		go relay(cc, mine, cut)
		c, s := join(t, dead, sc, cfg, cfg)
		time.Sleep(time.Hour)
		if c.Err() != nil || s.Err() != nil {
			t.Fatalf("after an idle hour: %v, %v", c.Err(), s.Err())
		}
		close(cut) // from here on nothing arrives, and no end does
		began := time.Now()
		<-c.Done()
		<-s.Done()
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("found dead after %v", took)
		}
		for _, err := range []error{c.Err(), s.Err()} {
			if !errors.Is(err, mux.ErrDeadPeer) || !errors.Is(err, mux.ErrSessionLost) {
				t.Errorf("got %v, want ErrDeadPeer", err)
			}
		}
		c.Close()
		s.Close()
		cc.Close()
		mine.Close()
	})
}

// TestLargeFrameOnASlowLine: a frame that takes longer to come than keep-alive waits is a
// sign of life meanwhile.
func TestLargeFrameOnASlowLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cc, sc := net.Pipe()
		drip := &dripper{Conn: cc, piece: 1 << 10}
		c, s := join(t, drip, sc, mux.Config{KeepAlive: -1}, mux.Config{KeepAlive: 10 * time.Second, KeepAliveTimeout: 5 * time.Second})
		here, there := channels(t, c, s)
		synctest.Wait()
		drip.slow.Store(true)
		go here.Send(bg, pattern(100_000))
		began := time.Now()
		expect(t, there, pattern(100_000))
		if took := time.Since(began); took < 2*time.Minute {
			t.Errorf("in %v: not slow", took)
		}
		drip.slow.Store(false)
		c.Close()
		s.Close()
	})
}

// TestLargeFrameOnASlowLineResumable: such a connection is not replaced again and again.
func TestLargeFrameOnASlowLineResumable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newLine(t, true, mux.Config{Resume: &mux.Resume{}, KeepAlive: 10 * time.Second, KeepAliveTimeout: 5 * time.Second})
		drip := &dripper{piece: 1 << 10}
		n.wrap = func(c net.Conn) net.Conn {
			n.wrap = nil
			drip.Conn = c
			return drip
		}
		c, s := n.join(mux.Config{KeepAlive: -1})
		here, there := channels(t, c, s)
		synctest.Wait()
		drip.slow.Store(true)
		go here.Send(bg, pattern(100_000))
		expect(t, there, pattern(100_000))
		if st := s.Stats(); st.Losses != 0 {
			t.Errorf("%+v", st)
		}
		drip.slow.Store(false)
		n.end(c, s)
	})
}

// relay copies both ways until cut, then swallows.
func relay(a, b net.Conn, cut chan struct{}) {
	one := func(dst, src net.Conn) {
		buf := make([]byte, 4096)
		for {
			n, err := src.Read(buf)
			if err != nil {
				return
			}
			select {
			case <-cut:
			default:
				if _, err := dst.Write(buf[:n]); err != nil {
					return
				}
			}
		}
	}
	go one(a, b)
	one(b, a)
}

// TestHangingSocketHoldsNobody: the socket takes no more data; senders with a context, streams with
// a deadline and Close return nevertheless.
func TestHangingSocketHoldsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cc, sc := net.Pipe()
		var stuck net.Conn = &valve{Conn: cc, open: make(chan struct{}), stop: make(chan struct{})}
		c, s := join(t, stuck, sc, mux.Config{KeepAlive: -1}, mux.Config{KeepAlive: -1})
		stream, err := c.OpenStream(bg, "s")
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		stuck.(*valve).shut()
		stream.SetWriteDeadline(time.Now().Add(time.Second))
		for err == nil {
			_, err = stream.Write(make([]byte, 32<<10))
		}
		var timeout net.Error
		if !errors.As(err, &timeout) || !timeout.Timeout() {
			t.Errorf("Write: %v, want a timeout", err)
		}
		began := time.Now()
		c.Close()
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("Close took %v", took)
		}
		s.Close()
	})
}

// valve is a connection whose Write can be made to hang until it is closed.
type valve struct {
	net.Conn
	open, stop chan struct{}
}

func (v *valve) shut() { close(v.open) }

func (v *valve) Write(p []byte) (int, error) {
	select {
	case <-v.open:
		<-v.stop
		return 0, io.ErrClosedPipe
	default:
		return v.Conn.Write(p)
	}
}

func (v *valve) SetWriteDeadline(at time.Time) error {
	select {
	case <-v.open:
		time.AfterFunc(time.Until(at), v.end)
	default:
	}
	return v.Conn.SetWriteDeadline(at)
}

func (v *valve) Close() error {
	v.end()
	return v.Conn.Close()
}

func (v *valve) end() {
	defer func() { recover() }() // closed before
	close(v.stop)
}

// TestFullSocketHoldsNobody: a sender without a context waits for a socket that takes nothing;
// senders with a context return when it ends, even if their data was to be written with his, and
// their messages are not delivered. All others are.
func TestFullSocketHoldsNobody(t *testing.T) {
	t.Run("patient first", func(t *testing.T) { fullSocket(t, true) })
	t.Run("hurried first", func(t *testing.T) { fullSocket(t, false) })
}

func fullSocket(t *testing.T, patientFirst bool) {
	cc, sc := tcpPair(t)
	cc.(*net.TCPConn).SetReadBuffer(16 << 10)
	sc.(*net.TCPConn).SetWriteBuffer(16 << 10)
	s, h := attackOver(t, cc, sc, mux.Config{KeepAlive: -1, MaxFrame: 8 << 10})
	p := pattern(1000 << 10) // less than there is credit for, more than the sockets hold
	var patient, hurried sync.WaitGroup
	begin := func(wg *sync.WaitGroup, ctx context.Context) uint32 {
		ch, err := s.Open(bg, "x")
		if err != nil {
			t.Fatal(err)
		}
		before := mux.Waiting(s)
		wg.Go(func() {
			err := ch.Send(ctx, p)
			if !errors.Is(err, ctx.Err()) || err != nil && !mux.SafeToRetry(err) {
				t.Errorf("Send: %v", err)
			}
			if err != nil {
				patient.Go(func() { ch.Send(bg, p[:5]) })
			}
		})
		for mux.Waiting(s) == before { // the test's time limit bounds it
			runtime.Gosched()
		}
		return ch.Number()
	}
	got, want := received{}, map[uint32]int{} // channel to length of its message
	giveUp := func(cancel func()) {
		for sent, still := uint64(0), 0; still < 100; still++ { // written, or stuck
			if now := s.Stats().BytesSent; now != sent {
				sent, still = now, 0
			}
			runtime.Gosched()
		}
		cancel()
		hurried.Wait() // for good, if one of them waits for the socket
	}
	if patientFirst {
		want[begin(&patient, bg)] = len(p)
	} else {
		ctx, cancel := context.WithCancel(bg)
		want[begin(&hurried, ctx)] = 5
		giveUp(cancel)
	}
	for range 3 {
		ctx, cancel := context.WithCancel(bg)
		want[begin(&hurried, ctx)] = 5
		last := begin(&patient, bg)
		want[last] = len(p)
		// The frames of all channels alternate now, also in the batch that the socket does not
		// take.
		for got[last] == nil {
			got.take(t, h)
		}
		giveUp(cancel)
	}
	for ch, n := range want {
		for len(got[ch]) < n {
			got.take(t, h)
		}
	}
	patient.Wait()
	go s.Close()
	for got.take(t, h) {
	}
	for ch, n := range want {
		if !bytes.Equal(got[ch], p[:n]) {
			t.Errorf("channel %d: got %d bytes, want %d", ch, len(got[ch]), n)
		}
	}
}

// received is the received part of each channel's message.
type received map[uint32][]byte

// take reads a frame; false: the last.
func (r received) take(t *testing.T, h *hostile) bool {
	t.Helper()
	head, body := h.frame()
	switch {
	case head.Type != frame.TypeData:
		return head.Type != frame.TypeGoAway
	case head.Flags&frame.FlagAbort != 0:
		r[head.Channel] = nil
	case head.Flags&frame.FlagSized != 0:
		r[head.Channel] = body[4:]
	default:
		r[head.Channel] = append(r[head.Channel], body...)
	}
	return true
}
