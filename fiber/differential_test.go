package fiber_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/conntest"
)

// The same random scripts are run against connections of package net and of each engine, by fibers
// and by goroutines, and a model of a connection says what every call must have returned.

// end is one end of a pair as the model knows it.
type end struct {
	conn    net.Conn
	out     stream // what it wrote
	in      stream // what it read
	fin     bool   // it has sent its end
	reset   bool   // it has reset the connection
	rude    bool   // it was closed with something unread, which some engines tell the peer by a reset
	closed  bool
	readBy  deadline
	writeBy deadline
	told    bool       // a reset was reported to it
	read    chan error // a Read that waits; nil = none
	got     []byte     // of that
}

type deadline int

const (
	never deadline = iota
	far
	past
)

func (d deadline) time() time.Time {
	return []time.Time{{}, time.Now().Add(time.Hour), time.Unix(1, 0)}[d]
}

// script is one run.
type script struct {
	rand  *rand.Rand
	ends  [2]*end
	trace []string
	wrong string
}

func (s *script) note(format string, args ...any) {
	s.trace = append(s.trace, fmt.Sprintf(format, args...))
}

func (s *script) expect(what, got, want string) {
	s.note("%s: %s", what, got)
	if got != want && s.wrong == "" {
		s.wrong = fmt.Sprintf("%s: got %s, want %s", what, got, want)
	}
}

// outcome is what callers can see of an error.
func outcome(err error) string {
	ne, isNet := errors.AsType[net.Error](err)
	switch {
	case err == nil:
		return "ok"
	case err == io.EOF:
		return "EOF"
	case errors.Is(err, os.ErrDeadlineExceeded) && isNet && ne.Timeout():
		return "time-out"
	case errors.Is(err, net.ErrClosed):
		return "closed"
	case errors.Is(err, syscall.EPIPE):
		return "broken pipe"
	case errors.Is(err, syscall.ECONNRESET):
		return "reset"
	}
	return err.Error()
}

// do runs fn as a fiber of the end's loop or on this goroutine.
func (s *script) do(e *end, fn func()) {
	if s.rand.IntN(2) == 0 {
		on(e.conn, fn)
	} else {
		fn()
	}
}

// waiting is the data that the peer of e sent and e has not read.
func (e *end) waiting(peer *end) int { return int(peer.out.at - e.in.at) }

// step does one thing at random that the model can foretell.
func (s *script) step() {
	i := s.rand.IntN(2)
	e, peer := s.ends[i], s.ends[1-i]
	name := [...]string{"client ", "server "}[i]
	switch s.rand.IntN(12) {
	case 0, 1, 2:
		s.write(name, e, peer)
	case 3, 4, 5:
		s.readSome(name, e, peer)
	case 6:
		s.startRead(name, e, peer)
	case 7, 8:
		s.setDeadline(name, e, peer)
	case 9:
		s.hint(name, e, peer)
	case 10:
		if s.rand.IntN(3) == 0 && !e.fin && !e.closed && !peer.reset && !peer.closed {
			var err error
			s.do(e, func() { err = e.conn.(interface{ CloseWrite() error }).CloseWrite() })
			s.expect(name+"CloseWrite", outcome(err), "ok")
			e.fin = true
			s.finished(peer, e)
		}
	case 11:
		if s.rand.IntN(5) == 0 {
			s.close(name, e, peer)
		}
	}
}

func (s *script) write(name string, e, peer *end) {
	n := 1 + s.rand.IntN(3000)
	if s.rand.IntN(4) == 0 {
		n = 1 + s.rand.IntN(30_000)
	}
	if peer.closed && !e.closed || peer.waiting(e)+n > 100_000 || peer.read != nil && n > 4000 {
		return // the first succeeds or not; it could wait; a Read could get a part
	}
	b := make([]byte, n)
	next := e.out
	next.fill(b)
	var err error
	var wrote int
	s.do(e, func() { wrote, err = e.conn.Write(b) })
	want := "ok"
	switch {
	case e.closed:
		want = "closed"
	case e.writeBy == past:
		want = "time-out"
	case e.fin:
		want = "broken pipe"
	default:
		e.out = next
	}
	s.expect(fmt.Sprintf("%sWrite(%d)", name, n), outcome(err), want)
	if want == "ok" != (wrote == n) {
		s.expect(name+"Write's length", fmt.Sprint(wrote), fmt.Sprint(n))
	}
	if want == "ok" {
		s.finished(peer, e)
	}
}

// finished takes the result of a Read that waited, after the peer did what ends it.
func (s *script) finished(e, peer *end) {
	if e.read == nil {
		return
	}
	err := <-e.read
	e.read = nil
	want := s.endOf(e, peer)
	switch {
	case e.closed:
		want = "closed"
	case e.readBy == past:
		want = "time-out"
	case e.waiting(peer) > 0:
		want = "ok"
		s.compare(e, e.got, e.waiting(peer))
	}
	s.expectEnd("the Read that waited", e, peer, outcome(err), want)
}

// expectEnd takes an end for a reset where the system's state decides which it is.
func (s *script) expectEnd(what string, e, peer *end, got, want string) {
	if (peer.rude || peer.reset && e.fin) && (got == "EOF" && want == "reset" || got == "reset" && want == "EOF") {
		want = got
	}
	s.expect(what, got, want)
}

// endOf is how reading ends when everything was read.
func (s *script) endOf(e, peer *end) string {
	switch {
	case peer.reset && !peer.fin && !e.told: // no reset is reported behind an end
		e.told = true
		return "reset"
	case peer.fin || peer.closed:
		return "EOF"
	}
	return ""
}

func (s *script) compare(e *end, got []byte, n int) {
	want := make([]byte, n)
	e.in.fill(want)
	if !bytes.Equal(got, want) {
		s.expect("the bytes", fmt.Sprintf("%d of them", len(got)), fmt.Sprintf("%d others", n))
	}
}

func (s *script) readSome(name string, e, peer *end) {
	if e.read != nil {
		return
	}
	n := min(1+s.rand.IntN(20_000), e.waiting(peer))
	b := make([]byte, max(n, 1))
	if e.closed || e.readBy == past || n == 0 {
		n = 0
		want := "time-out"
		switch how := ""; {
		case e.closed:
			want = "closed"
		case e.readBy == past:
		default:
			if how = s.endOf(e, peer); how != "" {
				want = how
			} else { // nothing comes
				_ = e.conn.SetReadDeadline(time.Now().Add(time.Millisecond))
				defer e.conn.SetReadDeadline(e.readBy.time())
			}
		}
		var err error
		s.do(e, func() { n, err = e.conn.Read(b) })
		s.expectEnd(name+"Read", e, peer, outcome(err), want)
		return
	}
	var err error
	s.do(e, func() { _, err = io.ReadFull(e.conn, b) })
	s.expect(fmt.Sprintf("%sRead(%d)", name, n), outcome(err), "ok")
	s.compare(e, b, n)
}

func (s *script) startRead(name string, e, peer *end) {
	if e.read != nil || e.closed || e.readBy == past || e.waiting(peer) > 0 || peer.closed || peer.fin {
		return
	}
	s.note("%sRead begins", name)
	read := make(chan error, 1)
	e.read = read
	job := func() {
		b := make([]byte, 5000)
		n, err := e.conn.Read(b)
		e.got = b[:n]
		read <- err
	}
	if s.rand.IntN(2) == 0 {
		fiber.Spawn(e.conn, job)
	} else {
		go job()
	}
	if s.rand.IntN(2) == 0 {
		runtime.Gosched()
	}
}

func (s *script) setDeadline(name string, e, peer *end) {
	if e.closed {
		return
	}
	d := deadline(s.rand.IntN(3))
	which := s.rand.IntN(3)
	s.do(e, func() {
		_ = []func(time.Time) error{e.conn.SetReadDeadline, e.conn.SetWriteDeadline, e.conn.SetDeadline}[which](d.time())
	})
	s.note("%sdeadline %d of %d", name, d, which)
	if which != 1 {
		e.readBy = d
	}
	if which != 0 {
		e.writeBy = d
	}
	if e.readBy == past {
		s.finished(e, peer)
	}
}

// hint calls methods that only engines with loops have.
func (s *script) hint(name string, e, peer *end) {
	w, ok := e.conn.(interface {
		WaitReadable() error
		Adopt()
	})
	adopt, by := s.rand.IntN(2) == 0, s.rand.IntN(2)
	if !ok || e.read != nil {
		return
	}
	if adopt {
		s.note("%sis adopted", name)
		on(peer.conn, w.Adopt)
		return
	}
	want := "ok"
	switch {
	case e.closed:
		want = "closed"
	case e.readBy == past:
		want = "time-out"
	case e.waiting(peer) == 0 && !peer.fin && !peer.closed:
		return
	}
	var err error
	if by == 0 {
		err = w.WaitReadable()
	} else {
		on(e.conn, func() { err = w.WaitReadable() })
	}
	s.expect(name+"WaitReadable", outcome(err), want)
}

func (s *script) close(name string, e, peer *end) {
	if e.closed {
		return
	}
	reset := !peer.closed && s.rand.IntN(3) == 0
	var err error
	s.do(e, func() {
		if reset {
			_ = e.conn.(interface{ SetLinger(int) error }).SetLinger(0)
		}
		err = e.conn.Close()
	})
	s.expect(fmt.Sprintf("%sClose, reset %v", name, reset), outcome(err), "ok")
	e.closed, e.reset, e.rude = true, reset, e.waiting(peer) > 0
	s.finished(e, peer)
	s.finished(peer, e)
}

// dialer makes pairs of connections.
type dialer func(t *testing.T) (client, server net.Conn)

func netPair(t *testing.T) (client, server net.Conn) { return conntest.Pair(t, "tcp", "127.0.0.1:0") }

func runScripts(t *testing.T, dial dialer) {
	for seed := range uint64(100) {
		s := &script{rand: rand.New(rand.NewPCG(seed, 1))}
		client, server := dial(t)
		s.ends = [2]*end{{conn: client}, {conn: server}}
		for i, e := range s.ends {
			e.out.seed = uint64(i)
			s.ends[1-i].in.seed = uint64(i)
		}
		for step := 0; step < 60 && s.wrong == ""; step++ {
			s.step()
		}
		_, _ = client.Close(), server.Close()
		if s.wrong != "" {
			t.Fatalf("script %d: %s; after\n\t%s", seed, s.wrong, strings.Join(s.trace, "\n\t"))
		}
		for _, e := range s.ends {
			if e.read != nil {
				<-e.read
			}
		}
	}
}

func TestAllBehaveAsPackageNetDoes(t *testing.T) {
	t.Run("net", func(t *testing.T) { runScripts(t, netPair) })
	for _, loops := range []int{1, 2} {
		for _, kind := range kinds(t) {
			t.Run(fmt.Sprintf("%s, %d", kind, loops), func(t *testing.T) {
				e := newEngine(t, fiber.Config{Engine: kind, Loops: loops})
				runScripts(t, func(t *testing.T) (client, server net.Conn) { return pair(t, e, "tcp") })
			})
		}
	}
}
