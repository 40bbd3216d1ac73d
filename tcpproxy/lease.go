package tcpproxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	proxyproto "github.com/pires/go-proxyproto"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/tlsclient"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/upstream"
)

// maxAttempts bounds the endpoints that accept a connection and then break it before the client's first byte. Trying
// another loses nothing of the stream.
const maxAttempts = 3

// lease gets an upstream connection and prepares it for the client's first byte. The caller ends the lease. The error is
// errClientGone when the client has gone, errDrained when ctx has ended, errKilled after an operator's kill.
func (s *session) lease(ctx context.Context, client fiber.Stream) (upstream.Lease[net.Conn], fiber.Stream, error) {
	waiting := pool.Bound(ctx, fiber.Now().Add(s.target.connect))
	defer waiting.End()
	s.waits(client, waiting)
	s.watch.watch(checkInterval, (*waitingClient)(s))
	l, server, err := s.attempt(waiting)
	if err == nil {
		return l, server, nil
	}
	switch {
	case ctx.Err() != nil:
		err = errDrained
	case s.isCut() != nil:
		err = s.isCut()
	case errors.Is(waiting.Err(), context.Canceled):
		err = errClientGone
	}
	return l, server, err
}

// attempt tries endpoints until one accepts. ctx ends when the client has left.
func (s *session) attempt(ctx context.Context) (l upstream.Lease[net.Conn], server fiber.Stream, err error) {
	avoid := slices.Clip(s.tried)
	for range maxAttempts {
		if l, err = s.acquireLive(ctx, avoid); err != nil {
			return l, nil, err
		}
		if server, err = s.introduce(ctx, l); err == nil {
			return l, server, nil
		}
		if errors.Is(ctx.Err(), context.Canceled) { // not the endpoint's fault
			l.Discard()
			return l, nil, err
		}
		if errors.As(err, new(unblamed)) {
			l.Discard()
		} else {
			l.Fail(err)
		}
		if ctx.Err() != nil || errors.Is(err, errNoAddress) {
			break
		}
		avoid = append(avoid, l.Endpoint())
	}
	return l, nil, &upstream.Error{
		Upstream: s.upstreamName(),
		Causes:   []upstream.EndpointError{{Endpoint: l.Endpoint(), Err: err}},
	}
}

// acquireLive leases a connection that the endpoint has not closed while it was pooled. Bytes that have arrived on it (the
// banner of a server that speaks first) stay unread, for the client.
func (s *session) acquireLive(ctx context.Context, avoid []string) (upstream.Lease[net.Conn], error) {
	began, key := fiber.Now(), ""
	if s.target.upstream.UsesKeys() {
		if a, ok := s.client.RemoteAddr().(*net.TCPAddr); ok {
			key = a.AddrPort().Addr().Unmap().String()
		}
	}
	for {
		l, err := s.target.upstream.AcquireNarrow(ctx, key, upstream.Narrow{Avoid: avoid})
		if err != nil {
			return l, err
		}
		w, ok := l.Value().(*warmConn)
		if !ok || !w.opened.Before(began) || w.State().Fit() {
			return l, nil
		}
		l.Discard()
	}
}

// checkWarm is the background check.
func checkWarm(_ context.Context, c net.Conn) error {
	if w, ok := c.(*warmConn); ok && !w.State().Fit() {
		return net.ErrClosed
	}
	return nil
}

// introduce sends what precedes the client's bytes: the PROXY header, the TLS handshake. It returns the connection to copy
// on.
func (s *session) introduce(ctx context.Context, l upstream.Lease[net.Conn]) (conn fiber.Stream, err error) {
	conn = fiber.StreamOf(l.Value())
	if w, ok := conn.(*warmConn); ok {
		conn = w.Stream
	}
	if p, ok := conn.(*place); ok {
		if conn, err = s.connectAs(ctx, p, l); err != nil {
			return nil, err
		}
	}
	conn.Adopt() // to the client's loop
	if s.cfg.SendProxy != 0 {
		if err := s.sendHeader(ctx, conn); err != nil {
			return nil, fmt.Errorf("PROXY header to %s: %w", l.Endpoint(), err)
		}
	}
	if s.target.tls == nil {
		return conn, nil
	}
	tc := fiber.TLSClient(conn, tlsclient.For(s.target.tls, l.Endpoint()))
	if err := tc.HandshakeContext(ctx); err != nil {
		return nil, fmt.Errorf("TLS handshake with %s: %w", l.Endpoint(), err)
	}
	return tc, nil
}

// sendHeader writes the PROXY header (see listener for the protocol's source).
// A client whose address is not TCP is announced as LOCAL or UNKNOWN.
func (s *session) sendHeader(ctx context.Context, conn net.Conn) error {
	h := proxyproto.HeaderProxyFromAddrs(byte(s.cfg.SendProxy), s.client.RemoteAddr(), s.client.LocalAddr())
	b, err := h.Format()
	if err != nil {
		return err
	}
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetWriteDeadline(deadline)
		defer conn.SetWriteDeadline(time.Time{})
	}
	_, err = conn.Write(b)
	return err
}
