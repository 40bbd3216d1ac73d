package httpproxy

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha1" //nolint:gosec // RFC 6455 names it; nothing is secret
	"encoding/base64"
	"fmt"
	"net/http"
	"time"

	"github.com/headpond/headpond/httpwire"
	"github.com/headpond/headpond/pool/httppool"
)

// To the session an upgrade is a request with the field Upgrade, whatever the versions of HTTP: h2Head.request makes one of
// an extended CONNECT (RFC 8441, RFC 9220), and appendRequest the reverse. The positive answer is 101 in HTTP/1.1, and 200
// otherwise. WebSocket's Sec-WebSocket-Key and Sec-WebSocket-Accept exist in HTTP/1.1 only. If just one side has them, the
// proxy makes or checks them for that side.

const (
	webSocket    = "websocket"
	keyName      = "sec-websocket-key"
	acceptName   = "sec-websocket-accept"
	acceptField  = "Sec-WebSocket-Accept"
	webSocketKey = 24 // bytes of a Sec-WebSocket-Key
)

// upgrading returns the state of the upgrade that the request asks for; nil = none.
func (s *session) upgrading() *tunnel {
	asks := s.req.Switches()
	if asks == nil {
		return nil
	}
	return &tunnel{s: s, to: string(asks), socket: httpwire.EqualFold(asks, webSocket)}
}

// canConnect reports whether the upgrade has the form of an extended CONNECT: those without a list of protocols, and with
// no other method than the one into which they are turned back.
func (t *tunnel) canConnect() bool {
	return httpwire.ValidToken(t.to) && string(t.s.req.Method) == http.MethodGet
}

// mustUpgrade reports whether the client has no use for another answer than the upgrade's. Others (RFC 9110, section 7.8)
// only offer it.
func (t *tunnel) mustUpgrade() bool { return t.socket || t.s.stream != nil }

// errNoConnect is httppool.ErrNoUpgrade, with what to do.
var errNoConnect = fmt.Errorf("%w (RFC 8441): set the upstream's protocol to h1, or, if its backends also speak HTTP/1.1, to auto", httppool.ErrNoUpgrade)

// prepareUpgrade makes the lease fit for the upgrade: if the server does not take it over HTTP/2, and may choose the
// version, it gets a connection of HTTP/1.1. An error ends the lease. Nothing has been sent on it.
func (s *session) prepareUpgrade() error {
	x := &s.ex
	p := s.place()
	switch {
	case p == nil || x.tunnel.canConnect() && p.takesConnect():
		return nil
	case !x.tunnel.mustUpgrade():
		x.tunnel = nil
		return nil
	}
	err := errNoConnect
	if p.c.g.o.protocol == ProtocolAuto {
		if err = s.reopenForUpgrade(); err == nil {
			return nil
		}
	}
	if s.stream != nil {
		s.stream.uses(nil)
	}
	_ = x.lease.Value().Close()
	x.lease.OK() // or else clients could have endpoints ejected
	x.lease.Discard()
	return &httppool.Error{Endpoint: x.result.Endpoint, Step: "upgrade", Err: err}
}

// reopenForUpgrade replaces the place of the lease by a connection of HTTP/1.1.
func (s *session) reopenForUpgrade() error {
	x := &s.ex
	by := x.until
	if wait := x.target.route.ConnectTimeout; wait > 0 {
		by = x.earlier(time.Now().Add(wait))
	}
	ctx := context.WithValue(s.leasing(), withoutHTTP2{}, true)
	if !by.IsZero() {
		bounded, cancel := context.WithDeadline(ctx, by)
		defer cancel()
		ctx = bounded
	}
	if s.stream != nil {
		s.stream.uses(nil)
	}
	if err := x.lease.Value().Reopen(ctx); err != nil {
		return fmt.Errorf("%w; opening a connection of HTTP/1.1 for it: %w", httppool.ErrNoUpgrade, err)
	}
	x.tunnel.alone = true
	s.server.use(x.lease.Value().NetConn())
	s.server.conn.Adopt()
	if s.stream != nil && !s.stream.uses(x.lease.Value()) {
		return httppool.ErrClientGone
	}
	return nil
}

// withholds reports whether a field of the request is not for the server: a key belongs to HTTP/1.1.
func (t *tunnel) withholds(f *httpwire.Field, coded bool) bool {
	return (coded || t.s.stream != nil) && t.socket && httpwire.EqualFold(f.Name, keyName)
}

// appendKey appends a new key, if the client has sent none to a server that needs one.
func (t *tunnel) appendKey(w *headWriter) {
	if !t.socket || w.coded || t.s.stream == nil {
		return
	}
	var nonce [16]byte
	_, _ = rand.Read(nonce[:]) // it never fails
	base64.StdEncoding.Encode(t.key[:], nonce[:])
	w.begin("Sec-WebSocket-Key")
	w.dst = append(w.dst, t.key[:]...)
	w.end()
}

// acceptFor returns the value of Sec-WebSocket-Accept for a key (RFC 6455, section 4.2.2).
func acceptFor(key []byte) string {
	sum := sha1.Sum(append(bytes.Clone(key), "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"...)) //nolint:gosec // see above
	return base64.StdEncoding.EncodeToString(sum[:])
}

// accepted returns why the server's 101 does not answer our key.
func (t *tunnel) accepted() error {
	if !t.socket || t.s.stream == nil {
		return nil // its key is the client's
	}
	n, right := 0, false
	for i := range t.s.resp.Fields {
		if f := &t.s.resp.Fields[i]; httpwire.EqualFold(f.Name, acceptName) {
			n++
			right = string(f.Value) == acceptFor(t.key[:])
		}
	}
	if n != 1 || !right {
		return fmt.Errorf("%w: 101 with a wrong Sec-WebSocket-Accept", httpwire.ErrMalformed)
	}
	return nil
}

// switched reports whether the final response, or the one with 101, is the positive answer to the upgrade.
func (s *session) switched() bool {
	if s.place() != nil {
		return s.ex.tunnel != nil && s.resp.Status >= 200 && s.resp.Status < 300
	}
	return s.resp.Status == http.StatusSwitchingProtocols
}

// checkSwitch returns why the positive answer must not be passed on. to is the new protocol.
func (s *session) checkSwitch() (to []byte, err error) {
	t := s.ex.tunnel
	if s.place() != nil {
		return []byte(t.to), nil
	}
	var asked []byte
	if t != nil {
		asked = []byte(t.to)
	}
	for i := range s.resp.Fields {
		if f := &s.resp.Fields[i]; f.Known == httpwire.Upgrade {
			to = f.Value
		}
	}
	if err = httpwire.CheckSwitch(asked, to, s.resp.Upgrades); err == nil {
		err = t.accepted()
	}
	return to, err
}

// upgrade passes on a positive answer, whose head takes n bytes of the server's buffer, and then the data of both sides
// until they have ended. It returns errRests if the session rests meanwhile.
func (s *session) upgrade(n int) error {
	x := &s.ex
	to, err := s.checkSwitch()
	if err != nil {
		return s.fail("receive", err)
	}
	s.resp.Status = http.StatusSwitchingProtocols // also in logs and counters, whatever the version
	x.result.Status, x.result.Upgraded = s.resp.Status, true
	x.upgraded, x.wrote = true, true
	s.kept = true
	s.noteFirst()
	s.measureAnswer()
	x.lease.OK() // the server has answered; the end of the tunnel does not count
	err = s.sendSwitching(to)
	s.releaseOut()
	s.server.take(n)
	if err != nil {
		return s.endTunnel(err)
	}
	return s.beginTunnel()
}

// sendSwitching sends the positive answer to the client.
func (s *session) sendSwitching(to []byte) error {
	if s.stream == nil {
		return s.toClient(s.appendSwitching(s.outgoing(), to))
	}
	w := s.stream.head(s.outgoing())
	w.code(http.StatusOK)
	s.appendSwitchFields(&w)
	_ = s.stream.SetWriteDeadline(s.within())
	s.out = w.finish()
	if err := s.stream.switchTo(s.out); err != nil {
		return fmt.Errorf("%w: %w", httppool.ErrClientGone, err)
	}
	return nil
}

// appendSwitching appends the head of a 101 response for the client.
func (s *session) appendSwitching(dst, to []byte) []byte {
	w := headWriter{dst: append(dst, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n"...)}
	w.begin("Upgrade")
	w.dst = append(w.dst, to...)
	w.end()
	s.appendSwitchFields(&w)
	return w.finish()
}

// appendSwitchFields appends the other fields of a positive answer.
func (s *session) appendSwitchFields(w *headWriter) {
	own := s.ex.tunnel.socket && (s.stream != nil || s.place() != nil) // the server's is not for this client
	for i := range s.resp.Fields {
		f := &s.resp.Fields[i]
		if s.resp.EndToEnd(f) && f.Known != httpwire.ContentLength && !(own && httpwire.EqualFold(f.Name, acceptName)) {
			w.field(f)
		}
	}
	if own && s.stream == nil {
		for i := range s.req.Fields {
			if f := &s.req.Fields[i]; httpwire.EqualFold(f.Name, keyName) {
				w.line(acceptField, acceptFor(f.Value))
				break
			}
		}
	}
	s.appendSetCookies(w)
}
