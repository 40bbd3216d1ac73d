package mux_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headpond/headpond/mux"
	"github.com/headpond/headpond/mux/frame"
)

// hostile is a peer that shakes hands properly and then sends anything.
type hostile struct {
	net.Conn
	t testing.TB
}

// attack starts a server session and returns it with a hostile client.
func attack(t testing.TB, cfg mux.Config) (*mux.Session, *hostile) {
	t.Helper()
	cc, sc := tcpPair(t)
	return attackOver(t, cc, sc, cfg)
}

func attackOver(t testing.TB, cc, sc net.Conn, cfg mux.Config) (*mux.Session, *hostile) {
	t.Helper()
	t.Cleanup(func() { cc.Close() })
	made := make(chan *mux.Session, 1)
	go func() {
		s, err := mux.Server(bg, sc, cfg)
		if err != nil {
			t.Error(err)
		}
		made <- s
	}()
	h := &hostile{cc, t}
	hello := frame.Hello{
		MinVersion: 1, MaxVersion: 1, MaxFrame: 32 << 10, MaxChannels: 10, ChannelWindow: 1 << 20, SessionWindow: 1 << 24,
	}
	if cfg.Resume != nil {
		hello.Offered, hello.Replay = frame.FeatureResume, frame.MinReplay
	}
	h.send(hello.Append([]byte(frame.Magic)))
	h.expectHello()
	if cfg.Resume != nil {
		h.next(frame.TypeTicket)
	}
	s := <-made
	t.Cleanup(func() {
		cc.Close()
		s.Close()
	})
	return s, h
}

func (h *hostile) send(b []byte) { h.Write(b) } // it may be cut off

func (h *hostile) expectHello() {
	h.t.Helper()
	buf := make([]byte, len(frame.Magic)+frame.HeaderSize)
	if _, err := io.ReadFull(h, buf); err != nil {
		h.t.Fatal(err)
	}
	head, err := frame.ParseHeader(buf[len(frame.Magic):])
	if err != nil || head.Type != frame.TypeHello {
		h.t.Fatal(head, err)
	}
	io.CopyN(io.Discard, h, int64(head.Length))
}

// next reads frames until one of the type comes.
func (h *hostile) next(want frame.Type) (head frame.Header, body []byte) {
	h.t.Helper()
	for head.Type != want {
		head, body = h.frame()
	}
	return head, body
}

func (h *hostile) frame() (head frame.Header, body []byte) {
	h.t.Helper()
	buf := make([]byte, frame.HeaderSize)
	if _, err := io.ReadFull(h, buf); err != nil {
		h.t.Fatal(err)
	}
	head, err := frame.ParseHeader(buf)
	if err != nil {
		h.t.Fatal(err)
	}
	body = make([]byte, head.Length)
	if _, err := io.ReadFull(h, body); err != nil {
		h.t.Fatal(err)
	}
	return head, body
}

func open(ch uint32, kind frame.Kind) []byte {
	return (&frame.Open{Channel: ch, Kind: kind}).Append(nil)
}

func data(ch uint32, fl frame.Flags, size uint32, payload int) []byte {
	f := frame.Data{Channel: ch, Flags: fl, Size: size, Payload: make([]byte, payload)}
	return f.Append(nil)
}

func concat(parts ...[]byte) (all []byte) {
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

func TestViolationsEndTheSession(t *testing.T) {
	huge := frame.Header{Type: frame.TypeData, Channel: 1, Length: 1 << 20}.Append(nil)
	for name, wire := range map[string][]byte{
		"garbage":             []byte(strings.Repeat("garbage ", 4)),
		"frame too long":      concat(open(1, frame.KindStream), huge),
		"length of 4 GiB":     {0x12, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 1, 0, 0, 0, 0},
		"even number":         open(2, frame.KindStream),
		"number twice":        concat(open(1, frame.KindStream), open(1, frame.KindStream)),
		"number going down":   concat(open(5, frame.KindStream), open(3, frame.KindStream)),
		"unopened channel":    data(7, 0, 0, 1),
		"window of unopened":  frame.Window{Channel: 9, Limit: 1}.Append(nil),
		"hello again":         (&frame.Hello{MinVersion: 1, MaxVersion: 1, MaxFrame: 1 << 15}).Append(nil),
		"accept by opener":    concat(open(1, frame.KindStream), frame.Accept{Channel: 1}.Append(nil)),
		"auth out of season":  (&frame.Auth{}).Append(nil),
		"reserved type":       {0x03, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
		"number of this side": data(2, 0, 0, 1),
	} {
		t.Run(name, func(t *testing.T) {
			s, h := attack(t, mux.Config{})
			h.send(wire)
			_, body := h.next(frame.TypeGoAway)
			if code := frame.Code(binary.BigEndian.Uint32(body[4:])); code != frame.CodeProtocol {
				t.Errorf("told %v, want protocol", code)
			}
			<-s.Done()
			if err := s.Err(); !errors.Is(err, mux.ErrProtocol) || !errors.Is(err, mux.ErrSessionLost) {
				t.Errorf("got %v, want ErrProtocol", err)
			}
		})
	}
}

func TestViolationsResetOneChannel(t *testing.T) {
	for name, c := range map[string]struct {
		kind frame.Kind
		wire []byte
		code frame.Code
	}{
		"overrun":               {frame.KindMessages, concat(data(1, 0, 0, 5000), data(1, 0, 0, 5000)), frame.CodeFlow},
		"too many empty":        {frame.KindMessages, []byte(strings.Repeat(string(data(1, 0, 0, 0)), 200)), frame.CodeFlow},
		"too large":             {frame.KindMessages, data(1, frame.FlagMore|frame.FlagSized, 1<<30, 1), frame.CodeTooLarge},
		"more than its size":    {frame.KindMessages, concat(data(1, 3, 5, 4), data(1, 0, 0, 2)), frame.CodeProtocol},
		"less than its size":    {frame.KindMessages, concat(data(1, 3, 5, 3), data(1, 0, 0, 1)), frame.CodeProtocol},
		"empty part":            {frame.KindMessages, concat(data(1, 3, 5, 3), data(1, 1, 0, 0)), frame.CodeProtocol},
		"part without a start":  {frame.KindMessages, data(1, 1, 0, 3), frame.CodeProtocol},
		"size twice":            {frame.KindMessages, concat(data(1, 3, 5, 3), data(1, 3, 5, 1)), frame.CodeProtocol},
		"abort of nothing":      {frame.KindMessages, data(1, frame.FlagAbort, 0, 0), frame.CodeProtocol},
		"fin within a message":  {frame.KindMessages, concat(data(1, 3, 5, 3), data(1, frame.FlagFin, 0, 0)), frame.CodeProtocol},
		"fin with a message":    {frame.KindMessages, data(1, frame.FlagFin, 0, 3), frame.CodeProtocol},
		"data after fin":        {frame.KindMessages, concat(data(1, frame.FlagFin, 0, 0), data(1, 0, 0, 3)), frame.CodeProtocol},
		"message flags, stream": {frame.KindStream, data(1, frame.FlagMore, 0, 3), frame.CodeProtocol},
		"empty, stream":         {frame.KindStream, data(1, 0, 0, 0), frame.CodeProtocol},
		"overrun, stream":       {frame.KindStream, concat(data(1, 0, 0, 5000), data(1, 0, 0, 5000)), frame.CodeFlow},
	} {
		t.Run(name, func(t *testing.T) {
			s, h := attack(t, mux.Config{ChannelWindow: 8 << 10})
			h.send(concat(open(1, c.kind), open(3, frame.KindMessages), c.wire))
			head, body := h.next(frame.TypeReset)
			if code := frame.Code(binary.BigEndian.Uint32(body)); head.Channel != 1 || code != c.code {
				t.Errorf("reset of %d with %v %q, want 1 with %v", head.Channel, code, body[4:], c.code)
			}
			h.send(data(3, 0, 0, 77)) // the other channel continues
			for {
				ch, err := s.Accept(bg)
				if err != nil {
					t.Fatal(err)
				}
				if ch.Number() == 3 {
					expect(t, ch, make([]byte, 77))
					return
				}
			}
		})
	}
}

// floods are sequences that a hostile peer may repeat: the i-th frames of each.
var floods = map[string]func(i uint32) []byte{
	"ping":           func(i uint32) []byte { return frame.Ping{Opaque: uint64(i)}.Append(nil) },
	"pong":           func(i uint32) []byte { return frame.Pong{Opaque: uint64(i)}.Append(nil) },
	"ack":            func(uint32) []byte { return frame.Ack{}.Append(nil) }, // a violation without resumption
	"open":           func(i uint32) []byte { return open(2*i+1, frame.KindMessages) },
	"open and reset": func(i uint32) []byte { return concat(open(2*i+1, 1), (&frame.Reset{Channel: 2*i + 1}).Append(nil)) },
	"open and fill": func(i uint32) []byte {
		return concat(open(2*i+1, 1), data(2*i+1, 3, 64<<20, 16<<10))
	},
	"long names": func(i uint32) []byte {
		return (&frame.Open{Channel: 2*i + 1, Kind: frame.KindStream, Name: make([]byte, 512)}).Append(nil)
	},
	"window":         func(i uint32) []byte { return frame.Window{Limit: uint64(i)}.Append(nil) },
	"channel window": onOne(func(i uint32) []byte { return frame.Window{Channel: 1, Limit: 1<<20 + uint64(i)}.Append(nil) }),
	"empty messages": onOne(func(uint32) []byte { return data(1, 0, 0, 0) }),
	"small parts": onOne(func(i uint32) []byte {
		if i == 1 {
			return data(1, 3, 64<<20, 1)
		}
		return data(1, frame.FlagMore, 0, 1)
	}),
	"stop":  onOne(func(uint32) []byte { return frame.Stop{Channel: 1}.Append(nil) }),
	"reset": onOne(func(uint32) []byte { return (&frame.Reset{Channel: 1, Reason: make([]byte, 500)}).Append(nil) }),
	"data of a channel that is over": onOne(func(i uint32) []byte {
		if i == 1 {
			return (&frame.Reset{Channel: 1}).Append(nil)
		}
		return data(1, 0, 0, 1000)
	}),
	"goaway": func(uint32) []byte { return (&frame.GoAway{}).Append(nil) },
}

// onOne opens channel 1 and continues with the results of next, from 1 on.
func onOne(next func(i uint32) []byte) func(i uint32) []byte {
	return func(i uint32) []byte {
		if i == 0 {
			return open(1, frame.KindMessages)
		}
		return next(i)
	}
}

// TestFloods: memory does not grow, whatever a peer repeats that neither reads nor acknowledges
// anything.
func TestFloods(t *testing.T) {
	for name, one := range floods {
		t.Run(name, func(t *testing.T) { flood(t, mux.Config{}, one) })
		t.Run(name+", resumable", func(t *testing.T) {
			flood(t, mux.Config{Resume: &mux.Resume{Buffer: 64 << 10, Window: time.Millisecond}}, one)
		})
	}
}

func flood(t *testing.T, cfg mux.Config, one func(i uint32) []byte) {
	cfg.SessionWindow, cfg.MaxChannels, cfg.CloseTimeout = 1<<20, 16, 10*time.Millisecond
	s, h := attack(t, cfg)
	before := heap()
	h.SetWriteDeadline(time.Now().Add(2 * time.Second))
	for sent, i := 0, uint32(0); sent < 1<<20; {
		var wire []byte
		for ; len(wire) < 64<<10; i++ {
			wire = append(wire, one(i)...)
		}
		if _, err := h.Write(wire); err != nil {
			break // cut off, or not read any more
		}
		sent += len(wire)
	}
	if grown := heap() - before; grown > 5<<19 {
		t.Errorf("%d KiB held after the flood", grown>>10)
	}
	if b := s.Stats().Buffered; b > 1<<20 {
		t.Errorf("%d bytes buffered", b)
	}
}

func heap() int64 {
	runtime.GC()
	runtime.GC() // pooled memory outlives one collection
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestSlowLoris: a peer that sends a byte now and then, and never a frame, is
// dead to us: in the handshake and after.
func TestSlowLoris(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cc, sc := net.Pipe()
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			for i := 0; ; i++ {
				if _, err := cc.Write([]byte{frame.Magic[i%len(frame.Magic)]}); err != nil {
					return
				}
				time.Sleep(3 * time.Second)
			}
		}()
		began := time.Now()
		if _, err := mux.Server(bg, sc, mux.Config{HandshakeTimeout: 5 * time.Second}); !errors.Is(err, mux.ErrHandshake) {
			t.Errorf("got %v", err)
		}
		if took := time.Since(began); took > 6*time.Second {
			t.Errorf("the handshake took %v", took)
		}
		cc.Close()
		<-gone
	})
	synctest.Test(t, func(t *testing.T) {
		cc, sc := net.Pipe()
		drip := &dripper{Conn: cc}
		c, s := join(t, drip, sc, mux.Config{KeepAlive: -1}, mux.Config{KeepAlive: 10 * time.Second, KeepAliveTimeout: 5 * time.Second})
		synctest.Wait()
		drip.slow.Store(true)
		ch, err := c.Open(bg, "slow")
		if err != nil {
			t.Fatal(err)
		}
		go ch.Send(bg, make([]byte, 10_000))
		<-s.Done()
		if err := s.Err(); !errors.Is(err, mux.ErrDeadPeer) {
			t.Errorf("got %v, want ErrDeadPeer", err)
		}
		s.Close()
		c.Close()
	})
}

// TestAnswersNotRead: a peer that opens channels and does not read the application's answers is
// stopped; answers do not pile up for it.
func TestAnswersNotRead(t *testing.T) {
	cc, sc := net.Pipe() // holds nothing: the server's writer waits with its first answer
	s, h := attackOver(t, cc, sc, mux.Config{CloseTimeout: time.Millisecond})
	var answered atomic.Uint64
	over := make(chan struct{})
	go func() {
		defer close(over)
		reason := strings.Repeat("no ", 100)
		for {
			ch, err := s.Accept(bg)
			if err != nil {
				return
			}
			ch.Reset(1, reason)
			answered.Add(1)
		}
	}()
	const many = 20_000 // of more than 300 bytes each
	opened := 0
	for ; opened < many; opened++ {
		if _, err := h.Write(open(uint32(2*opened+1), frame.KindMessages)); err != nil {
			break
		}
		for s.Err() == nil && answered.Load()+s.Stats().Refused <= uint64(opened) {
			runtime.Gosched()
		}
	}
	if opened < many {
		<-over
	}
	if opened == many {
		t.Fatalf("%d channels opened and reset, and not one answer read", opened)
	}
	if err := s.Err(); !errors.Is(err, mux.ErrProtocol) {
		t.Errorf("got %v, want ErrProtocol", err)
	}
}

// TestUnreadKeepsItsPlace: data of ended channels counts until the application has read it, or
// closed them.
func TestUnreadKeepsItsPlace(t *testing.T) {
	const window = 1 << 20
	c, s := sessions(t, "tcp", mux.Config{}, mux.Config{SessionWindow: window})
	send := func() error {
		ch, err := c.Open(bg, "full")
		if err != nil {
			t.Fatal(err)
		}
		defer ch.Close()
		if err := ch.Send(bg, make([]byte, 32<<10)); err != nil {
			return err
		}
		return ch.WaitAccepted(bg)
	}
	var held []*mux.Channel
	for {
		accepted := make(chan *mux.Channel, 1)
		ctx, cancel := context.WithCancel(bg)
		go func() {
			ch, _ := s.Accept(ctx)
			accepted <- ch
		}()
		err := send()
		cancel()
		ch := <-accepted
		if ch != nil {
			held = append(held, ch)
		}
		if err != nil {
			if !errors.Is(err, mux.ErrRefused) {
				t.Fatal(err)
			}
			break
		}
		if len(held) > 2*window/(32<<10) {
			t.Fatalf("%d channels of 32 KiB hold more than the %d allowed", len(held), window)
		}
	}
	if b := s.Stats().Buffered; b < window/2 || b > window {
		t.Errorf("%d bytes buffered", b)
	}
	for i, ch := range held {
		if i%2 == 0 {
			expect(t, ch, make([]byte, 32<<10))
			continue
		}
		ch.Close()
	}
	if b := s.Stats().Buffered; b != 0 {
		t.Errorf("%d bytes buffered", b)
	}
	here, there := channels(t, c, s)
	if err := here.Send(bg, []byte("again")); err != nil {
		t.Fatal(err)
	}
	expect(t, there, []byte("again"))
}

// TestEndedNotAcknowledged: channels that a peer opens and resets while it
// acknowledges nothing are not remembered forever.
func TestEndedNotAcknowledged(t *testing.T) {
	client, server := mux.NewCorePair(mux.Config{Resume: &mux.Resume{}}, true)
	for range 5000 {
		ch, err := client.Open(mux.PriorityNormal, 0)
		if err != nil {
			t.Fatal(err)
		}
		client.Reset(ch)
		for wire := client.Output(); len(wire) > 0; {
			head, err := frame.ParseHeader(wire)
			if err != nil {
				t.Fatal(err)
			}
			body := wire[frame.HeaderSize:][:head.Length]
			wire = wire[frame.HeaderSize+len(body):]
			if err := server.Input(head, body, true); err != nil {
				t.Fatal(err)
			}
		}
		server.Accept()
	}
	if n := server.Ended(); n > 1024 {
		t.Errorf("%d channels remembered", n)
	}
}
