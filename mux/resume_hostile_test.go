package mux_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/mux"
	"github.com/headpond/headpond/mux/frame"
)

// presents sends wire as a client's first bytes to a server with cfg, and returns the result of
// Server and the server's answer.
func presents(t testing.TB, cfg mux.Config, wire []byte) (err error, typ frame.Type, code frame.Code) {
	t.Helper()
	here, there := net.Pipe()
	done := make(chan error, 1)
	go func() {
		_, err := mux.Server(bg, there, cfg)
		done <- err
	}()
	go here.Write(append([]byte(frame.Magic), wire...))
	head := make([]byte, len(frame.Magic)+frame.HeaderSize)
	if _, err := io.ReadFull(here, head); err == nil {
		h, err := frame.ParseHeader(head[len(frame.Magic):])
		if err != nil {
			t.Fatal(err)
		}
		body := make([]byte, h.Length)
		io.ReadFull(here, body)
		if typ = h.Type; typ == frame.TypeGoAway {
			code = frame.Code(binary.BigEndian.Uint32(body[4:]))
		}
	}
	err = <-done
	here.Close()
	return err, typ, code
}

// TestForgedResume: whatever is wrong with a RESUME, it is refused and the
// session does not notice.
func TestForgedResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := mux.Config{Resume: &mux.Resume{}, HandshakeTimeout: time.Second}
		n := newLine(t, true, cfg)
		c, s := n.join(mux.Config{})
		here, there := channels(t, c, s)
		synctest.Wait()
		_, sent, _, _ := mux.Numbers(s)
		tamper := func(at int) []byte {
			wire := mux.ResumeFrame(s, 1, 0, false)
			wire[at] ^= 1
			return wire
		}
		for name, c := range map[string]struct {
			wire []byte
			code frame.Code
		}{
			"no proof":            {mux.ResumeFrame(s, 1, 0, true), frame.CodeDenied},
			"proof changed":       {tamper(frame.HeaderSize + 79), frame.CodeDenied},
			"epoch changed":       {tamper(frame.HeaderSize + 6), frame.CodeDenied},
			"last changed":        {tamper(frame.HeaderSize + 15), frame.CodeDenied},
			"another session":     {tamper(frame.HeaderSize + 16), frame.CodeOver},
			"another instance":    {tamper(frame.HeaderSize + 32), frame.CodeOver},
			"what was never sent": {mux.ResumeFrame(s, 1, sent+1, false), frame.CodeOver},
			"reserved bits":       {tamper(frame.HeaderSize + 1), frame.CodeProtocol},
		} {
			err, typ, code := presents(t, cfg, c.wire)
			if err == nil || errors.Is(err, mux.ErrResumed) || typ != frame.TypeGoAway || code != c.code {
				t.Errorf("%s: %v, answered %v %v, want %v", name, err, typ, code, c.code)
			}
		}
		other := mux.Config{Resume: &mux.Resume{}}
		if err, _, code := presents(t, other, mux.ResumeFrame(s, 1, 0, false)); code != frame.CodeOver || err == nil {
			t.Errorf("at another server: %v, %v", err, code)
		}
		if err, _, code := presents(t, mux.Config{}, mux.ResumeFrame(s, 1, 0, false)); code != frame.CodeOver || err == nil {
			t.Errorf("at a server that does not resume: %v, %v", err, code)
		}
		no := errors.New("no")
		denies := cfg
		denies.Authorize = func(context.Context, mux.Peer) error { return no }
		if err, _, code := presents(t, denies, mux.ResumeFrame(s, 1, sent, false)); code != frame.CodeDenied || !errors.Is(err, no) {
			t.Errorf("not authorized any more: %v, %v", err, code)
		}
		here.Send(bg, []byte("still there"))
		expect(t, there, []byte("still there"))
		if st := s.Stats(); st.Losses != 0 || st.Resumed != 0 {
			t.Errorf("the session noticed: %+v", st)
		}
		n.end(c, s)
	})
}

// TestStaleResume: a RESUME whose epoch was used is refused: it was recorded, or late.
func TestStaleResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newLine(t, true, mux.Config{Resume: &mux.Resume{}})
		c, s := n.join(mux.Config{})
		n.cut(0)
		synctest.Wait()
		_, sent, _, epoch := mux.Numbers(s)
		if epoch == 0 {
			t.Fatal("not resumed")
		}
		for e := uint32(1); e <= epoch; e++ {
			if err, _, code := presents(t, n.server, mux.ResumeFrame(s, e, sent, false)); code != frame.CodeOver || err == nil {
				t.Errorf("epoch %d again: %v, %v", e, err, code)
			}
		}
		if s.Stats().Suspended {
			t.Error("the session lost its connection by it")
		}
		n.end(c, s)
	})
}

// TestBadAcknowledgement: acknowledging data that was never sent ends the session.
func TestBadAcknowledgement(t *testing.T) {
	for name, ack := range map[string]uint64{"one too many": 3, "far away": 1 << 31, "half way round": 1<<31 - 1} {
		synctest.Test(t, func(t *testing.T) {
			n := newLine(t, true, mux.Config{Resume: &mux.Resume{}, KeepAlive: -1})
			cheat := &forger{ack: uint32(ack)}
			n.wrap = func(c net.Conn) net.Conn {
				cheat.Conn = c
				return cheat
			}
			c, s := n.join(mux.Config{KeepAlive: -1})
			synctest.Wait()
			cheat.on.Store(true)
			c.Open(bg, "x")
			synctest.Wait()
			if err := s.Err(); name != "far away" && !errors.Is(err, mux.ErrProtocol) {
				t.Errorf("%s: %v, want ErrProtocol", name, err)
			}
			n.end(c, s)
		})
	}
}

// forger is a connection that, once on, forges the acknowledgement in each write.
type forger struct {
	net.Conn
	on  atomic.Bool
	ack uint32
}

func (f *forger) Write(p []byte) (int, error) {
	if f.on.Load() && len(p) >= frame.HeaderSize {
		p = append([]byte(nil), p...)
		binary.BigEndian.PutUint32(p[12:], f.ack)
	}
	return f.Conn.Write(p)
}

// TestTooManySuspended: a server keeps no more sessions without a connection than it says.
func TestTooManySuspended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		resume := &mux.Resume{MaxSuspended: 3}
		var lines []*line
		var all [][2]*mux.Session
		for range 5 {
			n := newLine(t, true, mux.Config{Resume: resume})
			c, s := n.join(mux.Config{})
			lines, all = append(lines, n), append(all, [2]*mux.Session{c, s})
		}
		kept := 0
		for i, n := range lines {
			n.set(errDown)
			n.cut(1)
			synctest.Wait()
			if all[i][1].Err() == nil {
				kept++
			}
		}
		if kept != 3 {
			t.Errorf("%d sessions kept, want 3", kept)
		}
		for i, n := range lines {
			n.end(all[i][0], all[i][1])
		}
	})
}

// TestComingBackIsNotSuspension: a client that resumes before the server has noticed its loss is
// accepted, also when the server is at its limit of suspended sessions.
func TestComingBackIsNotSuspension(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		resume := &mux.Resume{MaxSuspended: 1}
		full := newLine(t, true, mux.Config{Resume: resume})
		suspended, kept := full.join(mux.Config{})
		full.set(errDown)
		full.cut(1)
		synctest.Wait()

		var now *severed
		n := newLine(t, true, mux.Config{Resume: resume})
		n.wrap = func(c net.Conn) net.Conn {
			now = &severed{Conn: c}
			return now
		}
		c, s := n.join(mux.Config{})
		here, there := channels(t, c, s)
		for i := range 3 {
			old := now
			old.sever()
			synctest.Wait()
			if err := here.Send(bg, pattern(i)); err != nil {
				t.Fatal(err)
			}
			expect(t, there, pattern(i))
			if st := s.Stats(); st.Resumed != uint64(i+1) {
				t.Errorf("resumed %d times, want %d", st.Resumed, i+1)
			}
			old.Conn.Close()
		}
		if kept.Err() != nil {
			t.Errorf("the session without a connection: %v", kept.Err())
		}
		n.end(c, s)
		full.end(suspended, kept)
	})
}

// severed is a client's connection that ends for the client alone: the server's end stays open,
// with the data on its way.
type severed struct {
	net.Conn
	gone atomic.Bool
}

func (s *severed) sever() {
	s.gone.Store(true)
	s.SetDeadline(time.Unix(1, 0))
}

func (s *severed) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p)
	if s.gone.Load() {
		return 0, net.ErrClosed
	}
	return n, err
}

func (s *severed) Write(p []byte) (int, error) {
	if s.gone.Load() {
		return 0, net.ErrClosed
	}
	n, err := s.Conn.Write(p)
	if s.gone.Load() {
		err = net.ErrClosed
	}
	return n, err
}

func (s *severed) Close() error {
	if s.gone.Load() {
		return nil // the server's end finds out when it is fenced
	}
	return s.Conn.Close()
}

// TestFencing: the client has gone on with another connection while the server
// still reads from the old one. Streams, large and small messages arrive once.
func TestFencing(t *testing.T) {
	n := newLine(t, false, mux.Config{Resume: &mux.Resume{}})
	var mu sync.Mutex
	var now *severed
	var olds []net.Conn
	n.wrap = func(c net.Conn) net.Conn {
		mu.Lock()
		defer mu.Unlock()
		now = &severed{Conn: c}
		olds = append(olds, c)
		return now
	}
	c, s := n.join(mux.Config{})
	here, there := channels(t, c, s)
	r := rand.New(rand.NewPCG(5, 5))
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for i := range 600 {
			if err := here.Send(bg, numbered(r, i)); err != nil {
				t.Error(err)
				return
			}
			if i%20 == 10 {
				mu.Lock()
				now.sever()
				mu.Unlock()
			}
		}
	}()
	for i := range 600 {
		m, err := there.Receive(bg)
		if err != nil {
			t.Fatal(err)
		}
		if err := checkNumbered(m.Bytes(), i); err != nil {
			t.Fatal(err)
		}
		m.Release()
	}
	<-sent
	if st := s.Stats(); st.Resumed == 0 {
		t.Errorf("never resumed: %+v", st)
	}
	c.Close()
	s.Close()
	for _, old := range olds { // one may have been severed in its handshake
		old.Close()
	}
	n.end(c, s)
}

// TestResumeBothSidesWriteBlocked: with a PSK, and both sides write-blocked in their streams when the connection goes.
func TestResumeBothSidesWriteBlocked(t *testing.T) {
	psk := []byte("a key of 16 bytes or more")
	cfg := mux.Config{
		PSK: psk, ChannelWindow: 8 << 10, MaxChannelWindow: 8 << 10, SessionWindow: 1 << 20, MaxMessage: 1 << 20,
	}
	server, client := cfg, cfg
	server.Resume, client.Resume = &mux.Resume{Buffer: 64 << 10}, &mux.Resume{Buffer: 64 << 10}
	n := newLine(t, false, server)
	c, s := n.join(client)
	progress := make(chan struct{}, 1)
	wg := exchangeLarge(t, c, s, func() {
		select {
		case progress <- struct{}{}:
		default:
		}
	})
	for i := range 10 {
		<-progress
		n.cut(i % 2)
	}
	wg.Wait()
	n.end(c, s)
}

// FuzzResume: a RESUME is taken if and only if it is signed, unchanged, newer than any before and
// asks for data that exists; otherwise the session is unchanged.
func FuzzResume(f *testing.F) {
	f.Add(uint32(1), uint64(0), false, uint8(0), byte(0))
	f.Add(uint32(2), uint64(1), false, uint8(20), byte(1))
	f.Add(uint32(0), uint64(1<<40), true, uint8(90), byte(0x80))
	f.Add(uint32(1), uint64(1), false, uint8(95), byte(0))
	f.Add(uint32(1), uint64(2), false, uint8(95), byte(0))
	f.Fuzz(func(t *testing.T, epoch uint32, last uint64, forged bool, at uint8, flip byte) {
		cfg := mux.Config{Resume: &mux.Resume{}, KeepAlive: -1}
		n := newLine(t, true, cfg)
		c, s := n.join(mux.Config{KeepAlive: -1})
		defer n.end(c, s)
		conntest.Eventually(t, "the first frame is acknowledged", func() bool { // else it may be while this test looks
			acked, sent, _, _ := mux.Numbers(s)
			return sent > 0 && acked == sent
		})
		n.set(errDown)
		acked, sent, _, before := mux.Numbers(s)
		wire := mux.ResumeFrame(s, epoch, last, forged)
		wire[int(at)%len(wire)] ^= flip
		err, typ, code := presents(t, cfg, wire)
		good := !forged && flip == 0 && epoch > before && last >= acked && last <= sent
		if good != errors.Is(err, mux.ErrResumed) || good != (typ == frame.TypeResumed) {
			t.Fatalf("epoch %d, last %d of %d to %d, forged %v, flipped %x at %d: %v, %v %v",
				epoch, last, acked, sent, forged, flip, at, err, typ, code)
		}
		if st := s.Stats(); !good && (st.Losses != 0 || s.Err() != nil) {
			t.Fatalf("refused, and the session noticed: %+v, %v", st, s.Err())
		}
	})
}
