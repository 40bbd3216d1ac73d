package mux_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/mux"
	"github.com/headpond/headpond/mux/frame"
)

func TestCloseWriteIsEOFAfterEverythingSent(t *testing.T) {
	c, s := sessions(t, "tcp", mux.Config{}, mux.Config{})
	here, there := channels(t, c, s)
	for _, m := range []string{"a", "", "b"} {
		if err := here.Send(bg, []byte(m)); err != nil {
			t.Fatal(err)
		}
	}
	if err := here.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	for _, m := range []string{"a", "", "b"} {
		expect(t, there, []byte(m))
	}
	if _, err := there.Receive(bg); err != io.EOF {
		t.Errorf("after the last message: %v, want io.EOF", err)
	}
	if err := here.Send(bg, nil); !errors.Is(err, mux.ErrClosed) || !mux.SafeToRetry(err) {
		t.Errorf("Send after CloseWrite: %v", err)
	}
	if err := there.Send(bg, []byte("answer")); err != nil {
		t.Fatal(err)
	}
	expect(t, here, []byte("answer"))
}

func TestCloseStopsTheOtherSide(t *testing.T) {
	c, s := sessions(t, "tcp", mux.Config{}, mux.Config{})
	here, there := channels(t, c, s)
	here.Send(bg, []byte("last"))
	here.Close()
	here.Close()
	expect(t, there, []byte("last"))
	if _, err := there.Receive(bg); err != io.EOF {
		t.Errorf("Receive: %v, want io.EOF", err)
	}
	if err := there.Send(bg, nil); !errors.Is(err, mux.ErrPeerClosed) {
		t.Errorf("Send: %v, want ErrPeerClosed", err)
	}
	if _, err := here.Receive(bg); !errors.Is(err, mux.ErrClosed) || !errors.Is(err, net.ErrClosed) {
		t.Errorf("Receive on the closed end: %v, want ErrClosed", err)
	}
	there.Close()
	if n := s.Stats().Channels; n != 0 {
		t.Errorf("%d channels left", n)
	}
}

func TestResetTellsCodeAndReason(t *testing.T) {
	c, s := sessions(t, "tcp", mux.Config{}, mux.Config{})
	here, there := channels(t, c, s)
	here.Reset(7, "changed my mind")
	_, err := there.Receive(bg)
	var reset *mux.ResetError
	if !errors.As(err, &reset) || !errors.Is(err, mux.ErrReset) || !reset.Remote ||
		reset.Code != frame.CodeApplication+7 || reset.Reason != "changed my mind" {
		t.Errorf("got %v", err)
	}
	if err := there.Send(bg, nil); !errors.Is(err, mux.ErrReset) {
		t.Errorf("Send: %v, want ErrReset", err)
	}
}

func TestShortBufferKeepsTheMessage(t *testing.T) {
	c, s := sessions(t, "tcp", mux.Config{}, mux.Config{})
	here, there := channels(t, c, s)
	here.Send(bg, pattern(100))
	n, err := there.ReceiveInto(bg, make([]byte, 99))
	if !errors.Is(err, mux.ErrShortBuffer) || n != 100 {
		t.Fatalf("got %d, %v; want 100, ErrShortBuffer", n, err)
	}
	buf := make([]byte, n)
	if n, err = there.ReceiveInto(bg, buf); err != nil || string(buf[:n]) != string(pattern(100)) {
		t.Fatalf("the message is gone: %d, %v", n, err)
	}
}

func TestCanceledSendIsNeverDelivered(t *testing.T) {
	cfg := mux.Config{ChannelWindow: 8 << 10, MaxMessage: 1 << 20}
	c, s := sessions(t, "tcp", cfg, cfg)
	here, there := channels(t, c, s)
	ctx, cancel := context.WithCancelCause(bg)
	why := errors.New("no time")
	time.AfterFunc(5*time.Millisecond, func() { cancel(why) })
	err := here.Send(ctx, pattern(100_000)) // the window holds its beginning
	if !errors.Is(err, why) || !mux.SafeToRetry(err) {
		t.Fatalf("got %v", err)
	}
	if err := here.Send(bg, []byte("next")); err != nil {
		t.Fatal(err)
	}
	expect(t, there, []byte("next"))
}

func TestReceiveEndsWithItsContext(t *testing.T) {
	c, s := sessions(t, "tcp", mux.Config{}, mux.Config{})
	here, there := channels(t, c, s)
	ctx, cancel := context.WithTimeout(bg, time.Millisecond)
	defer cancel()
	if _, err := there.Receive(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	here.Send(bg, []byte("still works"))
	expect(t, there, []byte("still works"))
	if _, err := c.Accept(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Accept: %v", err)
	}
}

func TestMessageBound(t *testing.T) {
	c, s := sessions(t, "tcp", mux.Config{}, mux.Config{MaxMessage: 1000})
	here, there := channels(t, c, s)
	if err := there.Send(bg, make([]byte, 1001)); !errors.Is(err, mux.ErrTooLarge) || !mux.SafeToRetry(err) {
		t.Errorf("over the sender's bound: %v", err)
	}
	if err := here.Send(bg, make([]byte, 100_000)); err != nil {
		t.Logf("refused while sending: %v", err) // or after: the reset races with the sending
	}
	if _, err := here.Receive(bg); !errors.Is(err, mux.ErrTooLarge) {
		t.Errorf("over the receiver's bound: %v", err)
	}
}

func TestDrainLetsChannelsFinish(t *testing.T) {
	c, s := sessions(t, "tcp", mux.Config{}, mux.Config{})
	here, there := channels(t, c, s)
	drained := make(chan error, 1)
	go func() { drained <- s.Drain(bg) }()
	for !c.Draining() {
		here.Send(bg, []byte("still"))
		expect(t, there, []byte("still"))
	}
	if _, err := c.Open(bg, "late"); !errors.Is(err, mux.ErrDraining) || !mux.SafeToRetry(err) {
		t.Errorf("Open: %v, want ErrDraining", err)
	}
	here.Send(bg, []byte("work"))
	expect(t, there, []byte("work"))
	here.Close()
	if err := <-drained; err != nil {
		t.Errorf("Drain: %v", err)
	}
	<-c.Done()
	if err := c.Err(); !errors.Is(err, mux.ErrSessionClosed) || errors.Is(err, mux.ErrSessionLost) {
		t.Errorf("the other side's error: %v", err)
	}
	if _, err := c.Accept(bg); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept after the drain: %v", err)
	}
}

func TestCloseWakesEverything(t *testing.T) {
	for name := range transports {
		t.Run(name, func(t *testing.T) {
			c, s := sessions(t, name, mux.Config{}, mux.Config{ChannelWindow: 4096})
			here, there := channels(t, c, s)
			errs := make(chan error, 3)
			go func() {
				_, err := here.Receive(bg)
				errs <- err
			}()
			go func() { errs <- here.Send(bg, make([]byte, 1<<20)) }()
			go func() {
				_, err := c.Accept(bg)
				errs <- err
			}()
			if err := there.Send(bg, []byte("x")); err != nil {
				t.Fatal(err)
			}
			if err := <-errs; err != nil { // the reader has it: all three are under way
				t.Fatal(err)
			}
			go func() {
				_, err := here.Receive(bg)
				errs <- err
			}()
			c.Close()
			for range 3 {
				if err := <-errs; !errors.Is(err, mux.ErrSessionClosed) {
					t.Errorf("got %v, want ErrSessionClosed", err)
				}
			}
			if _, err := there.Receive(bg); err == nil || errors.Is(err, mux.ErrSessionClosed) {
				t.Errorf("the other side: %v", err)
			}
			if err := here.Send(bg, nil); !errors.Is(err, mux.ErrSessionClosed) {
				t.Errorf("Send after Close: %v", err)
			}
		})
	}
}

func TestWhatSendAcceptedArrivesBeforeTheEnd(t *testing.T) {
	for name := range transports {
		t.Run(name, func(t *testing.T) {
			c, s := sessions(t, name, mux.Config{}, mux.Config{})
			here, there := channels(t, c, s)
			const n = 200
			for i := range n {
				if err := here.Send(bg, pattern(i)); err != nil {
					t.Fatal(err)
				}
			}
			c.Close()
			for i := range n {
				expect(t, there, pattern(i))
			}
		})
	}
}

func TestPSK(t *testing.T) {
	key := []byte("0123456789abcdef")
	c, s := sessions(t, "tcp", mux.Config{PSK: key, Name: "a"}, mux.Config{PSK: key, Name: "b"})
	if !c.Peer().PSK || !s.Peer().PSK || c.Peer().Name != "b" || s.Peer().Name != "a" || c.ID() != s.ID() {
		t.Errorf("peers %v and %v", c.Peer(), s.Peer())
	}
	for _, other := range [][]byte{nil, []byte("another key of enough")} {
		cErr, sErr := refusedHandshake(t, mux.Config{PSK: other}, mux.Config{PSK: key})
		if !errors.Is(cErr, mux.ErrDenied) || !errors.Is(sErr, mux.ErrDenied) {
			t.Errorf("key %q: client %v, server %v; want ErrDenied", other, cErr, sErr)
		}
	}
}

func TestAuthorize(t *testing.T) {
	decide := func(_ context.Context, p mux.Peer) error {
		if string(p.Token) != "open sesame" {
			return errors.New("secret reason")
		}
		return nil
	}
	sessions(t, "tcp", mux.Config{Token: []byte("open sesame")}, mux.Config{Authorize: decide})
	cErr, sErr := refusedHandshake(t, mux.Config{}, mux.Config{Authorize: decide})
	if !errors.Is(cErr, mux.ErrDenied) || !errors.Is(sErr, mux.ErrDenied) {
		t.Errorf("client %v, server %v; want ErrDenied", cErr, sErr)
	}
	if strings.Contains(cErr.Error(), "secret") {
		t.Errorf("the client learned too much: %v", cErr)
	}
}

// TestRefusal: a client that is refused for now gets the reason.
func TestRefusal(t *testing.T) {
	full := func(context.Context, mux.Peer) error {
		return fmt.Errorf("here: %w", &mux.Refusal{Reason: "all taken"})
	}
	key := []byte("0123456789abcdef")
	for _, psk := range [][]byte{nil, key} {
		cErr, sErr := refusedHandshake(t, mux.Config{PSK: psk}, mux.Config{PSK: psk, Authorize: full})
		if !errors.Is(cErr, mux.ErrRefused) || !errors.Is(sErr, mux.ErrRefused) || errors.Is(cErr, mux.ErrDenied) {
			t.Errorf("client %v, server %v; want ErrRefused", cErr, sErr)
		}
		if bye, ok := errors.AsType[*mux.GoAwayError](cErr); !ok || bye.Reason != "all taken" {
			t.Errorf("the client got %v", cErr)
		}
	}
}

func refusedHandshake(t *testing.T, client, server mux.Config) (cErr, sErr error) {
	t.Helper()
	cc, sc := tcpPair(t)
	done := make(chan error, 1)
	go func() {
		_, err := mux.Server(bg, sc, server)
		done <- err
	}()
	_, cErr = mux.Client(bg, cc, client)
	return cErr, <-done
}

func TestHandshakeEndsWithItsContext(t *testing.T) {
	cc, sc := tcpPair(t)
	defer sc.Close()
	ctx, cancel := context.WithTimeout(bg, 5*time.Millisecond)
	defer cancel()
	if _, err := mux.Client(ctx, cc, mux.Config{}); !errors.Is(err, mux.ErrHandshake) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	cc, sc2 := tcpPair(t)
	defer sc2.Close()
	if _, err := mux.Client(bg, cc, mux.Config{HandshakeTimeout: time.Millisecond}); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

func TestConfigIsChecked(t *testing.T) {
	for _, cfg := range []mux.Config{
		{MaxMessage: -1}, {MaxFrame: 100}, {ChannelWindow: 1}, {PSK: []byte("short")},
		{Name: strings.Repeat("x", 256)}, {SessionWindow: 4096}, {AcceptBacklog: -1}, {CloseTimeout: -1},
	} {
		if err := cfg.Verify(); !errors.Is(err, mux.ErrConfig) {
			t.Errorf("%+v: %v, want ErrConfig", cfg, err)
		}
	}
	if err := (mux.Config{}).Verify(); err != nil {
		t.Errorf("the zero Config: %v", err)
	}
}

func TestReleasingTwicePanics(t *testing.T) {
	c, s := sessions(t, "tcp", mux.Config{}, mux.Config{})
	here, there := channels(t, c, s)
	here.Send(bg, []byte("x"))
	m, err := there.Receive(bg)
	if err != nil {
		t.Fatal(err)
	}
	m.Retain().Release()
	m.Release()
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	m.Release()
}
