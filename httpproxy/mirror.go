package httpproxy

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/httpwire"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/pool/httppool"
)

// Mirror sends copies of a route's requests to another upstream, and drops the answers. A copy has the path and the header
// that the route's upstream gets, and MirrorField. It is sent once the Proxy has the whole request, whatever becomes of the
// request itself, and never sent again elsewhere. Nothing waits for it: when MaxCopies copies are under way, when the memory
// for requests is used up or copies have a quarter of it, or when a body is longer than MaxBody, there is no copy. Requests for an upgrade and gRPC calls
// have none.
type Mirror struct {
	// Upstream gets the copies, and must speak HTTP/1.1. nil = no copies. The Proxy does not close it.
	Upstream *Upstream
	// Percent is the share of the requests that are copied, chosen at random: 0 to 100.
	Percent int
	// MaxBody is the longest body of a request that is copied, in bytes. 0 = DefaultMirrorBody.
	MaxBody int64
}

// Bounds of Mirror.
const (
	// DefaultMirrorBody is the default of Mirror.MaxBody.
	DefaultMirrorBody = 64 << 10
	// MaxMirrorBody bounds Mirror.MaxBody: bodies of copies are in memory.
	MaxMirrorBody = 16 << 20
	// MaxCopies bounds the copies of a route's requests that are under way.
	MaxCopies = 128

	maxCopyTime = 10 * time.Minute // of a copy, with its answer
	lastCopies  = time.Second      // for copies under way at the end of a drain
)

// MirrorField is the header field of copies; its value is "1".
const MirrorField = "X-Headpond-Mirror"

func (m Mirror) verify(r Route) error {
	switch {
	case m == Mirror{}:
		return nil
	case m.Upstream == nil:
		return errors.New("Mirror without Upstream")
	case r.answersItself():
		return errors.New("Mirror: a route with Redirect or Respond has no requests to copy")
	case m.Percent < 0 || m.Percent > 100 || m.MaxBody < 0 || m.MaxBody > MaxMirrorBody:
		return fmt.Errorf("Mirror: Percent is from 0 to 100, and MaxBody at most %d bytes", MaxMirrorBody)
	}
	return nil
}

// mirror is a route's Mirror prepared for use.
type mirror struct {
	Mirror
	transport *httppool.Transport
	running   atomic.Int64 // copies
}

var errMirrorHTTP2 = errors.New("httpproxy: the upstream of Mirror speaks HTTP/2")

// newMirror returns nil if the route has no Mirror. response and idle are the route's limits, 0 = none.
func newMirror(m Mirror, response, idle time.Duration) *mirror {
	if m.Upstream == nil {
		return nil
	}
	if m.MaxBody == 0 {
		m.MaxBody = DefaultMirrorBody
	}
	if response == 0 {
		response = maxCopyTime
	}
	if idle == 0 {
		idle = maxCopyTime // without one, the exchange would leave a deadline set on the connection; see newAsker
	}
	made := &mirror{Mirror: m}
	made.transport, _ = httppool.NewTransport(httppool.Config{ // no error: there are no limits
		Options: httppool.Options{ResponseHeaderTimeout: response, IdleTimeout: idle},
		Source:  sourceOf(m.Upstream, errMirrorHTTP2),
	})
	return made
}

// requestCopy is the copy of a session's request while its body comes. Its upload adds the body.
type requestCopy struct {
	m       *mirror
	head    []byte
	body    []byte
	lost    int // the count of copies that are not sent, for this reason; 0 = it is to be sent
	claimed int // for body; see session.claim
}

// wants reports whether further parts of the body belong to the copy.
func (c *requestCopy) wants() bool { return c != nil && c.lost == 0 }

// startCopy sends a copy of the request if its whole body has come, and otherwise prepares one.
func (s *session) startCopy(m *mirror) {
	x := &s.ex
	if x.tunnel != nil || s.asksGRPC() || rand.IntN(100) >= m.Percent {
		return
	}
	need := s.req.Length
	switch {
	case x.inline:
		need = x.body
	case need == httpwire.Chunked:
		need = m.MaxBody
	}
	switch {
	case need > m.MaxBody:
		s.countRoute(mirrorTooLarge, 1)
		return
	case m.running.Load() >= MaxCopies || s.p.ledger.exhausted(time.Now()):
		s.countRoute(mirrorDropped, 1)
		return
	}
	c := &requestCopy{m: m, head: s.appendHead(nil, x.raw, false)}
	if x.inline {
		c.body = s.inlineContent()
		s.sendCopy(c)
		return
	}
	claimed, ok := s.claim(int(need))
	if c.claimed = claimed; !ok {
		s.unclaim(claimed)
		s.countRoute(mirrorDropped, 1)
		return
	}
	x.copied = c
}

// inlineContent returns a copy of the body that has come with the head.
func (s *session) inlineContent() []byte {
	return bytes.Clone(s.client.bytes()[s.ex.size:][:s.ex.body])
}

// restartCopy drops what the copy has of the body: the body is sent again.
func (s *session) restartCopy() {
	if c := s.ex.copied; c != nil && c.head != nil {
		s.freeCopy(c)
		c.body = c.body[:0]
	}
}

// copyBody adds a part of the body.
func (s *session) copyBody(p []byte) {
	c := s.ex.copied
	if !c.wants() || len(p) == 0 {
		return
	}
	switch {
	case int64(len(c.body)+len(p)) > c.m.MaxBody:
		c.lost = mirrorTooLarge
	case !s.p.ledger.takeForCopy(len(p)):
		c.lost = mirrorDropped
	default:
		c.body = append(c.body, p...)
		s.held.add(len(p))
		return
	}
	s.freeCopy(c)
	c.body = nil
	s.unclaimCopy(c)
}

// finishCopy sends the copy, whose body is complete. The caller is the upload.
func (s *session) finishCopy() {
	c := s.ex.copied
	switch {
	case c == nil || c.head == nil: // a retry: the copy was sent before
		return
	case c.lost != 0:
		s.countRoute(c.lost, 1)
	default:
		s.freeCopy(c)
		s.sendCopy(&requestCopy{m: c.m, head: c.head, body: c.body})
	}
	c.head, c.body, c.lost = nil, nil, mirrorSent
	s.unclaimCopy(c) // now, as the answer may take hours
}

// freeCopy counts the body no more.
func (s *session) freeCopy(c *requestCopy) {
	s.p.ledger.giveBackOfCopy(len(c.body))
	s.held.add(-len(c.body))
}

func (s *session) unclaimCopy(c *requestCopy) {
	s.unclaim(c.claimed)
	c.claimed = 0
}

// endCopy ends the session's part of the copy. A body that did not come whole is not sent.
func (s *session) endCopy() {
	if c := s.ex.copied; c != nil {
		if c.head != nil {
			s.countRoute(mirrorDropped, 1)
		}
		s.freeCopy(c)
		s.unclaimCopy(c)
		s.ex.copied = nil
	}
}

// sendCopy sends a copy in a fiber of its own, which belongs to the Proxy.
func (s *session) sendCopy(c *requestCopy) {
	m, p, cell, shard := c.m, s.p, s.ex.target.traffic, int(s.shard)
	account, size := p.ledger.account(s.shard), len(c.head)+len(c.body)
	taken := p.ledger.takeForCopy(size)
	if m.running.Add(1) > MaxCopies || !taken {
		m.running.Add(-1)
		if taken {
			p.ledger.giveBackOfCopy(size)
		}
		s.countRoute(mirrorDropped, 1)
		return
	}
	account.n.Add(int64(size))
	p.copies.Go(func() {
		defer m.running.Add(-1)
		defer p.ledger.giveBackOfCopy(size)
		defer account.n.Add(-int64(size))
		defer p.copied()
		count := mirrorFailed
		if err := m.send(p.copying, c.head, c.body); err == nil {
			count = mirrorSent
		} else {
			p.srv.LogLimited("mirror", slog.LevelInfo, "the copy of a request has failed", "upstream", m.Upstream.Name(), "error", err)
		}
		cell.Shard(shard).Add(count, 1)
	})
}

// copied must be deferred by the fibers of copies.
func (p *Proxy) copied() {
	if v := recover(); v != nil {
		p.srv.Report(listener.ReasonInternal, slog.LevelError, "the copy of a request panicked", "panic", v, "stack", string(debug.Stack()))
	}
}

// send sends a copy and reads its answer to the end.
func (m *mirror) send(ctx context.Context, head, body []byte) error {
	r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(head)))
	if err != nil { // net/http is stricter than httpwire
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, maxCopyTime)
	defer cancel()
	if parker := fiber.NewParker(); parker != nil { // a wait for a connection must not block the loop
		ctx = pool.WithParker(ctx, parker)
	}
	target := r.RequestURI
	if r.URL.Scheme, r.URL.Host = "http", "mirror"; !strings.HasPrefix(target, "//") {
		r.URL = &url.URL{Scheme: "http", Host: "mirror", Opaque: target} // as it was written
	}
	for _, name := range []string{"Expect", "Content-Length"} {
		r.Header.Del(name)
	}
	if r.Header["Pragma"] != nil && !bytes.Contains(bytes.ToLower(head), []byte("\ncache-control:")) {
		delete(r.Header, "Cache-Control") // http.ReadRequest has added it
	}
	r.Header[MirrorField] = []string{"1"}
	r.RequestURI, r.TransferEncoding, r.Trailer, r.ContentLength, r.Body = "", nil, nil, int64(len(body)), http.NoBody
	if len(body) > 0 {
		r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil } // for stale connections
		r.Body, _ = r.GetBody()
	}
	resp, err := m.transport.RoundTrip(r.WithContext(ctx))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode < 200 {
		return fmt.Errorf("it answers with status %d", resp.StatusCode)
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

// endCopies waits for the copies under way, for a short time and until ctx ends, and ends the others.
func (p *Proxy) endCopies(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lastCopies)
	defer cancel()
	defer context.AfterFunc(ctx, p.stopCopies)()
	p.copies.Wait()
}
