package mux_test

import (
	"bufio"
	"net"
	"testing"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/mux"
)

// onLoop is a connection of an engine, as far as a session knows: it reads ahead, and is
// not to be used any more when the socket was taken from it.
type onLoop struct {
	fiber.Stream
	r *bufio.Reader
}

func newOnLoop(c net.Conn) *onLoop { return &onLoop{fiber.StreamOf(c), bufio.NewReaderSize(c, 4<<10)} }

func (c *onLoop) Read(p []byte) (int, error) { return c.r.Read(p) }

func (c *onLoop) Close() error { return nil }

func (c *onLoop) Detach() (net.Conn, []byte, error) {
	ahead, err := c.r.Peek(c.r.Buffered())
	if err != nil {
		return nil, nil, err
	}
	plain, _, err := c.Stream.Detach()
	return plain, ahead, err
}

// TestDetach: a session takes the socket from a loop, with bytes that were read already; so does a
// session that is resumed.
func TestDetach(t *testing.T) {
	n := newLine(t, false, mux.Config{Resume: &mux.Resume{}})
	n.wrap = func(c net.Conn) net.Conn { return newOnLoop(c) }
	c, s := n.join(mux.Config{})
	here, there := channels(t, c, s)
	for i := range 5 {
		for range 3 {
			if err := there.Send(bg, pattern(1000*(i+1))); err != nil { // among the first bytes of a connection
				t.Fatal(err)
			}
		}
		for range 3 {
			expect(t, here, pattern(1000*(i+1)))
		}
		n.cut(i % 2)
	}
	n.end(c, s)

	cc, sc := tcpPair(t)
	early := make(chan struct{})
	go func() { // opens and sends before the other side has looked at anything
		defer close(early)
		c, err := mux.Client(bg, newOnLoop(cc), mux.Config{})
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		ch, err := c.Open(bg, "early")
		if err == nil {
			err = ch.Send(bg, []byte("first"))
		}
		if err == nil {
			err = ch.WaitAccepted(bg)
		}
		if err != nil {
			t.Error(err)
		}
	}()
	s, err := mux.Server(bg, newOnLoop(sc), mux.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ch, err := s.Accept(bg)
	if err != nil {
		t.Fatal(err)
	}
	expect(t, ch, []byte("first"))
	ch.Close()
	<-early
	s.Close()
}
