package mux_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/mux"
	"github.com/headpond/headpond/mux/frame"
)

// echoServer serves every connection of a listener: it echoes on each channel.
func echoServer(t testing.TB, cfg mux.Config) (address string) {
	t.Helper()
	l := conntest.Listen(t)
	var work sync.WaitGroup
	work.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			work.Go(func() {
				s, err := mux.Server(bg, conn, cfg)
				if err != nil {
					return
				}
				defer s.Close()
				for {
					ch, err := s.Accept(bg)
					if err != nil {
						return
					}
					work.Go(func() { echoChannel(ch) })
				}
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		work.Wait()
	})
	return l.Addr().String()
}

func echoChannel(ch *mux.Channel) {
	defer ch.Close()
	for {
		m, err := ch.Receive(bg)
		if err != nil {
			return
		}
		err = ch.Send(bg, m.Bytes())
		m.Release()
		if err != nil {
			return
		}
	}
}

func exchangeOnce(d *mux.Dialer, address, text string) error {
	ch, err := d.Open(bg, address, "a call")
	if err != nil {
		return err
	}
	defer ch.Close()
	if err := ch.Send(bg, []byte(text)); err != nil {
		return err
	}
	m, err := ch.Receive(bg)
	if err != nil {
		return err
	}
	defer m.Release()
	if got := string(m.Bytes()); got != text {
		return fmt.Errorf("%q came back, want %q", got, text)
	}
	return nil
}

// TestManyOpenAtOnce: many goroutines that open a channel per call wait, and none is refused.
func TestManyOpenAtOnce(t *testing.T) {
	for name, cfg := range map[string]mux.Config{
		"default":      {},
		"a backlog":    {AcceptBacklog: 2},
		"few channels": {MaxChannels: 5},
	} {
		t.Run(name, func(t *testing.T) {
			address := echoServer(t, cfg)
			d := &mux.Dialer{}
			defer d.Close()
			var calls sync.WaitGroup
			for i := range 300 {
				calls.Go(func() {
					for range 3 {
						if err := exchangeOnce(d, address, fmt.Sprint("call ", i)); err != nil {
							t.Error(err)
						}
					}
				})
			}
			calls.Wait()
		})
	}
}

// TestOpenWaitsForRoom: Open's error names the limit, and waiting opens get freed channels in
// order.
func TestOpenWaitsForRoom(t *testing.T) {
	for name, c := range map[string]struct {
		client, server mux.Config
		room           int
		says           string
	}{
		"unaccepted":          {mux.Config{}, mux.Config{AcceptBacklog: 2}, 2, "the other side's Config.AcceptBacklog"},
		"MaxChannels":         {mux.Config{}, mux.Config{MaxChannels: 3}, 3, "the other side's Config.MaxChannels"},
		"this side's windows": {mux.Config{ChannelWindow: 8 << 10, SessionWindow: 16 << 10}, mux.Config{}, 2, "this side's Config.SessionWindow"},
	} {
		t.Run(name, func(t *testing.T) {
			c2, s := sessions(t, "tcp", c.client, c.server)
			var open []*mux.Channel
			for range c.room {
				ch, err := c2.Open(bg, "one that fits")
				if err != nil {
					t.Fatal(err)
				}
				open = append(open, ch)
			}
			if _, err := c2.Open(bg, "at once", mux.NoWait()); !errors.Is(err, mux.ErrTooManyChannels) || !mux.SafeToRetry(err) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("without waiting: %v", err)
			}
			ctx, cancel := context.WithCancelCause(bg)
			why := errors.New("no time")
			failed := make(chan error, 1)
			go func() {
				_, err := c2.Open(ctx, "waits in vain")
				failed <- err
			}()
			conntest.Eventually(t, "Open waits", func() bool { return mux.Waiting(c2) > 0 })
			cancel(why)
			if err := <-failed; !errors.Is(err, why) || !errors.Is(err, mux.ErrTooManyChannels) || !mux.SafeToRetry(err) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("when its context ended: %v", err)
			}
			opened := make(chan string, 2)
			for i, name := range []string{"first", "second"} {
				go func() {
					if _, err := c2.Open(bg, name); err != nil {
						t.Error(err)
					}
					opened <- name
				}()
				conntest.Eventually(t, "Open waits", func() bool { return mux.Waiting(c2) > i })
			}
			for _, want := range []string{"first", "second"} {
				ch, err := s.Accept(bg)
				if err != nil {
					t.Fatal(err)
				}
				open[0].Close()
				open = open[1:]
				ch.Close()
				if got := <-opened; got != want {
					t.Errorf("%s was opened before %s", got, want)
				}
				open = append(open, ch)
			}
		})
	}
}

// TestWaitingOpenEnds with the session, and with its draining.
func TestWaitingOpenEnds(t *testing.T) {
	for name, end := range map[string]func(c, s *mux.Session) error{
		"drain":      func(_, s *mux.Session) error { go s.Drain(bg); return mux.ErrDraining },
		"drain here": func(c, _ *mux.Session) error { go c.Drain(bg); return mux.ErrDraining },
		"close":      func(c, _ *mux.Session) error { c.Close(); return mux.ErrSessionClosed },
	} {
		t.Run(name, func(t *testing.T) {
			c, s := sessions(t, "tcp", mux.Config{}, mux.Config{MaxChannels: 1})
			if _, err := c.Open(bg, "the one there may be"); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Accept(bg); err != nil {
				t.Fatal(err)
			}
			failed := make(chan error, 2)
			for range 2 {
				go func() {
					_, err := c.Open(bg, "one more")
					failed <- err
				}()
			}
			conntest.Eventually(t, "Open waits", func() bool { return mux.Waiting(c) == 2 })
			want := end(c, s)
			for range 2 {
				if err := <-failed; !errors.Is(err, want) || !mux.SafeToRetry(err) {
					t.Errorf("%v, want %v", err, want)
				}
			}
		})
	}
}

// TestMaxChannelsAtOneSide: raising MaxChannels of the side that accepts is enough.
func TestMaxChannelsAtOneSide(t *testing.T) {
	const channels = 4000 // their windows take more than SessionWindow's default, at both sides
	c, s := sessions(t, "tcp", mux.Config{}, mux.Config{MaxChannels: channels, AcceptBacklog: channels})
	for i := range channels {
		if _, err := c.OpenStream(bg, "one of many"); err != nil {
			t.Fatal(i, err)
		}
	}
	for i := range channels {
		if _, err := s.AcceptStream(bg); err != nil {
			t.Fatal(i, err)
		}
	}
	if n := s.Stats().Refused; n != 0 {
		t.Errorf("%d refused", n)
	}
	if _, err := s.OpenStream(bg, "and the other way", mux.NoWait()); err != nil {
		t.Error(err)
	}
	if st, err := c.AcceptStream(bg); err != nil || st.Name() != "and the other way" {
		t.Error(err)
	}
}

// TestPeerWithoutOpens: a peer that does not know OPENS gets refusals beyond the backlog.
func TestPeerWithoutOpens(t *testing.T) {
	_, h := attack(t, mux.Config{AcceptBacklog: 1})
	h.send(append(open(1, frame.KindMessages), open(3, frame.KindMessages)...))
	head, body := h.next(frame.TypeReset)
	var f frame.Reset
	if err := f.Decode(head, body); err != nil || f.Channel != 3 || f.Code != frame.CodeRefused || !strings.Contains(string(f.Reason), "AcceptBacklog") {
		t.Errorf("%+v %q %v", f, f.Reason, err)
	}
	h.send(frame.Opens{}.Append(nil)) // not agreed
	head, body = h.next(frame.TypeGoAway)
	var bye frame.GoAway
	if err := bye.Decode(head, body); err != nil || bye.Code != frame.CodeProtocol {
		t.Errorf("%+v %v", bye, err)
	}
}

func TestTrySend(t *testing.T) {
	for _, transport := range []string{"tcp", "tls"} {
		t.Run(transport, func(t *testing.T) {
			c, s := sessions(t, transport, mux.Config{}, mux.Config{ChannelWindow: 64 << 10, MaxChannelWindow: 64 << 10})
			here, there := channels(t, c, s)
			for _, size := range []int{0, 5, 4000, 30_000} {
				p := pattern(size)
				if err := here.TrySend(p); err != nil {
					t.Fatal(size, err)
				}
				clear(p) // it is the caller's again
				expect(t, there, pattern(size))
			}
			sent := 0
			var err error
			for sent = 0; err == nil; sent++ {
				err = here.TrySend(pattern(1000))
			}
			if sent--; !errors.Is(err, mux.ErrBackpressure) || !mux.SafeToRetry(err) || sent < 10 || sent > 64 {
				t.Errorf("%d were sent before: %v", sent, err)
			}
			for range sent {
				expect(t, there, pattern(1000))
			}
			conntest.Eventually(t, "there is credit again", func() bool { return here.TrySend([]byte("again")) == nil })
			expect(t, there, []byte("again"))
			if err := here.TrySend(pattern(100_000)); !errors.Is(err, mux.ErrBackpressure) {
				t.Errorf("more than the window holds: %v", err)
			}
			here.CloseWrite()
			if err := here.TrySend(nil); !errors.Is(err, mux.ErrClosed) {
				t.Errorf("after CloseWrite: %v", err)
			}
		})
	}
}

func TestPing(t *testing.T) {
	c, s := sessions(t, "tcp", mux.Config{}, mux.Config{})
	var pings sync.WaitGroup
	for range 10 {
		pings.Go(func() {
			if d, err := c.Ping(bg); err != nil || d <= 0 {
				t.Error(d, err)
			}
		})
	}
	pings.Wait()
	s.Close()
	if _, err := c.Ping(bg); !errors.Is(err, mux.ErrSessionClosed) {
		t.Errorf("after the end: %v", err)
	}
}

// TestPSKs: each client has its keys, and any of them is good; the answer to a client without keys is the same.
func TestPSKs(t *testing.T) {
	keys := map[string][][]byte{
		"branch": {[]byte("the old key of branch"), []byte("the new key of branch")}, "depot": {[]byte("the key of the depot")}, "open": nil,
	}
	server := mux.Config{Resume: &mux.Resume{}, PSKs: func(p mux.Peer) ([][]byte, error) {
		all, known := keys[p.Name]
		if !known {
			return nil, fmt.Errorf("no keys of %q", p.Name)
		}
		return all, nil
	}}
	for i, key := range keys["branch"] {
		n := newLine(t, false, server)
		c, s := n.join(mux.Config{Name: "branch", PSK: key, Resume: &mux.Resume{Dial: n.dial}})
		if p := s.Peer(); !p.PSK || p.Key != i {
			t.Errorf("key %d: %+v", i, p)
		}
		n.cut(0)
		if ch, err := c.Open(bg, "after the cut"); err != nil {
			t.Error(err)
		} else if err := ch.WaitAccepted(ctxOf(t, s)); err != nil {
			t.Errorf("not resumed: %v", err)
		}
		n.end(c, s)
	}
	c, s := sessions(t, "tcp", mux.Config{Name: "open"}, server)
	if c.Peer().PSK || s.Peer().PSK {
		t.Error("a proof without a key")
	}
	for name, key := range map[string][]byte{
		"branch": keys["depot"][0], "depot": nil, "nobody": keys["depot"][0], "open": keys["depot"][0],
	} {
		cErr, sErr := refusedHandshake(t, mux.Config{Name: name, PSK: key}, server)
		if !errors.Is(cErr, mux.ErrDenied) || !errors.Is(sErr, mux.ErrDenied) {
			t.Errorf("%s: client %v, server %v; want ErrDenied", name, cErr, sErr)
		}
	}
	if got, want := answerTo(t, server, "nobody"), answerTo(t, server, "branch"); !bytes.Equal(got, want) {
		t.Errorf("the answer shows whether there is such a client: %q and %q", got, want)
	}
}

// ctxOf accepts one channel, so that the other side's WaitAccepted ends.
func ctxOf(t *testing.T, s *mux.Session) context.Context {
	go func() { _, _ = s.Accept(bg) }()
	return t.Context()
}

// answerTo is a server's answer to a wrong proof, without its random parts.
func answerTo(t *testing.T, server mux.Config, name string) []byte {
	t.Helper()
	cc, sc := net.Pipe()
	done := make(chan error, 1)
	go func() {
		_, err := mux.Server(bg, sc, server)
		done <- err
	}()
	h := &hostile{cc, t}
	hello := frame.Hello{
		MinVersion: 1, MaxVersion: 1, MaxFrame: 32 << 10, MaxChannels: 10, ChannelWindow: 1 << 20, SessionWindow: 1 << 24,
		Offered: frame.FeaturePSK, Name: []byte(name),
	}
	h.send(hello.Append([]byte(frame.Magic)))
	h.expectHello()
	h.send((&frame.Auth{}).Append(nil))
	_, body := h.next(frame.TypeGoAway)
	if err := <-done; !errors.Is(err, mux.ErrDenied) {
		t.Error(err)
	}
	return body
}
