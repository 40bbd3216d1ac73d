//go:build linux && (amd64 || arm64)

package fiber_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/splice"
)

// A send after a reset fails and takes the socket's error, which reading would have found; the stream must not seem to
// be complete.
func TestFailedSendIsNoEnd(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		for i := range 8 {
			reset, piece := i%2 == 0, make([]byte, 1+i/2%2*20_000)
			plain, c := pairOf(t, e, i >= 4)
			if _, err := plain.Write([]byte("part")); err != nil {
				t.Fatal(err)
			}
			var got []byte
			var err error
			on(c, func() {
				if reset {
					_ = plain.(*net.TCPConn).SetLinger(0)
				}
				_ = plain.Close() // the loop does not see it yet
				for range 3 {
					if _, err = c.Write(piece); err != nil {
						break
					}
				}
				got, err = io.ReadAll(c)
			})
			switch {
			case reset && !errors.Is(err, syscall.ECONNRESET):
				t.Errorf("%q and then %v after a reset, want ECONNRESET", got, err)
			case !reset && (string(got) != "part" || err != nil):
				t.Errorf("%q and then %v after a FIN, want all and the end", got, err)
			}
		}
	})
}

// So does data that has been sent in part, and spliced data.
func TestSendThatFailsHalfWay(t *testing.T) {
	ways := map[string]func(t *testing.T, e *fiber.Engine, to net.Conn) error{
		"write": func(_ *testing.T, _ *fiber.Engine, to net.Conn) error {
			_, err := to.Write(make([]byte, 64<<20))
			return err
		},
		"splice": func(t *testing.T, e *fiber.Engine, to net.Conn) error {
			client, in := plainPair(t, e)
			go func() { _, _ = client.Write(make([]byte, 64<<20)) }()
			_, err := in.(fiber.Stream).CopyTo(to, func(int) {}, nil)
			_ = in.Close()
			return err
		},
	}
	loops(t, func(t *testing.T, e *fiber.Engine) {
		for name, send := range ways {
			plain, c := plainPair(t, e)
			go func() {
				_, _ = plain.Write([]byte("part"))
				_, _ = io.CopyN(io.Discard, plain, 1<<20)
				_ = plain.(*net.TCPConn).SetLinger(0)
				_ = plain.Close()
			}()
			var sendErr, err error
			done := make(chan struct{})
			fiber.Spawn(c, func() {
				defer close(done)
				sendErr = send(t, e, c)
				_, err = io.ReadAll(c)
			})
			if <-done; !errors.Is(sendErr, syscall.ECONNRESET) || !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("%s: sending ended with %v, reading with %v; want ECONNRESET", name, sendErr, err)
			}
		}
	})
}

// So does data sent just before the first splice.
func TestSendThatFailsBeforeASplice(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		client, in := plainPair(t, e)
		plain, c := plainPair(t, e)
		_ = client.SetWriteDeadline(time.Now().Add(20 * time.Millisecond))
		for err := error(nil); err == nil; { // as much as there is room for
			_, err = client.Write(make([]byte, 1<<20))
		}
		if _, err := plain.Write([]byte("part")); err != nil {
			t.Fatal(err)
		}
		var writeErr, err error
		on(in, func() {
			_ = plain.(*net.TCPConn).SetLinger(0)
			_ = plain.Close() // the loop does not see it yet
			_, writeErr = in.(fiber.Stream).CopyTo(c, func(int) {}, nil)
			_, err = io.ReadAll(c)
		})
		if !errors.Is(writeErr, syscall.ECONNRESET) || !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("copying ended with %v, reading with %v; want ECONNRESET", writeErr, err)
		}
	})
}

// A peer that reads slowly gets everything after Close: only one that does not read at all is given up.
func TestCloseWaitsForASlowReader(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		plain, s := plainPair(t, e)
		out := stuff(t, s, stream{seed: 1})
		on(s, func() { _ = s.Close() }) // before anything is read
		first, err := io.ReadAll(io.LimitReader(plain, int64(out.at/2)))
		if err != nil {
			t.Fatal(err)
		}
		fiber.Expire(s)
		rest, err := io.ReadAll(plain)
		if n := len(first) + len(rest); uint64(n) != out.at || err != nil {
			t.Errorf("%d of %d bytes came, and then %v", n, out.at, err)
		}
	})
}

// A panic in the callback that counts spliced bytes costs no pipe.
func TestPanicWhileSplicing(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		for range 3 {
			client, in, out, server := chain(t, e, "tcp")
			go func() { _, _ = client.Write(make([]byte, 64<<20)) }()
			go func() { _, _ = io.Copy(io.Discard, server) }()
			var got any
			on(in, func() {
				defer func() { got = recover() }()
				_, _ = in.(fiber.Stream).CopyTo(out, func(int) {}, func(int) { panic("spliced") })
			})
			if got != "spliced" {
				t.Errorf("CopyTo ended with the panic %v", got)
			}
			_, _ = in.Close(), out.Close()
		}
		if open, idle := splice.Open(); open != idle {
			t.Errorf("%d pipes, of which %d wait", open, idle)
		}
	})
}

// More connections than one call sends for have something to send in one tick, in small pieces and in larger ones, and some of their
// peers do not read.
func TestManySendsInOneTurn(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		const many = 300
		var plain, ours [many]net.Conn
		for i := range many {
			plain[i], ours[i] = plainPair(t, e)
		}
		want := random(t, 20_000)
		on(ours[0], func() {
			for from := 0; from < len(want); {
				n := min(1+from/3, len(want)-from)
				for i, c := range ours {
					if m, err := c.Write(want[from : from+n]); m != n || err != nil {
						t.Errorf("Write %d: %d, %v", i, m, err)
					}
				}
				from += n
			}
			for i, c := range ours {
				if i%2 == 0 {
					_ = c.Close()
				} else if err := c.(*fiber.Conn).CloseWrite(); err != nil {
					t.Error(err)
				}
			}
		})
		for i, c := range plain {
			_ = c.SetReadDeadline(time.Now().Add(time.Minute))
			if got, err := io.ReadAll(c); !bytes.Equal(got, want) || err != nil {
				t.Errorf("connection %d: %d bytes and %v, want %d", i, len(got), err, len(want))
			}
		}
		awaitNoBuffers(t, e)
	})
}

// Data that Write took and the socket had no room for is sent after Close, or after CloseWrite, once there is room.
func TestCloseSendsWhatFoundNoRoom(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		for _, closing := range []func(c net.Conn) error{net.Conn.Close, func(c net.Conn) error { return c.(*fiber.Conn).CloseWrite() }} {
			plain, c := plainPair(t, e)
			var sent []byte
			on(c, func() {
				_ = c.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
				for piece := random(t, 700); ; {
					n, err := c.Write(piece)
					if sent = append(sent, piece[:n]...); err != nil {
						break
					}
				}
				if err := closing(c); err != nil {
					t.Error(err)
				}
			})
			if got, err := io.ReadAll(plain); !bytes.Equal(got, sent) || err != nil {
				t.Errorf("%d bytes and %v, want %d", len(got), err, len(sent))
			}
			_ = c.Close()
		}
		awaitNoBuffers(t, e)
	})
}

// sendBuffer sets how many sent bytes the system keeps.
func sendBuffer(t *testing.T, c net.Conn, size int) {
	t.Helper()
	setBuffer(t, c, unix.SO_SNDBUF, size)
}

// setBuffer sets the size of one of a socket's buffers.
func setBuffer(t *testing.T, c net.Conn, which, size int) {
	t.Helper()
	rc, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := rc.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, which, size) }); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A peer that has answered in full and sent its end stops the data still being sent to it: its answer is complete, as
// with package net.
func TestAnswerBeforeTheReset(t *testing.T) {
	ways := map[string]func(t *testing.T, e *fiber.Engine, to net.Conn) error{
		"write": func(_ *testing.T, _ *fiber.Engine, to net.Conn) error {
			_, err := to.Write(make([]byte, 64<<20))
			return err
		},
		"copy": func(t *testing.T, e *fiber.Engine, to net.Conn) error {
			client, in := plainPair(t, e)
			go func() { _, _ = client.Write(make([]byte, 64<<20)) }()
			defer in.Close()
			if c, ok := in.(fiber.Stream); ok {
				_, err := c.CopyTo(to, func(int) {}, nil)
				return err
			}
			_, err := io.Copy(to, in)
			return err
		},
	}
	engines(t, func(t *testing.T, e *fiber.Engine) {
		for range 5 {
			for name, send := range ways {
				plain, c := plainPair(t, e)
				sendBuffer(t, c, 50_000) // so that the data that finds no room is seldom a whole buffer
				go func() {
					_, _ = plain.Write([]byte("answer"))
					_ = plain.(*net.TCPConn).CloseWrite()
					_, _ = io.CopyN(io.Discard, plain, 1<<20)
					_ = plain.(*net.TCPConn).SetLinger(0)
					_ = plain.Close()
				}()
				on(c, func() {
					if err := send(t, e, c); !errors.Is(err, syscall.EPIPE) {
						t.Errorf("%s: sending ended with %v, want EPIPE", name, err)
					}
					if got, err := io.ReadAll(c); string(got) != "answer" || err != nil {
						t.Errorf("%s: %q and then %v, want all and the end", name, got, err)
					}
				})
				_ = c.Close()
			}
		}
	})
}

// A reset that a send has found is reported to the splicing reader as well.
func TestResetFoundByASendWhileSplicing(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		for range 10 {
			client, in := plainPair(t, e)
			server, out := plainPair(t, e)
			var spliced atomic.Int64
			ended := make(chan [2]error, 1)
			fiber.Spawn(in, func() {
				readErr, writeErr := in.(fiber.Stream).CopyTo(out, func(int) {}, func(n int) { spliced.Add(int64(n)) })
				ended <- [2]error{readErr, writeErr}
			})
			for spliced.Load() == 0 {
				go func() { _, _ = client.Write(make([]byte, 4<<20)) }()
				if _, err := io.ReadFull(server, make([]byte, 4<<20)); err != nil {
					t.Fatal(err)
				}
			}
			gone(in)
			on(in, func() {
				_ = client.(*net.TCPConn).SetLinger(0)
				_ = client.Close() // the loop does not see it yet
				_, _ = in.Write(make([]byte, 20_000))
			})
			if err := <-ended; !errors.Is(err[0], syscall.ECONNRESET) || err[1] != nil {
				t.Errorf("CopyTo ended with %v, want ECONNRESET from reading", err)
			}
		}
	})
}

// A slow reader gets everything after Close, also while its reading makes room for data that found none. A deadline
// that a goroutine sets during Close changes nothing about that.
func TestCloseWaitsForASlowReaderThatMakesRoom(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		plain, s := plainPair(t, e)
		_ = plain.(*net.TCPConn).SetReadBuffer(4 << 10)
		sendBuffer(t, s, 64<<10)
		out := stuff(t, s, stream{seed: 1})
		on(s, func() {
			set := make(chan error)
			go func() { set <- s.SetWriteDeadline(time.Unix(1, 0)) }()
			<-set // the loop learns of it when this fiber has ended
			_ = s.Close()
		})
		in, buf, want := stream{seed: 1}, make([]byte, 64<<10), make([]byte, 64<<10)
		for in.at < out.at {
			n := min(len(buf), int(out.at-in.at))
			got, err := io.ReadFull(plain, buf[:n])
			in.fill(want[:got])
			if err != nil || !bytes.Equal(buf[:got], want[:got]) {
				t.Fatalf("%d of %d bytes came, and then %v", in.at, out.at, err)
			}
			fiber.Expire(s)
		}
		if _, err := plain.Read(buf); err != io.EOF {
			t.Errorf("%v, want EOF", err)
		}
	})
}
