package backend

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync/atomic"

	"github.com/headpond/headpond/internal/certs"
)

// StreamHead is the header that a client of a Stream backend sends: the number of bytes that it will send, and that it
// will receive at the same time. Several exchanges may follow each other on one connection.
func StreamHead(size int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(size)) }

func serveStream(ctx context.Context, address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	return serveEach(ctx, l, streamConn)
}

// serveEchoTLS echoes received bytes over TLS.
func serveEchoTLS(ctx context.Context, address string, accepted *atomic.Int64) error {
	cfg, _ := certs.New().Configs()
	l, err := tls.Listen("tcp", address, cfg)
	if err != nil {
		return err
	}
	return serveEach(ctx, l, func(c net.Conn) {
		defer c.Close()
		accepted.Add(1)
		_, _ = io.Copy(c, c) // until the client closes the connection
	})
}

// serveEach serves each connection on a goroutine, which ends when the client disconnects.
func serveEach(ctx context.Context, l net.Listener, serve func(net.Conn)) error {
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	for {
		c, err := l.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		go serve(c)
	}
}

// bulk is the size of one write, in bytes.
const bulk = 256 << 10

func streamConn(c net.Conn) {
	defer c.Close()
	head := make([]byte, 8)
	in, out := make([]byte, bulk), make([]byte, bulk)
	for {
		if _, err := io.ReadFull(c, head); err != nil {
			return
		}
		size := int64(binary.BigEndian.Uint64(head) & (1<<62 - 1))
		if Exchange(c, size, in, out) != nil {
			return
		}
	}
}

// Exchange sends size bytes of out and receives size bytes into in, at the same time.
func Exchange(c net.Conn, size int64, in, out []byte) error {
	sent := make(chan error, 1)
	go func() { sent <- Produce(c, size, out) }()
	err := discard(c, size, in)
	if err != nil {
		_ = c.Close() // ends the other half, too
	}
	return errors.Join(err, <-sent)
}

// discard reads and drops size bytes, through buf.
func discard(r io.Reader, size int64, buf []byte) error {
	for size > 0 {
		n, err := r.Read(buf[:min(int64(len(buf)), size)])
		if size -= int64(n); err != nil && size > 0 {
			return err
		}
	}
	return nil
}

// Produce writes size bytes, repeating buf.
func Produce(w io.Writer, size int64, buf []byte) error {
	for size > 0 {
		n, err := w.Write(buf[:min(int64(len(buf)), size)])
		if size -= int64(n); err != nil {
			return err
		}
	}
	return nil
}
