package fiber_test

import (
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/conntest"
)

// TestCopyToTellsOfPieces: sessions use moved to see that a slow receiver takes something, so all that its system has
// accepted is reported while the rest of a splice waits for it.
func TestCopyToTellsOfPieces(t *testing.T) {
	const arrives = 1 << 20
	client, in, out, server := plainChain(t)
	if err := in.(*net.TCPConn).SetReadBuffer(4 * arrives); err != nil {
		t.Fatal(err)
	}
	_ = out.(*net.TCPConn).SetWriteBuffer(64 << 10)
	_ = server.(*net.TCPConn).SetReadBuffer(64 << 10)
	go func() {
		_, _ = client.Write(make([]byte, arrives))
		_ = client.(*net.TCPConn).CloseWrite()
	}()
	wantUnread(t, in, arrives)
	var total, spliced atomic.Int64
	ended := make(chan [2]error, 1)
	go func() {
		readErr, writeErr := fiber.StreamOf(in).CopyTo(fiber.StreamOf(out), func(n int) { total.Add(int64(n)) }, func(n int) { spliced.Add(int64(n)) })
		ended <- [2]error{readErr, writeErr}
	}()
	const piece = 64 << 10
	for read := int64(piece); read <= arrives; read += piece {
		if _, err := io.ReadFull(server, make([]byte, piece)); err != nil {
			t.Fatal(err)
		}
		conntest.Eventually(t, "moved is called for what has been read", func() bool { return total.Load() >= read })
	}
	errs := <-ended
	if errs[0] != io.EOF || errs[1] != nil || total.Load() != arrives || spliced.Load() < arrives/2 {
		t.Errorf("%v, %v after %d bytes, %d of them spliced", errs[0], errs[1], total.Load(), spliced.Load())
	}
}

// TestCopyToSaysWhichEndBroke: the source has ended normally, and its last data is on its way to a destination
// that breaks.
func TestCopyToSaysWhichEndBroke(t *testing.T) {
	for range 20 { // the kernel may take more for the destination than its buffers are to hold, all there is even
		readErr, writeErr := copyToBroken(t)
		if readErr == io.EOF && writeErr == nil {
			continue
		}
		if readErr != nil || !errors.Is(writeErr, unix.ECONNRESET) && !errors.Is(writeErr, unix.EPIPE) {
			t.Errorf("reading failed with %v, writing with %v; want a reset from writing", readErr, writeErr)
		}
		return
	}
	t.Error("the destination took all, each time")
}

// copyToBroken returns the results of CopyTo when its destination breaks behind the end of the
// source.
func copyToBroken(t *testing.T) (readErr, writeErr error) {
	client, in, out, server := plainChain(t)
	_ = out.(*net.TCPConn).SetWriteBuffer(4 << 10)
	_ = server.(*net.TCPConn).SetReadBuffer(4 << 10)
	const copied, rest = 33 << 10, 60 << 10
	if err := in.(*net.TCPConn).SetReadBuffer(4 * (copied + rest)); err != nil {
		t.Fatal(err)
	}
	_, _ = client.Write(make([]byte, copied+rest))
	_ = client.(*net.TCPConn).CloseWrite()
	wantUnread(t, in, copied+rest)
	ended := make(chan [2]error, 1)
	go func() {
		readErr, writeErr := fiber.StreamOf(in).CopyTo(fiber.StreamOf(out), func(int) {}, nil)
		ended <- [2]error{readErr, writeErr}
	}()
	_, _ = io.ReadFull(server, make([]byte, copied))
	wantUnread(t, in, 0)
	_ = server.(*net.TCPConn).SetLinger(0)
	_ = server.Close()
	errs := <-ended
	return errs[0], errs[1]
}

// plainChain is chain of connections of package net.
func plainChain(t *testing.T) (client, in, out, server net.Conn) {
	t.Helper()
	client, in = conntest.Pair(t, "tcp", "127.0.0.1:0")
	out, server = conntest.Pair(t, "tcp", "127.0.0.1:0")
	t.Cleanup(func() {
		for _, c := range []net.Conn{client, in, out, server} {
			_ = c.Close()
		}
	})
	return client, in, out, server
}

// wantUnread waits until there are n bytes to be read of c.
func wantUnread(t *testing.T, c net.Conn, n int) {
	t.Helper()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	conntest.Eventually(t, "bytes arrive, or are taken", func() bool {
		unread := 0
		_ = raw.Control(func(fd uintptr) { unread, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
		return unread == n
	})
}

// TestCopyToWhoHasBytesAhead: received data of the destination belongs to the fiber that reads it meanwhile.
func TestCopyToWhoHasBytesAhead(t *testing.T) {
	engines(t, func(t *testing.T, e *fiber.Engine) {
		client, in, out, server := chain(t, e, "tcp")
		dst := fiber.Ahead(fiber.StreamOf(out), make([]byte, 1000))
		const size = 8 << 20
		spliced := 0
		copied := make(chan struct{})
		on(in, func() {
			fiber.StreamOf(in).Go(func() {
				defer close(copied)
				_, _ = fiber.StreamOf(in).CopyTo(dst, func(int) {}, func(n int) { spliced += n })
				_ = dst.CloseWrite()
			})
		})
		on(out, func() { _, _ = io.ReadFull(dst, make([]byte, 999)) })
		go func() {
			_, _ = client.Write(make([]byte, size))
			_ = client.(interface{ CloseWrite() error }).CloseWrite()
		}()
		n, err := io.Copy(io.Discard, server)
		<-copied
		if err != nil || n != size || spliced == 0 {
			t.Errorf("%d of %d bytes arrived, %d of them spliced, %v", n, size, spliced, err)
		}
	})
}
