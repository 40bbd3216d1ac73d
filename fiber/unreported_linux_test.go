//go:build linux && (amd64 || arm64)

package fiber_test

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/conntest"
)

// uringOnly runs a test on io_uring, with one loop.
func uringOnly(t *testing.T, run func(t *testing.T, e *fiber.Engine)) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		if e.Kind() == fiber.Uring {
			run(t, e)
		}
	})
}

// An exchange of small messages completes one operation in the loop: the receive. The send does not end a wait, and leaves
// nothing behind.
func TestRepliesAreNotReported(t *testing.T) {
	uringOnly(t, func(t *testing.T, e *fiber.Engine) {
		const exchanges = 1000
		client, server := plainPair(t, e)
		fiber.Spawn(server, func() { _, _ = io.Copy(struct{ io.Writer }{server}, struct{ io.Reader }{server}) })
		message := make([]byte, 100)
		before := e.Completions()
		for range exchanges {
			if _, err := client.Write(message); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(client, message); err != nil {
				t.Fatal(err)
			}
		}
		conntest.Eventually(t, "a waiting loop that holds nothing", func() bool { return fiber.BuffersHeld() == 0 })
		if n := e.Completions() - before; n > exchanges*3/2 {
			t.Errorf("%d completions for %d exchanges", n, exchanges)
		}
		if _, sending := e.Buffers(); sending != 0 {
			t.Errorf("%d send buffers are in use", sending)
		}
	})
}

// A send of which the socket takes a part continues when there is room, though nothing waits for it.
func TestUnreportedSendContinues(t *testing.T) {
	uringOnly(t, func(t *testing.T, e *fiber.Engine) {
		data := make([]byte, 60<<10)
		_, _ = rand.Read(data)
		client, server := plainPair(t, e)
		narrow(t, server)
		wrote := make(chan error, 1)
		fiber.Spawn(server, func() {
			_, err := server.Write(data)
			wrote <- err
		})
		if err := <-wrote; err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(data))
		if _, err := io.ReadFull(client, got); err != nil || !bytes.Equal(got, data) {
			t.Errorf("other data came, %v", err)
		}
		fiber.Spawn(server, func() {
			_, err := server.Write(data[:1])
			wrote <- err
		})
		if _, err := io.ReadFull(client, got[:1]); err != nil || got[0] != data[0] || <-wrote != nil {
			t.Errorf("another byte than the next came, %v", err)
		}
	})
}

// The error of a send that nothing waits for is returned by a later Write.
func TestUnreportedSendFails(t *testing.T) {
	uringOnly(t, func(t *testing.T, e *fiber.Engine) {
		client, server := plainPair(t, e)
		_ = client.(*net.TCPConn).SetLinger(0)
		_ = client.Close()
		failed := make(chan error)
		fiber.Spawn(server, func() {
			var err error
			for err == nil {
				_, err = server.Write([]byte("to nobody"))
				fiber.Sleep(time.Millisecond) // the next tick
			}
			failed <- err
		})
		if err := <-failed; err == nil {
			t.Error("no error")
		}
	})
}

// When the kernel has lost reports, connections whose sends may have failed are reset, and others are not.
func TestLostReports(t *testing.T) {
	uringOnly(t, func(t *testing.T, e *fiber.Engine) {
		client, server := plainPair(t, e)
		result := make(chan error)
		fiber.Spawn(server, func() {
			server.(*fiber.Conn).LoseReport()
			fiber.Sleep(time.Millisecond) // nothing was sent: it concerns nobody
			_, err := server.Write([]byte("whole"))
			fiber.Sleep(time.Millisecond)
			if _, err2 := server.Write([]byte("perhaps")); err == nil {
				err = err2
			}
			server.(*fiber.Conn).LoseReport()
			result <- err
		})
		if err := <-result; err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len("wholeperhaps"))
		if _, err := io.ReadFull(client, got); err != nil || string(got) != "wholeperhaps" {
			t.Errorf("%q came, %v", got, err)
		}
		fiber.Spawn(server, func() {
			_, err := server.Write([]byte("more"))
			_ = server.Close()
			result <- err
		})
		if err := <-result; err == nil {
			t.Error("a connection can be written to that may have lost data")
		}
		if _, err := client.Read(got); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the client reads %v", err)
		}
	})
}

// Where a report was lost, a fiber that only reads is woken, and CloseWrite does not end the stream as if it were whole.
func TestLostReportsEndTheConnection(t *testing.T) {
	uringOnly(t, func(t *testing.T, e *fiber.Engine) {
		client, server := plainPair(t, e)
		reading, ending := make(chan error, 1), make(chan error, 1)
		fiber.Spawn(server, func() {
			_, _ = server.Write([]byte("part"))
			server.(*fiber.Conn).LoseReport()
			_, err := server.Read(make([]byte, 1))
			reading <- err
			ending <- server.(*fiber.Conn).CloseWrite()
			_ = server.Close()
		})
		if got, err := io.ReadAll(client); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the client reads %q, %v", got, err)
		}
		if err := <-reading; !errors.Is(err, syscall.ENOMEM) {
			t.Errorf("the reader gets %v", err)
		}
		if err := <-ending; !errors.Is(err, syscall.ENOMEM) {
			t.Errorf("CloseWrite returns %v", err)
		}
	})
}

// A writer that waits for room, the end of a stream, and Close get the report that they need.
func TestReportedSends(t *testing.T) {
	uringOnly(t, func(t *testing.T, e *fiber.Engine) {
		data := make([]byte, 1<<20)
		_, _ = rand.Read(data)
		client, server := plainPair(t, e)
		narrow(t, server)
		fiber.Spawn(server, func() {
			_, _ = server.Write(data)
			_ = server.Close()
		})
		if got, err := io.ReadAll(client); err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d bytes came, %v", len(got), err)
		}
		client, server = plainPair(t, e)
		fiber.Spawn(server, func() {
			_, _ = server.Write(data[:100])
			_ = server.(*fiber.Conn).CloseWrite()
		})
		if got, err := io.ReadAll(client); err != nil || !bytes.Equal(got, data[:100]) {
			t.Errorf("%d bytes came, %v", len(got), err)
		}
	})
}

// narrow makes the socket of a connection take as little as possible at once.
func narrow(t *testing.T, c net.Conn) {
	t.Helper()
	raw, err := c.(syscall.Conn).SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { _ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_SNDBUF, 1) })
	}
	if err != nil {
		t.Fatal(err)
	}
}
