package mux_test

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headpond/headpond/mux"
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

// TestHangingSocketHoldsNobody: the socket takes nothing any more; senders with
// a context, streams with a deadline and Close come back all the same.
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

// TestFullSocketHoldsNobody: senders without a context wait for a socket that
// takes nothing; those with one beside them come back when it ends.
func TestFullSocketHoldsNobody(t *testing.T) {
	s, h := attack(t, mux.Config{KeepAlive: -1, CloseTimeout: 10 * time.Millisecond})
	h.Conn.(*net.TCPConn).SetReadBuffer(32 << 10)
	var patient, hurried sync.WaitGroup
	p := make([]byte, 1000<<10)
	for i := range 10 { // what the other side gives credit for, and more than the sockets hold
		ch, err := s.Open(bg, "x")
		if err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			patient.Go(func() { ch.Send(bg, p) })
			continue
		}
		hurried.Go(func() {
			ctx, cancel := context.WithTimeout(bg, 100*time.Millisecond)
			defer cancel()
			if err := ch.Send(ctx, p); err != nil && !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
			ch.Send(ctx, p)
			if ctx.Err() == nil {
				t.Error("everything was sent: the socket was not full")
			}
		})
	}
	hurried.Wait()
	s.Close()
	patient.Wait()
	h.Close()
}
