package backend

import (
	"context"
	"encoding/binary"
	"io"
	"net"
)

// Stream moves bulk: a client says in 9 bytes whether it sends ('u') or wants ('d') and how many bytes (big-endian). What it
// sends is answered by one byte when all has arrived.
const Stream Kind = "stream"

// StreamHead is the 9 bytes.
func StreamHead(up bool, size uint64) []byte {
	direction := byte('d')
	if up {
		direction = 'u'
	}
	return binary.BigEndian.AppendUint64([]byte{direction}, size)
}

func serveStream(ctx context.Context, address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	for {
		c, err := l.Accept()
		if err != nil {
			return ctx.Err()
		}
		go streamConn(c.(*net.TCPConn)) // ends with its client
	}
}

// bulk is what one write moves.
const bulk = 256 << 10

func streamConn(c *net.TCPConn) {
	defer c.Close()
	head := make([]byte, 9)
	buf := make([]byte, bulk)
	for {
		if _, err := io.ReadFull(c, head); err != nil {
			return
		}
		size := int64(binary.BigEndian.Uint64(head[1:]))
		var err error
		if head[0] == 'u' {
			if err = Discard(c, size, buf); err == nil {
				_, err = c.Write(buf[:1])
			}
		} else {
			err = Produce(c, size, buf)
		}
		if err != nil {
			return
		}
	}
}

// Discard reads size bytes into buf and forgets them.
func Discard(r io.Reader, size int64, buf []byte) error {
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
