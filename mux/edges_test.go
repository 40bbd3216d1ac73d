package mux_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headpond/headpond/mux"
)

// TestResumesOverAnotherSession: the error of the connection below, even that another session was
// lost or denied, does not end this session.
func TestResumesOverAnotherSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newLine(t, true, mux.Config{Resume: &mux.Resume{}})
		c, s := n.join(mux.Config{})
		here, there := channels(t, c, s)
		for _, err := range []error{mux.ErrSessionLost, mux.ErrDenied, &mux.GoAwayError{Code: 9}} {
			n.set(fmt.Errorf("the tunnel: %w", err))
			n.cut(0)
			time.Sleep(10 * time.Second)
			if err := c.Err(); err != nil {
				t.Fatal(err)
			}
			n.set(nil)
			if err := here.Send(bg, pattern(100)); err != nil {
				t.Fatal(err)
			}
			expect(t, there, pattern(100))
		}
		n.end(c, s)
	})
}

// TestBoundHoldsWhereReceiversRead: a message over MaxMessage is not cut down to the
// buffer of a receiver that reads it from the connection itself.
func TestBoundHoldsWhereReceiversRead(t *testing.T) {
	c, s := sessions(t, "tcp", mux.Config{}, mux.Config{MaxMessage: 1000})
	for _, size := range []int{1001, 1500, 2000, 3000, 40_000} {
		here, there := channels(t, c, s)
		got := make(chan error, 1)
		go func() {
			n, err := 1, error(nil)
			for p := make([]byte, 2000); err == nil && n == 1; {
				n, err = there.ReceiveInto(bg, p)
			}
			if err == nil {
				err = fmt.Errorf("%d bytes arrived", n)
			}
			got <- err
		}()
		for !mux.Leads(s) { // the test's time limit bounds it
			if err := here.Send(bg, pattern(1)); err != nil {
				t.Fatal(err)
			}
			runtime.Gosched()
		}
		if err := here.Send(bg, pattern(size)); err != nil {
			t.Logf("refused while sending: %v", err)
		}
		if err := <-got; !errors.Is(err, mux.ErrTooLarge) {
			t.Errorf("%d bytes: %v", size, err)
		}
		here.Close()
		there.Close()
	}
}

func TestSendBatchBound(t *testing.T) {
	c, s := sessions(t, "tcp", mux.Config{MaxMessage: 1000}, mux.Config{})
	here, there := channels(t, c, s)
	sent, err := here.SendBatch(bg, [][]byte{pattern(1000), pattern(1001)})
	if sent != 1 || !errors.Is(err, mux.ErrTooLarge) {
		t.Errorf("%d sent, %v", sent, err)
	}
	expect(t, there, pattern(1000))
}

// TestChannelNumbersRunOut: a session without numbers for further channels is replaced by
// another, and keeps those it has.
func TestChannelNumbersRunOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{}
		d := &mux.Dialer{Dial: n.dial}
		last := (*mux.Channel)(nil)
		for i := range 3 {
			ch, err := d.Open(bg, "somewhere", "x")
			if err != nil {
				t.Fatal(err)
			}
			if i == 0 {
				mux.UseUp(ch.Session())
				continue
			}
			if last == nil {
				last = ch
			} else if ch.Session() == last.Session() {
				t.Error("the session is not replaced")
			}
		}
		if !last.Session().Draining() || last.Session().Err() != nil {
			t.Errorf("draining %v, %v", last.Session().Draining(), last.Session().Err())
		}
		there, err := n.sessions()[0].Accept(bg)
		for err == nil && there.Number() != last.Number() {
			there, err = n.sessions()[0].Accept(bg)
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := last.Send(bg, pattern(10)); err != nil {
			t.Fatal(err)
		}
		expect(t, there, pattern(10))
		d.Close()
		n.close()
	})
}

// TestNothingLostIsNotMentioned: a session that the other side has closed in order ends
// without a word about losses.
func TestNothingLostIsNotMentioned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newLine(t, true, mux.Config{Resume: &mux.Resume{}})
		c, s := n.join(mux.Config{})
		here, there := channels(t, c, s)
		here.Send(bg, pattern(10))
		expect(t, there, pattern(10))
		time.Sleep(time.Second) // it is acknowledged
		s.Close()
		<-c.Done()
		if err := c.Err(); !errors.Is(err, mux.ErrSessionLost) || strings.Contains(err.Error(), "acknowledged") {
			t.Errorf("got %v", err)
		}
		n.end(c, s)
	})
}

// TestPanicInAuthorizeClosesTheConnection: the other side is not left waiting.
func TestPanicInAuthorizeClosesTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		go func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic was swallowed")
				}
			}()
			mux.Server(bg, there, mux.Config{Authorize: func(context.Context, mux.Peer) error { panic("authorize") }})
		}()
		began := time.Now()
		if _, err := mux.Client(bg, here, mux.Config{}); !errors.Is(err, mux.ErrHandshake) {
			t.Errorf("got %v", err)
		}
		if took := time.Since(began); took > 0 {
			t.Errorf("after %v", took)
		}
	})
}
