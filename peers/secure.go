package peers

import (
	"context"
	"net"
	"sync"
	"sync/atomic"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/libp2p/go-libp2p/core/sec"
	"github.com/libp2p/go-libp2p/p2p/net/upgrader"
	libp2ptls "github.com/libp2p/go-libp2p/p2p/security/tls"
)

// A TLS record has at most 16 KiB. crypto/tls writes each record to the socket by itself, and each
// write wakes the other side.
const (
	maxTLSRecord = 16 << 10
	recordExtra  = 64 // at least header, nonce and tag of a record
	joinedBuffer = (maxMuxerMessage/maxTLSRecord + 1) * (maxTLSRecord + recordExtra)
)

// tlsTransport is libp2p's TLS, except that all records of a large write are one write to the
// socket.
type tlsTransport struct{ *libp2ptls.Transport }

func newTLS(id protocol.ID, key crypto.PrivKey, muxers []upgrader.StreamMuxer) (*tlsTransport, error) {
	t, err := libp2ptls.New(id, key, muxers)
	return &tlsTransport{t}, err
}

// SecureInbound implements sec.SecureTransport.
func (t *tlsTransport) SecureInbound(ctx context.Context, insecure net.Conn, p peer.ID) (sec.SecureConn, error) {
	below := &joinedWrites{Conn: insecure}
	c, err := t.Transport.SecureInbound(ctx, below, p)
	return joined(c, below, err)
}

// SecureOutbound implements sec.SecureTransport.
func (t *tlsTransport) SecureOutbound(ctx context.Context, insecure net.Conn, p peer.ID) (sec.SecureConn, error) {
	below := &joinedWrites{Conn: insecure}
	c, err := t.Transport.SecureOutbound(ctx, below, p)
	return joined(c, below, err)
}

func joined(c sec.SecureConn, below *joinedWrites, err error) (sec.SecureConn, error) {
	if err != nil {
		return nil, err
	}
	return &tlsConn{SecureConn: c, below: below}, nil
}

// tlsConn is a TLS connection. Only one goroutine at a time may call Write, as libp2p's muxers do.
type tlsConn struct {
	sec.SecureConn
	below   *joinedWrites
	writing atomic.Bool // a large write is under way
}

// Write implements net.Conn.
func (c *tlsConn) Write(p []byte) (int, error) {
	if len(p) <= maxTLSRecord {
		return c.SecureConn.Write(p)
	}
	c.writing.Store(true)
	defer c.writing.Store(false)
	c.below.hold()
	n, err := c.SecureConn.Write(p)
	if failed := c.below.flush(); err == nil && failed != nil {
		return 0, failed
	}
	return n, err
}

// Close implements net.Conn. It interrupts a running Write, as crypto/tls does, instead of waiting
// until close_notify can be written.
func (c *tlsConn) Close() error {
	if c.writing.Load() {
		_ = c.below.Conn.Close()
	}
	return c.SecureConn.Close()
}

// joinedWrites is the connection below TLS.
type joinedWrites struct {
	net.Conn

	mu   sync.Mutex // also held while writing; TLS writes from one goroutine, and alerts from another
	held *[]byte    // collects written data; nil: data is written to the connection
}

var joinedBuffers = sync.Pool{New: func() any { b := make([]byte, 0, joinedBuffer); return &b }}

// hold buffers written data until flush.
func (c *joinedWrites) hold() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held = joinedBuffers.Get().(*[]byte)
}

// flush writes the held data.
func (c *joinedWrites) flush() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.writeHeld()
	joinedBuffers.Put(c.held)
	c.held = nil
	return err
}

// writeHeld writes the held data, and empties the buffer. mu is held.
func (c *joinedWrites) writeHeld() error {
	if len(*c.held) == 0 {
		return nil
	}
	_, err := c.Conn.Write(*c.held)
	*c.held = (*c.held)[:0]
	return err
}

// Write implements net.Conn.
func (c *joinedWrites) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held == nil {
		return c.Conn.Write(p)
	}
	if len(*c.held)+len(p) > cap(*c.held) {
		if err := c.writeHeld(); err != nil {
			return 0, err
		}
	}
	*c.held = append(*c.held, p...)
	return len(p), nil
}
