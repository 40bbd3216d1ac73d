package fiber_test

import (
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/fiber"
)

// asked returns a connection of package net, its Asker and the other end.
func asked(t *testing.T) (fiber.Stream, *fiber.Asker, *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	peer, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = errors.Join(c.Close(), peer.Close()) })
	s := fiber.StreamOf(c)
	a := fiber.NewAsker(s)
	if a == nil {
		t.Fatal("a TCP connection has no Asker")
	}
	return s, a, peer.(*net.TCPConn)
}

func TestAsk(t *testing.T) {
	c, a, peer := asked(t)
	go func() {
		buf := make([]byte, 16)
		for {
			n, err := peer.Read(buf)
			if err != nil {
				return
			}
			_, _ = peer.Write([]byte(strings.ToUpper(string(buf[:n]))))
		}
	}()
	for range 1000 {
		answer := make([]byte, 16)
		if wrote, n, err := a.Ask([]byte("hello"), answer); wrote != 5 || err != nil || string(answer[:n]) != "HELLO" {
			t.Fatalf("wrote %d, read %q, %v", wrote, answer[:n], err)
		}
	}
	if _, err := c.Write([]byte("x")); err != nil { // both ways of using the connection go together
		t.Fatal(err)
	}
	answer := make([]byte, 1)
	if _, err := io.ReadFull(c, answer); err != nil || answer[0] != 'X' {
		t.Fatalf("%q, %v", answer, err)
	}
}

// TestAskWithoutAnswer has the other end do everything but answer.
func TestAskWithoutAnswer(t *testing.T) {
	request, answer := []byte("hello"), make([]byte, 16)
	t.Run("silent", func(t *testing.T) {
		c, a, peer := asked(t)
		go giveUp(c, peer, len(request))
		if wrote, n, err := a.Ask(request, answer); wrote != 5 || n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("wrote %d, read %d, %v", wrote, n, err)
		}
		if wrote, n, err := a.Ask(request, answer); wrote != 0 || n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("after the deadline: wrote %d, read %d, %v", wrote, n, err)
		}
	})
	t.Run("end", func(t *testing.T) {
		_, a, peer := asked(t)
		go func() {
			_, _ = io.ReadFull(peer, make([]byte, len(request)))
			_ = peer.CloseWrite()
		}()
		if wrote, n, err := a.Ask(request, answer); wrote != 5 || n != 0 || err != io.EOF { //nolint:errorlint // as a Read has it
			t.Errorf("wrote %d, read %d, %v", wrote, n, err)
		}
	})
	t.Run("earlier end", func(t *testing.T) {
		c, a, peer := asked(t)
		_ = peer.CloseWrite()
		if n, err := c.Read(answer); n != 0 || err != io.EOF { //nolint:errorlint // as a Read has it
			t.Fatal(n, err)
		}
		go giveUp(c, peer, len(request))
		wrote, n, err := a.Ask(request, answer)
		if wrote != 5 || n != 0 || err != io.EOF && !errors.Is(err, os.ErrDeadlineExceeded) { //nolint:errorlint // as a Read has it
			t.Errorf("wrote %d, read %d, %v", wrote, n, err)
		}
	})
	t.Run("reset", func(t *testing.T) {
		_, a, peer := asked(t)
		go func() {
			_, _ = io.ReadFull(peer, make([]byte, len(request)))
			_ = peer.SetLinger(0)
			_ = peer.Close()
		}()
		if wrote, n, err := a.Ask(request, answer); wrote != 5 || n != 0 || err == nil {
			t.Errorf("wrote %d, read %d, %v", wrote, n, err)
		}
	})
	t.Run("closed", func(t *testing.T) {
		c, a, _ := asked(t)
		_ = c.Close()
		if wrote, n, err := a.Ask(request, answer); wrote != 0 || n != 0 || !errors.Is(err, net.ErrClosed) {
			t.Errorf("wrote %d, read %d, %v", wrote, n, err)
		}
	})
	t.Run("closed meanwhile", func(t *testing.T) {
		c, a, peer := asked(t)
		go func() {
			_, _ = io.ReadFull(peer, make([]byte, len(request)))
			_ = c.Close()
		}()
		if wrote, n, err := a.Ask(request, answer); wrote != 5 || n != 0 || !errors.Is(err, net.ErrClosed) {
			t.Errorf("wrote %d, read %d, %v", wrote, n, err)
		}
	})
	t.Run("no room", func(t *testing.T) {
		_, a, _ := asked(t)
		large := make([]byte, 32<<20)
		if wrote, n, err := a.Ask(large, answer); wrote == 0 || wrote == len(large) || n != 0 || err != nil {
			t.Errorf("wrote %d, read %d, %v", wrote, n, err)
		}
	})
}

// giveUp has the read deadline of c pass as soon as peer has n bytes of it.
func giveUp(c net.Conn, peer io.Reader, n int) {
	_, _ = io.ReadFull(peer, make([]byte, n))
	_ = c.SetReadDeadline(time.Unix(1, 0))
}

// TestAskIsForGoroutines: on a fiber it would hold the loop, and only connections of package net have it.
func TestAskIsForGoroutines(t *testing.T) {
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	if fiber.NewAsker(fiber.StreamOf(near)) != nil {
		t.Error("a pipe has an Asker")
	}
	_, a, _ := asked(t)
	engines(t, func(t *testing.T, e *fiber.Engine) {
		c, s := pair(t, e, "tcp")
		defer c.Close()
		defer s.Close()
		if fiber.LoopOf(c) == 0 {
			return
		}
		if fiber.NewAsker(fiber.StreamOf(c)) != nil {
			t.Error("an engine's connection has an Asker")
		}
		on(c, func() {
			if _, _, err := a.Ask([]byte("x"), make([]byte, 1)); !errors.Is(err, errors.ErrUnsupported) {
				t.Error(err)
			}
		})
	})
}
