//go:build linux && (amd64 || arm64)

package fiber_test

import (
	"bytes"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/conntest"
)

// urgent sends a byte of TCP's urgent data, as FTP and telnet do: a Read does not return it, but ends before it.
func urgent(t *testing.T, c net.Conn) {
	t.Helper()
	rc, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var failed error
	if err := rc.Write(func(fd uintptr) bool {
		failed = unix.Send(int(fd), []byte("!"), unix.MSG_OOB)
		return failed != unix.EAGAIN
	}); err != nil || failed != nil {
		t.Error(err, failed)
	}
}

// Data behind urgent data is read as soon as it arrives, as with package net.
func TestReadBehindUrgentData(t *testing.T) {
	engines(t, func(t *testing.T, e *fiber.Engine) {
		for _, used := range []bool{false, true} {
			client, c := plainPair(t, e)
			if used {
				_, _ = client.Write([]byte("x"))
				on(c, func() { _, _ = c.Read(make([]byte, 1)) })
			}
			on(c, func() {
				_, _ = client.Write([]byte("before"))
				urgent(t, client)
				_, _ = client.Write([]byte("behind")) // the loop does not see any of it yet
				_ = c.SetReadDeadline(time.Now().Add(conntest.Patience))
				got := make([]byte, 12)
				if n, err := io.ReadFull(c, got); string(got[:n]) != "beforebehind" || err != nil {
					t.Errorf("used %v: %q, %v", used, got[:n], err)
				}
			})
		}
	})
}

// Urgent data ends a splice; the stream continues, whether more data or the end follows.
func TestCopyToBehindUrgentData(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		for _, end := range []bool{false, true} {
			client, in := plainPair(t, e)
			server, out := plainPair(t, e)
			var spliced atomic.Int64
			fiber.Spawn(in, func() {
				readErr, writeErr := in.(fiber.Stream).CopyTo(out, func(int) {}, func(n int) { spliced.Add(int64(n)) })
				if readErr != io.EOF || writeErr != nil {
					t.Errorf("CopyTo: %v, %v", readErr, writeErr)
				}
				_ = out.Close()
			})
			for spliced.Load() == 0 {
				go func() { _, _ = client.Write(make([]byte, 4<<20)) }()
				if _, err := io.ReadFull(server, make([]byte, 4<<20)); err != nil {
					t.Fatal(err)
				}
			}
			gone(in)
			want := random(t, 40_000)
			on(in, func() { // the loop sees all of it at once
				_, _ = client.Write(want[:20_000])
				urgent(t, client)
				_, _ = client.Write(want[20_000:])
				if end {
					_ = client.(*net.TCPConn).CloseWrite()
				}
			})
			got := make([]byte, len(want))
			_ = server.SetReadDeadline(time.Now().Add(conntest.Patience))
			if n, err := io.ReadFull(server, got); !bytes.Equal(got, want) {
				t.Errorf("end %v: %d bytes of %d came, %v", end, n, len(want), err)
			}
			_ = client.(*net.TCPConn).CloseWrite()
			if _, err := server.Read(got); err != io.EOF {
				t.Errorf("end %v: %v, want EOF", end, err)
			}
		}
	})
}
