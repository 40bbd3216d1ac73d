package tcppool

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"sync/atomic"

	"github.com/headpond/headpond/internal/idleconn"
)

// look says what can be read from c, without waiting for it or taking it.
func look(c net.Conn) idleconn.State {
	switch t := c.(type) {
	case *secureConn:
		return t.look()
	case idleconn.Teller:
		if t.Quiet() {
			return idleconn.Silent
		}
		if e, ok := c.(interface{ Ended() bool }); ok && e.Ended() || peek(c) == idleconn.Dead {
			return idleconn.Dead
		}
		return idleconn.Pending // the socket does not show what the engine has taken
	}
	return peek(c)
}

// secureConn is a TLS connection that can be looked at. Looking is for who holds it, between others' loans; what it
// has to read stays for the next Read.
type secureConn struct {
	*tls.Conn
	raw   *idleconn.Raw
	first [1]byte // read by a look, if there
	there atomic.Bool
}

// secure does the handshake on c, which it closes on an error.
func secure(ctx context.Context, c net.Conn, cfg *tls.Config) (net.Conn, error) {
	s := &secureConn{raw: idleconn.New(c)}
	s.Conn = s.raw.Client(cfg)
	if err := s.Conn.HandshakeContext(ctx); err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("TLS handshake: %w", err)
	}
	return s, nil
}

func (s *secureConn) look() idleconn.State {
	if s.there.Load() {
		return idleconn.Pending
	}
	state, took := s.raw.Look(&s.first)
	s.there.Store(took)
	return state
}

// Read implements net.Conn.
func (s *secureConn) Read(p []byte) (int, error) {
	if len(p) > 0 && s.there.CompareAndSwap(true, false) {
		p[0] = s.first[0]
		return 1, nil
	}
	return s.Conn.Read(p)
}
