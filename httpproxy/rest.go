package httpproxy

import (
	"bytes"
	"errors"
	"time"
	"unsafe"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/httpwire"
	"github.com/headpond/headpond/pool/httppool"
)

// A session rests while an answer pauses, such as a stream of events, or does not begin for long, such as a language
// model's. Meanwhile it has neither a stack nor buffers, since there may be many such sessions. fromServer or awaitServer
// detects the pause and returns errRests, and all functions return up to forwarded. beginRest registers the events that
// continue the session: data or the end from the server, and the end of the time limit; for HTTP/1.1 also data or the end
// from the client. The reset of an HTTP/2 stream closes the connection to the server.
//
// With HTTP/1.1 on both sides the loop itself passes on what arrives, see passEvents, and the rest lasts until there is more
// to do than that.
//
// A session keeps its stack while it sends the request's body, if the answer is compressed or has a length, without a loop,
// as requests of HTTP/3 are, and if its connection to an HTTP/1.1 server lives on another one. Before the answer begins it
// also keeps the request, as that may have to be sent again.

// errRests: the session can rest.
var errRests = errors.New("the answer pauses")

// resting is the state of an exchange with regard to rests.
type resting struct {
	never    bool      // the session cannot rest
	head     bool      // the session rests before the answer's head has come
	events   bool      // the answer is a stream of events
	trimmed  bool      // trimBuffers has been called
	again    bool      // the next wait for the server continues the one before the rest
	until    time.Time // the end of that wait; zero = never
	unsent   []byte    // for the client, which had no room for it during the rest
	panicked any       // what passEvents has panicked with; nil = it has not
}

// quietAfter is how long a session waits for the server before it frees what it does not need for that. If the loop
// passes on what arrives, it also rests then; otherwise after suspendAfter, as the end of a rest costs more.
const quietAfter = 5 * time.Millisecond

// restAfter is how long a session that may rest waits for the server as it is.
func (s *session) restAfter() time.Duration {
	if s.ex.rest.trimmed && !s.attends() {
		return suspendAfter
	}
	return quietAfter
}

// restsAtOnce reports whether the session need not wait before it rests, because events are about to come one by one, and
// can. A rest that has ended was too early.
func (s *session) restsAtOnce() bool {
	r := &s.ex.rest
	return r.events && !r.trimmed && !r.never && s.attends() && s.canRest()
}

// isEventStream reports whether the answer is a stream of events.
func (s *session) isEventStream() bool {
	for i := range s.resp.Fields {
		if f := &s.resp.Fields[i]; f.Known == httpwire.Other && httpwire.EqualFold(f.Name, "content-type") {
			media, _, _ := bytes.Cut(f.Value, []byte{';'})
			return httpwire.EqualFold(bytes.TrimRight(media, " \t"), eventStream)
		}
	}
	return false
}

// attends reports whether the loop can pass on what arrives during a rest.
func (s *session) attends() bool {
	return s.stream == nil && fiber.Attendable(s.server.conn, s.lc.Raw())
}

// within returns the deadline of a wait for the server that begins or continues now.
func (r *resting) within(s *session) time.Time {
	if r.again {
		r.again = false
		return r.until
	}
	return s.within()
}

// mayRest reports whether the session may rest during this exchange.
func (s *session) mayRest() bool {
	x := &s.ex
	return !x.rest.never && x.compression.by == nil && (x.up == nil || x.up.sent())
}

// waitsOnly reports whether the session has sent all of the request, and does nothing but wait for the answer's head.
func (s *session) waitsOnly() bool {
	x := &s.ex
	sent := x.inline
	if x.up != nil {
		sent = x.up.sent() && x.up.ended()
	}
	return sent && x.tunnel == nil
}

// mayRestForHead reports whether the session, which waits only, can rest until the answer's head comes, after a read from
// the server found nothing.
func (s *session) mayRestForHead() bool { return !s.ex.rest.never && s.canRest() }

// canRest reports whether the session can rest now, after a read from the server found nothing.
func (s *session) canRest() bool {
	loop := s.client.conn.Loop()
	if loop == 0 || s.server.conn.Loop() != loop && s.place() == nil {
		s.ex.rest.never = true
		return false
	}
	// Unread bytes of the client would end the rest at once. The client's end may be a half-close: data
	// that the server sends before the next check is still sent to the client.
	return s.server.r == s.server.w && s.client.conn.State() == fiber.Silent
}

// forward sends the request, passes the response on, and prepares for the next request. It returns
// false if the session ends or rests.
func (s *session) forward() bool {
	if m := s.ex.target.mirror; m != nil {
		s.startCopy(m)
	}
	return s.forwarded(s.attempts())
}

// forwarded ends an exchange with the outcome err, or makes the session rest. It returns false if the session ends or
// rests.
func (s *session) forwarded(err error) bool {
	for errors.Is(err, errRests) {
		if s.beginRest() {
			return false
		}
		err = s.continueExchange()
	}
	again := s.finish(err)
	s.served = true
	return again
}

// beginRest frees the session's buffers and registers the events that continue it. The fiber must then
// return at once, and not use the session any more. It returns false if the session cannot rest.
func (s *session) beginRest() bool {
	s.kept = true
	if s.ex.upgraded {
		return s.restInTunnel()
	}
	if s.ex.rest.head {
		s.trimRequest()
	} else {
		s.trimBuffers()
	}
	s.ex.rest.again = true
	_ = s.server.conn.SetReadDeadline(s.ex.rest.until)
	if s.stream != nil {
		s.rests = s.onServerReadable(s.stream.resumes())
	} else {
		s.rests = s.suspend()
	}
	s.ex.rest.never = s.ex.rest.never || !s.rests
	return s.rests
}

// onServerReadable runs fn as a fiber of the client's loop, once, as soon as there is something to read from the server; see
// fiber.Stream.OnReadable. The connection of a place may live on another loop.
func (s *session) onServerReadable(fn func()) bool {
	if client := s.client.conn; s.server.conn.Loop() != client.Loop() {
		run := fn
		fn = func() { client.Go(run) }
	}
	return s.server.conn.OnReadable(fn)
}

// suspend suspends the session until one of its connections can be read, or until passEvents ends.
func (s *session) suspend() bool {
	resume := s.lc.SuspendUntil()
	if resume == nil {
		return false
	}
	s.leases, s.ctx = nil, nil // they belong to the fiber
	client, server := s.client.conn, s.server.conn
	_ = client.SetDeadline(time.Time{}) // those of the request's head and of the last write may still be set
	if !s.ex.rest.head && s.attends() && server.AttendThen(s.lc.Raw(), s.passEvents, func(panicked any) {
		s.ex.rest.panicked = panicked
		resume()
	}) {
		return true
	}
	woken := false // only fibers of this loop use it
	wake := func() {
		if woken {
			return
		}
		woken = true
		server.OnReadable(nil)
		client.OnReadable(nil)
		resume()
	}
	if !s.onServerReadable(wake) || !client.OnReadable(wake) {
		s.ex.rest.never = true
		wake()
	}
	return true
}

// Bounds of what passEvents does at a time; a fiber is better for more.
const (
	maxEvent  = bufferSize / 2
	maxEvents = 16
	maxPart   = 256 // of a line of the framing that is kept until more comes
)

// passEvents is the step of a rest (see fiber.Conn.AttendThen): it passes on what arrives from the server. It returns true
// if the session must continue on a fiber.
func (s *session) passEvents() (over bool) {
	defer func() {
		if over {
			s.server.widen()
		}
	}()
	for range maxEvents {
		b, clientReady, over := s.server.conn.TryReadEither(s.lc.Raw(), 0)
		if len(b) == 0 {
			return clientReady || over
		}
		if !s.passEvent(s.server.before(b)) {
			s.ex.rest.again = false // the wait has ended with b
			return true
		}
		s.ex.rest.until = s.within()
		_ = s.server.conn.SetReadDeadline(s.ex.rest.until)
	}
	return true
}

// passEvent passes on a part of the body. It returns false if that is not all there is to do; then the fiber finds
// what remains in the server's buffer and in unsent.
func (s *session) passEvent(b []byte) bool {
	if len(b) > maxEvent {
		s.server.put(b)
		return false
	}
	out, incomplete := s.outgoing(), false
	defer s.releaseOut()
	if s.resp.Length != httpwire.Chunked {
		out, b = s.appendAnswer(out, b), nil
	}
	for len(b) > 0 {
		before := s.chunks
		content, n, done, err := s.chunks.Next(b)
		if done || err != nil {
			s.chunks, incomplete = before, errors.Is(err, httpwire.ErrIncomplete)
			break
		}
		out = s.appendAnswer(out, content)
		b = b[n:]
	}
	isPart := incomplete && len(b) <= maxPart
	if isPart {
		s.server.keep(b)
	} else {
		s.server.put(b)
	}
	n := s.client.conn.TryWrite(out)
	s.count(0, n)
	if n < len(out) {
		s.ex.rest.unsent = bytes.Clone(out[n:])
		s.held.add(len(out) - n)
		return false
	}
	return isPart || len(b) == 0
}

// endRest continues the exchange after a rest. It returns false if the session ends or rests again.
func (s *session) endRest() bool {
	s.rests = false
	return s.forwarded(s.continueExchange())
}

// continueExchange does the remaining work of attempts after a rest.
func (s *session) continueExchange() error {
	if s.ex.rest.head {
		s.ex.rest.head = false
		return s.tryAgain(s.exchange(s.receiveAll))
	}
	return s.exchange(s.remainingBody)
}

// remainingBody passes on the remainder of the body. It ends the lease, unless the session can rest again.
func (s *session) remainingBody() (err error) {
	if p := s.ex.rest.panicked; p != nil {
		panic(p)
	}
	if s.ex.upgraded {
		return s.endTunnel(s.ex.tunnel.End())
	}
	if unsent := s.ex.rest.unsent; len(unsent) > 0 {
		err = s.toClient(unsent)
		s.ex.rest.unsent = nil
		s.held.add(-len(unsent))
	}
	switch {
	case err != nil:
	case s.clientGone():
		err = httppool.ErrClientGone
	case s.resp.Length == httpwire.Chunked:
		err = s.moreOfChunks(s.outgoing())
	default:
		err = s.moreUnframed(s.outgoing())
	}
	switch {
	case err == nil:
		return s.endLease()
	case errors.Is(err, errRests):
		return err
	}
	return s.fail("body", err)
}

// trimBuffers frees the buffers that the remainder of the answer does not need. The request's head has been sent, but logs need
// it, so it moves to a buffer of its size.
func (s *session) trimBuffers() {
	x := &s.ex
	x.rest.trimmed, x.captured = true, nil
	s.about.shrink()
	s.releaseOut()
	s.resp.Fields, s.resp.Reason = nil, nil // they refer to the server's buffer
	s.server.release()                      // which a read has taken if data came in the moment that its time ended
	switch n := len(s.client.bytes()); {
	case n == 0 || len(s.client.buf) == x.size, x.inline && n > x.size+int(x.body): // nothing to gain, or the next request has arrived
		return
	case s.stream != nil: // the head came as fields
		s.client.drop()
	default:
		s.moveRequest(x.size)
	}
	x.body = 0
}

// trimRequest frees the buffers that a wait for a connection, or for an answer's head, does not need. The request is still
// to be sent, perhaps again: all of it moves to a buffer of its size.
func (s *session) trimRequest() {
	x := &s.ex
	s.about.shrink()
	s.releaseOut()
	s.server.release()
	x.kept.shrink(&s.held)
	n := x.size + int(x.body)
	if !x.inline && (x.up == nil || !x.up.more) {
		n = len(s.client.bytes()) // with what has arrived of the body with the head; more is kept elsewhere
	}
	switch {
	case s.stream != nil: // the head is elsewhere
		if st, ok := s.stream.(*h2Stream); ok && x.up == nil && x.kept.b == nil { // what is kept comes before what preread reads
			st.preread() // what has come of the body while the request was in the queue
		}
		if n = len(s.client.bytes()); n > 0 && n < len(s.client.buf) {
			s.client.shrink()
		}
	case x.captured != nil: // more than moveRequest moves refers to the buffer
	case len(s.client.buf) == n, x.inline && len(s.client.bytes()) > n: // nothing to gain, or the next request has arrived
	default:
		s.moveRequest(n)
	}
}

// moveRequest moves the first n bytes of the request to a buffer of their size, and drops the others.
func (s *session) moveRequest(n int) {
	old := s.client.bytes()[:n]
	s.client.w = s.client.r + n
	s.client.shrink()
	now, r := s.client.bytes(), &s.req
	for _, part := range []*[]byte{&r.Method, &r.Target, &r.Host, &r.Upgrade, &s.ex.raw, &s.ex.id} {
		*part = moved(*part, old, now)
	}
	for i := range r.Fields {
		f := &r.Fields[i]
		f.Name, f.Value = moved(f.Name, old, now), moved(f.Value, old, now)
	}
}

// moved returns what part has become if it was a part of old, which was copied to now; otherwise it returns part.
func moved(part, old, now []byte) []byte {
	at := uintptr(unsafe.Pointer(unsafe.SliceData(part))) - uintptr(unsafe.Pointer(unsafe.SliceData(old)))
	switch {
	case part == nil || at > uintptr(len(old)) || at+uintptr(len(part)) > uintptr(len(old)): // also right behind old
		return part
	case len(part) == 0:
		return now[:0]
	}
	return now[at:][:len(part)]
}
