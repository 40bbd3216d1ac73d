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

// maxHello bounds what is read from a client before its route is known. The memory of a client that has not said enough is up to
// three times as much, for crypto/tls keeps a copy and both grow by doubling. A ClientHello has 300 bytes to 4 KiB; HAProxy and nginx
// allow 16 KiB, too. Where the Proxy ends TLS, crypto/tls has a bound of 64 KiB of its own.
const maxHello = 16 << 10

// handshakeRecord is the first byte of a connection that begins with a TLS handshake (RFC 8446, section 5.1).
const handshakeRecord = 22

// Alerts of a Proxy that does not end TLS itself: records of TLS 1.2, which clients of all versions read before the
// server has chosen one (RFC 8446, sections 5.1 and 6).
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

// refusal is why a client gets no target.
type refusal struct {
	reason string // the error counter
	err    error
	alert  []byte // sent to the client; nil = its connection is reset
}

func (r *refusal) Error() string { return r.err.Error() }
func (r *refusal) Unwrap() error { return r.err }

// noRoute quotes what the client asked for. The client may send anything, of any length, so that it is cut.
func noRoute(name string, protocols []string) *refusal {
	err := fmt.Errorf("%w (SNI %.100q, ALPN %.100q)", errNoRoute, name, protocols[:min(len(protocols), 8)])
	return &refusal{listener.ReasonUnknownRoute, err, alertUnrecognizedName}
}

// sendTo records the session's target.
func (s *session) sendTo(t *target) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.target = t
}

// renew puts the settings in force, now that the client has said what its target is chosen by: it may have taken its time, and the
// upstreams that a reload has replaced since give no connections any more after a while. A session remains one with
// TLS, or without, and one with TLS remains with its former settings if the new ones look at clients' certificates in another way: its
// handshake has not.
func (s *session) renew() (changed bool) {
	now := s.proxy.cfg.Load()
	if now == s.cfg || (now.TLS == nil) != (s.cfg.TLS == nil) || !now.looksLike(s.cfg) {
		return false
	}
	s.cfg = now
	return true
}

// looksLike reports whether a handshake by the settings before is as good as one by s: no client can have passed it that s refuses.
func (s *settings) looksLike(before *settings) bool {
	c, old := s.TLS, before.TLS
	switch {
	case c == nil:
		return true
	case s.callsBack: // nobody knows what the functions decide, not even if they are the same
		return false
	case c.ClientAuth == tls.NoClientCert:
		return true
	}
	return !before.callsBack && c.ClientAuth == old.ClientAuth && sameAuthorities(c.ClientCAs, old.ClientCAs)
}

func sameAuthorities(a, b *x509.CertPool) bool { return a == b || a != nil && b != nil && a.Equal(b) }

// route finds the session's target by the ClientHello. It returns what it has read, the beginning of the stream. Its
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

// readHello reads the ClientHello within ConnectTimeout, and returns all that was read. Its errors are refusals.
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

// inTime runs op, which talks with the client, within ConnectTimeout. It returns a refusal if that has passed, or ctx has
// ended, and otherwise op's error.
func (s *session) inTime(ctx context.Context, late error, op func() error) error {
	patience := s.cfg.ConnectTimeout // op may renew the settings
	stop := context.AfterFunc(ctx, func() { _ = s.client.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	_ = s.client.SetDeadline(time.Now().Add(patience)) // a broken connection is op's to find
	if ctx.Err() != nil {                              // the deadline above may have replaced that of AfterFunc
		return &refusal{listener.ReasonDrained, errDrained, nil}
	}
	err := op()
	stop()
	var timeout net.Error
	switch {
	case ctx.Err() != nil:
		err = &refusal{listener.ReasonDrained, errDrained, nil}
	case errors.As(err, &timeout) && timeout.Timeout():
		err = &refusal{listener.ReasonTimeout, fmt.Errorf("%w (%v)", late, patience), nil}
	}
	_ = s.client.SetDeadline(time.Time{})
	return err
}

// helloReader is the connection as crypto/tls sees it: it keeps what is read, and sends nothing.
type helloReader struct {
	net.Conn
	read []byte
	err  error // of the connection; nil when what was read is enough
}

// hello has crypto/tls read the ClientHello, and no more. crypto/tls only parses here, so that it may run on a fiber.
// The error is errNoHello when the client speaks something else.
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

// shakeHands does the TLS handshake with the client, and finds the session's target.
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
	case errors.As(err, &notTLS) && notTLS.Conn != nil: // nobody has sent an alert
		return &refusal{listener.ReasonTLS, fmt.Errorf("TLS handshake with the client: %w", err), nil}
	case left(err):
		return clientGone(err)
	case err != nil: // crypto/tls has sent an alert, or the client has
		return fmt.Errorf("TLS handshake with the client: %w", err)
	}
	return s.confirm(c.ConnectionState())
}

// left reports whether a handshake has failed because the client ended, or broke, its connection.
func left(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || ok && (op.Op == "read" || op.Op == "write")
}

// confirm finds the target again after a TLS handshake, if the settings have changed meanwhile.
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
		refused.alert = nil // it is too late for one
		return refused
	}
	s.sendTo(t)
	return nil
}

// handshake is what configForClient finds in the context of a handshake, by handshakeKey.
type handshake struct {
	session *session
	refused error // why there is no target; nil = there is one
}

type handshakeKey struct{}

// noCertificate makes crypto/tls answer with the alert unrecognized_name; an error of GetConfigForClient would become
// internal_error. A client that resumes a session would need no certificate.
var noCertificate = &tls.Config{MinVersion: tls.VersionTLS12, SessionTicketsDisabled: true}

// configForClient returns the GetConfigForClient of a Proxy that ends TLS: it sets the session's target. own is that
// of Config.TLS, or nil. All sessions share the tls.Config it is in, which has the keys of session tickets.
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
