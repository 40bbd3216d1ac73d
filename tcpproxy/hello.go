package tcpproxy

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/listener"
)

// maxHello bounds what is read from a client before its route is known. A client with an incomplete ClientHello may
// hold three times as much memory, because crypto/tls keeps a copy and both grow by doubling. A ClientHello has 300
// bytes to 4 KiB; HAProxy and nginx also allow 16 KiB. If the Proxy ends TLS, the bound is that of crypto/tls, 64 KiB.
const maxHello = 16 << 10

// handshakeRecord is the first byte of a connection that begins with a TLS handshake (RFC 8446, section 5.1).
const handshakeRecord = 22

// Alerts of a Proxy that does not end TLS itself. They are records of TLS 1.2, which clients of every version accept
// before the server has chosen a version (RFC 8446, sections 5.1 and 6).
var (
	alertDecodeError      = []byte{21, 3, 3, 0, 2, 2, 50}
	alertUnrecognizedName = []byte{21, 3, 3, 0, 2, 2, 112}
)

var (
	errHelloRead  = errors.New("the ClientHello has been read")
	errHelloLarge = fmt.Errorf("the ClientHello is larger than %d KiB", maxHello>>10)
	errHelloLate  = errors.New("no whole ClientHello in time")
	errTLSLate    = errors.New("no whole TLS handshake in time")
	errNoHello    = errors.New("the client does not begin with a TLS ClientHello, and there is no upstream for such clients")
	errNoRoute    = errors.New("no route for the client's ClientHello")
)

// refusal says why a client gets no target.
type refusal struct {
	reason string // error counter
	err    error
	alert  []byte // sent to the client; nil = its connection is reset
}

func (r *refusal) Error() string { return r.err.Error() }
func (r *refusal) Unwrap() error { return r.err }

// noRoute returns the refusal for a client without a matching route. It quotes at most the beginning of the name and
// protocols, which may have any content and length.
func noRoute(name string, protocols []string) *refusal {
	err := fmt.Errorf("%w (SNI %.100q, ALPN %.100q)", errNoRoute, name, protocols[:min(len(protocols), 8)])
	return &refusal{listener.ReasonUnknownRoute, err, alertUnrecognizedName}
}

// sendTo sets the session's target.
func (s *session) sendTo(t *target) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.target = t
}

// renew replaces the session's settings if an Update has changed them during the ClientHello or the TLS handshake.
// Otherwise the target could be an upstream that a reload has replaced, which soon stops giving connections. The session
// keeps its settings if the new ones differ in whether the Proxy ends TLS, or check client certificates differently.
func (s *session) renew() (changed bool) {
	now := s.proxy.cfg.Load()
	if now == s.cfg || (now.TLS == nil) != (s.cfg.TLS == nil) || !now.asStrictAs(s.cfg) {
		return false
	}
	s.cfg = now
	return true
}

// asStrictAs reports whether a handshake with the settings before is as strict as one with s: every client that has passed
// it would pass s, too.
func (s *settings) asStrictAs(before *settings) bool {
	c, old := s.TLS, before.TLS
	switch {
	case c == nil:
		return true
	case s.callsBack: // the callbacks may decide differently, even if they are the same functions
		return false
	case c.ClientAuth == tls.NoClientCert:
		return true
	}
	return !before.callsBack && c.ClientAuth == old.ClientAuth && sameAuthorities(c.ClientCAs, old.ClientCAs)
}

func sameAuthorities(a, b *x509.CertPool) bool { return a == b || a != nil && b != nil && a.Equal(b) }

// route finds the session's target by the ClientHello. It returns the bytes it has read, which begin the stream. Its
// errors are refusals.
func (s *session) route(ctx context.Context) (ahead []byte, err error) {
	ahead, hello, err := s.readHello(ctx)
	s.renew()
	t := s.cfg.fallback
	switch {
	case err == nil:
		if t = s.cfg.choose(hello.ServerName, hello.SupportedProtos); t == nil {
			return nil, noRoute(hello.ServerName, hello.SupportedProtos)
		}
	case t == nil || !errors.Is(err, errNoHello):
		return nil, err
	}
	s.sendTo(t)
	s.counted = len(ahead)
	return ahead, nil
}

// readHello reads the ClientHello within ConnectTimeout, and returns it with all bytes read. Its errors are refusals.
func (s *session) readHello(ctx context.Context) (read []byte, hello *tls.ClientHelloInfo, err error) {
	r := &helloReader{Conn: s.client}
	err = s.inTime(ctx, errHelloLate, func() (err error) {
		hello, err = r.hello()
		return cmp.Or(r.err, err)
	})
	var known *refusal
	switch {
	case err == nil || errors.As(err, &known):
	case r.err != nil:
		err = clientGone(r.err)
	case errors.Is(err, errNoHello):
		err = &refusal{listener.ReasonTLS, err, nil}
	default:
		err = &refusal{listener.ReasonTLS, fmt.Errorf("ClientHello: %w", err), alertDecodeError}
	}
	return r.read, hello, err
}

func clientGone(err error) error {
	return &refusal{listener.ReasonClientGone, fmt.Errorf("read from client: %w", err), nil}
}

// inTime runs op, which communicates with the client, within ConnectTimeout. It returns a refusal if that time has
// passed or ctx has ended, and otherwise op's error.
func (s *session) inTime(ctx context.Context, late error, op func() error) error {
	limit := s.cfg.ConnectTimeout // read first, because op may renew the settings
	stop := context.AfterFunc(ctx, func() { _ = s.client.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	_ = s.client.SetDeadline(time.Now().Add(limit)) // on a broken connection op fails
	if ctx.Err() != nil {                           // the line above may have replaced the deadline that AfterFunc sets
		return &refusal{listener.ReasonDrained, errDrained, nil}
	}
	err := op()
	stop()
	var timeout net.Error
	switch {
	case ctx.Err() != nil:
		err = &refusal{listener.ReasonDrained, errDrained, nil}
	case errors.As(err, &timeout) && timeout.Timeout():
		err = &refusal{listener.ReasonTimeout, fmt.Errorf("%w (%v)", late, limit), nil}
	}
	_ = s.client.SetDeadline(time.Time{})
	return err
}

// helloReader is the connection given to crypto/tls: it records what is read, and sends nothing.
type helloReader struct {
	net.Conn
	read []byte
	err  error // error of the connection; nil = the bytes read were enough
}

// hello makes crypto/tls read the ClientHello and nothing else. Parsing it is quick enough for a fiber. The error is
// errNoHello if the client does not speak TLS.
func (r *helloReader) hello() (hello *tls.ClientHelloInfo, err error) {
	err = tls.Server(r, &tls.Config{ //nolint:gosec // nothing is negotiated
		GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
			hello = h
			return nil, errHelloRead
		},
	}).HandshakeContext(context.Background())
	if hello != nil {
		return hello, nil
	}
	return nil, err
}

func (r *helloReader) Read(p []byte) (int, error) {
	if len(r.read) >= maxHello {
		return 0, errHelloLarge
	}
	n, err := r.Conn.Read(p[:min(len(p), maxHello-len(r.read))])
	r.read = append(r.read, p[:n]...)
	switch {
	case n > 0 && r.read[0] != handshakeRecord:
		return 0, errNoHello
	case n == 0:
		r.err = err
	}
	return n, err
}

func (r *helloReader) Write(p []byte) (int, error) { return len(p), nil }

// shakeHands performs the TLS handshake with the client, and finds the session's target.
func (s *session) shakeHands(ctx context.Context, c *fiber.TLSConn) error {
	choice := handshake{session: s}
	values := context.WithValue(context.WithoutCancel(ctx), handshakeKey{}, &choice)
	err := s.inTime(ctx, errTLSLate, func() error { return c.HandshakeContext(values) })
	var known *refusal
	var notTLS tls.RecordHeaderError
	switch {
	case choice.refused != nil:
		return choice.refused
	case errors.As(err, &known):
		return err
	case errors.As(err, &notTLS) && notTLS.Conn != nil: // no alert was sent
		return &refusal{listener.ReasonTLS, fmt.Errorf("TLS handshake with the client: %w", err), nil}
	case clientLeft(err):
		return clientGone(err)
	case err != nil: // crypto/tls or the client has sent an alert
		return fmt.Errorf("TLS handshake with the client: %w", err)
	}
	return s.confirm(c.ConnectionState())
}

// clientLeft reports whether a handshake failed because the client closed or broke its connection.
func clientLeft(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || ok && (op.Op == "read" || op.Op == "write")
}

// confirm finds the target again if the settings changed during the TLS handshake.
func (s *session) confirm(state tls.ConnectionState) error {
	if !s.renew() {
		return nil
	}
	var protocols []string
	if state.NegotiatedProtocol != "" {
		protocols = []string{state.NegotiatedProtocol}
	}
	t := s.cfg.choose(state.ServerName, protocols)
	if t == nil {
		refused := noRoute(state.ServerName, protocols)
		refused.alert = nil // after the handshake no alert can be sent
		return refused
	}
	s.sendTo(t)
	return nil
}

// handshake is the value that configForClient finds in a handshake's context, by handshakeKey.
type handshake struct {
	session *session
	refused error // why there is no target; nil = there is one
}

type handshakeKey struct{}

// noCertificate makes crypto/tls answer with the alert unrecognized_name; an error of GetConfigForClient would cause
// internal_error. It disables session tickets, because a client that resumes a session needs no certificate.
var noCertificate = &tls.Config{MinVersion: tls.VersionTLS12, SessionTicketsDisabled: true}

// configForClient returns the GetConfigForClient of a Proxy that ends TLS; it sets the session's target. own is the
// GetConfigForClient of Config.TLS, or nil. All sessions share the tls.Config that contains it, and so its session
// ticket keys.
func configForClient(own func(*tls.ClientHelloInfo) (*tls.Config, error)) func(*tls.ClientHelloInfo) (*tls.Config, error) {
	return func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		h := hello.Context().Value(handshakeKey{}).(*handshake) //nolint:forcetypeassert // clientSide sets it
		s := h.session
		s.renew()
		t := s.cfg.choose(hello.ServerName, hello.SupportedProtos)
		if t == nil {
			h.refused = noRoute(hello.ServerName, hello.SupportedProtos)
			return noCertificate, nil
		}
		s.sendTo(t)
		if own == nil {
			return t.client, nil
		}
		c, err := own(hello)
		switch {
		case c == nil && err == nil:
			c = t.client
		case c != nil && len(t.alpn) > 0:
			c = c.Clone()
			c.NextProtos = t.alpn
		}
		return c, err
	}
}
