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

// StreamHead is how a client of a Stream backend begins: with the number of bytes that it will send and that it wants, both at the
// same time. They may follow each other on one connection.
func StreamHead(size int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(size)) }

func serveStream(ctx context.Context, address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	return serveEach(ctx, l, streamConn)
}

// serveEchoTLS gives back what comes, over TLS.
func serveEchoTLS(ctx context.Context, address string, accepted *atomic.Int64) error {
	cfg, _ := certs.New().Configs()
	l, err := tls.Listen("tcp", address, cfg)
	if err != nil {
		return err
	}
	return serveEach(ctx, l, func(c net.Conn) {
		defer c.Close()
		accepted.Add(1)
		_, _ = io.Copy(c, c) // until the client hangs up, in whatever way
	})
}

// serveEach serves each connection on a goroutine, which ends with its client.
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

// bulk is what one write moves.
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

// Exchange sends size bytes of out and receives as many into in, both at the same time.
func Exchange(c net.Conn, size int64, in, out []byte) error {
	sent := make(chan error, 1)
	go func() { sent <- Produce(c, size, out) }()
	err := discard(c, size, in)
	if err != nil {
		_ = c.Close() // or the other half would wait
	}
	return errors.Join(err, <-sent)
}

// discard reads size bytes into buf and forgets them.
func discard(r io.Reader, size int64, buf []byte) error {
	for size > 0 {
		n, err := r.Read(buf[:min(int64(len(buf)), size)])
		if size -= int64(n); err != nil && size > 0 {
			return err
		}
	}
	return nil
}

// Produce writes size bytes of buf.
func Produce(w io.Writer, size int64, buf []byte) error {
	for size > 0 {
		n, err := w.Write(buf[:min(int64(len(buf)), size)])
		if size -= int64(n); err != nil {
			return err
		}
	}
	return nil
}
