package fiber_test

import (
	"bytes"
	"crypto/tls"
	"io"
	"math/rand/v2"
	"net"
	"testing"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/tlstest"
)

// attended passes data from src to dst by AttendThen, and by a fiber what dst has no room for.
type attended struct {
	src, dst fiber.Stream
	other    net.Conn // the connection of dst
	rest     []byte   // that a step has read and not written
	over     bool
	taken    chan bool  // the result of each AttendThen
	ended    chan error // of the Read when a step is over
}

func attend(src, dst fiber.Stream, other net.Conn) *attended {
	a := &attended{src: src, dst: dst, other: other, taken: make(chan bool, 1000), ended: make(chan error, 1)}
	fiber.Spawn(other, a.run)
	return a
}

func (a *attended) run() {
	_, err := a.dst.Write(a.rest)
	if a.rest = nil; a.over || err != nil {
		if err == nil {
			_, err = a.src.Read(make([]byte, 1))
		}
		a.ended <- err
		return
	}
	a.taken <- a.src.AttendThen(a.other, a.step, func(any) { a.run() })
}

// takenAgain reports whether there were further AttendThens since it was called last.
func (a *attended) takenAgain() (again bool) {
	for len(a.taken) > 0 {
		<-a.taken
		again = true
	}
	return again
}

func (a *attended) step() bool {
	for {
		data, other, over := a.src.TryReadEither(a.other, 0)
		if a.over = other || over; len(data) == 0 {
			return a.over
		}
		if n := a.dst.TryWrite(data); n < len(data) {
			a.rest = bytes.Clone(data[n:])
			return true
		}
	}
}

// sendPieces writes data in pieces of any size, and then the end.
func sendPieces(t *testing.T, to interface {
	io.Writer
	CloseWrite() error
}, data []byte) {
	for len(data) > 0 {
		n := min(len(data), 1+rand.IntN(1<<rand.IntN(17)))
		if _, err := to.Write(data[:n]); err != nil {
			t.Error(err)
			return
		}
		data = data[n:]
	}
	_ = to.CloseWrite()
}

// TestTLSAttendedRecords: a record that comes in parts, one without data, and one that is answered.
func TestTLSAttendedRecords(t *testing.T) {
	cfg := serverConfig()
	cfg.SessionTicketsDisabled = true // or they are on their way to the client
	loops(t, func(t *testing.T, e *fiber.Engine) {
		c := newTLSChain(t, e, cfg)
		if c.ConnectionState().CipherSuite != tls.TLS_AES_128_GCM_SHA256 {
			t.Log("this machine has no instructions for AES, and tlstest makes no other records")
			return
		}
		seal := tlstest.NewSealer(t, c.keyLog.String(), "CLIENT")
		a := attend(c.in, c.out, c.out)
		if !<-a.taken {
			t.Fatal("AttendThen returned false")
		}
		want := func(text string) {
			t.Helper()
			got := make([]byte, len(text))
			if _, err := io.ReadFull(c.server, got); err != nil || string(got) != text {
				t.Fatalf("the server got %q, %v; want %q", got, err, text)
			}
			awaitNoFibers(t, e)
		}
		three := append(append(seal.Record(tlstest.Data, "a"), seal.Record(tlstest.Data, "")...), seal.Record(tlstest.Data, "bc")...)
		_, _ = c.far.Write(three[:30])
		want("a")
		for _, b := range three[30:] {
			_, _ = c.far.Write([]byte{b})
		}
		want("bc")
		_, _ = c.far.Write(seal.Record(tlstest.Handshake, tlstest.KeyUpdate))
		answer := make([]byte, 5)
		if _, err := io.ReadFull(c.far, answer); err != nil || answer[0] != tlstest.Data {
			t.Errorf("a key update is answered with %q, %v", answer, err)
		}
		seal.Renew(t)
		_, _ = c.far.Write(seal.Record(tlstest.Data, "with new keys"))
		want("with new keys")
		_, _ = c.far.Write(seal.Record(tlstest.Alert, tlstest.CloseNotify))
		if err := <-a.ended; err != io.EOF {
			t.Errorf("at the end %v", err)
		}
	})
}
