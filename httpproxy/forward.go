package httpproxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/httpwire"
	"github.com/headpond/headpond/internal/identity"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pool/httppool"
	"github.com/headpond/headpond/upstream"
)

// checkInterval is how often a session that waits for a response, or for more of it, checks whether its client is still
// connected.
const checkInterval = time.Second

// exchange is the state of the request that a session serves.
type exchange struct {
	finding
	ahead        aheadOf   // steps taken on the loop, without a fiber
	size         int       // of the request's head in the client's buffer
	raw          []byte    // the request's target, as forwarded
	captured     *captured // nil = the route's texts have no groups
	lease        upstream.Lease[*httppool.Conn]
	stale        httppool.Stale // results of the connections tried before this lease
	retry        retry          // whether and how the request is to be sent again
	tries        int            // failed tries, not counting stale connections
	pauses       int            // pauses made before tries
	spent        time.Duration  // time that earlier tries have waited for answers
	avoid        []string       // endpoints where the request has failed
	tokens       *tokens        // nil = the route has no LLM, or nothing is known yet
	cookieCanary *canary        // sets its cookie for the client; nil = none
	canaryCookie [16]byte       // value of that cookie, in hexadecimal
	id           []byte         // request id; in idBuf or in the head
	user         string         // authenticated sender; "" = nobody was asked
	grants       []grant        // fields from the authentication server's answer
	body         int64          // bytes of the body in the client's buffer
	foreseen     *foreseen      // nil = the body is small, or is an upload's already
	up           *uploading     // nil unless a fiber sends the body
	refusals     int            // times an HTTP/2 server has refused the request
	interims     int            // interim responses to it
	copied       *requestCopy   // the copy for the route's Mirror, while its body comes; nil = none
	kept         kept           // the part of the body that can be sent again
	sent         time.Time      // when the head of the request was last sent
	written      int            // bytes of the request that the first write accepted; see httppool.Conn.Unsent
	compression  answerCompression
	result       httppool.Result
	until        time.Time     // deadline of the exchange; zero = none
	asked        *http.Request // result of the method request; nil = not needed yet
	trace        *trace        // nil = not traced
	first        time.Duration // time from the request to the head of its response; 0 = none yet, or no log wants it
	tunnel       *tunnel       // the upgrade that the request asks for; nil = none
	unsent       []byte        // what an HTTP/1.1 client has not got of an interim response; see writeInterim
	rest         resting       // of the session while the answer pauses

	// Fields of a few bytes are together, as there may be very many sessions.

	affinityKey     affinityKey // the affinity key of the request
	idBuf           [20]byte    // backs id
	judged          bool        // the request has a route; see judge
	peeked          bool        // findAffinityKey has seen the body
	inline          bool        // the whole body is in the client's buffer
	refused         bool        // an HTTP/2 server refused the last try
	measured        bool        // the response's head has arrived and was measured
	answered        bool        // a byte of the response has arrived
	serverContinues bool        // the server has sent 100 Continue
	clientContinues bool        // the client has received a 100 Continue
	paged           bool        // the answer has an error page in place of the server's content
	decided         bool        // trace is decided
	unframed        bool        // the client speaks HTTP/1.0 and gets the body without framing
	upgraded        bool        // the connections speak another protocol
	close           bool        // the client's connection ends with the response
	logged          bool        // in the access log
	wrote           bool        // a byte of the response went to the client
	headPending     bool        // the client's stream has got the head, and may not have sent it
	queued          bool        // the request waits for a connection
}

// earlier returns t or the end of the exchange's time, whichever is first; the zero t stands for no time.
func (x *exchange) earlier(t time.Time) time.Time {
	if !x.until.IsZero() && (t.IsZero() || x.until.Before(t)) {
		return x.until
	}
	return t
}

// within returns the deadline of a wait for the client or the server that begins now: the idle limit or the end of the
// exchange; zero = none. Set it for every wait, as an earlier deadline would stay otherwise.
func (s *session) within() time.Time {
	if d := s.ex.target.idle; d > 0 {
		return s.ex.earlier(fiber.Now().Add(d))
	}
	return s.ex.until
}

// view returns b as a string, which is valid as long as b does not change.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// serve forwards the request whose head takes size bytes of the client's buffer; false ends the session.
func (s *session) serve(size int) bool {
	s.ex = exchange{size: size}
	if no, _ := s.judge(true); no.clientGone {
		s.beginTrace() // begin has not been called
		return s.finish(httppool.ErrClientGone)
	} else if no.status != 0 {
		return s.refuse(no)
	}
	if s.ex.target.route.Upstream == nil {
		return s.answerItself()
	}
	s.foresee()
	return s.forward()
}

// refusal is why a request does not go to an upstream; the zero value means that it does.
type refusal struct {
	status      int
	reason, why string      // reason "" = not counted as a failure
	counted     bool        // the failure is counted and logged already, for that reason
	challenge   string      // the value of WWW-Authenticate
	retryAfter  int         // seconds after which the client may try again; 0 = not known
	header      http.Header // with body, the answer for the client; nil = the answer gives the reason
	body        []byte
	clientGone  bool // the client has left
}

// judge checks the request and finds its route; a route with an answer of its own has no upstream. Without mayWait it
// never waits: done is false if it would have to, or if the route itself answers. Call it again then.
func (s *session) judge(mayWait bool) (no refusal, done bool) {
	x := &s.ex
	if status, reason, why := s.canonical(); status != 0 {
		s.req.Close = true // the following bytes may be meant for another server that the client took this one for
		return refusal{status: status, reason: reason, why: why}, true
	}
	path, raw, ok := s.path()
	switch {
	case !ok:
		return refusal{status: 400, reason: listener.ReasonProtocol, why: "the path has an invalid escape"}, true
	case httpwire.HasDotSegment(path):
		return refusal{status: 400, reason: listener.ReasonProtocol, why: "the path has a . or .. segment"}, true
	case s.req.Demands:
		return refusal{status: 417, reason: listener.ReasonProtocol, why: "only 100-continue can be expected"}, true
	}
	t := s.p.table.Load()
	if known, done := s.isChallenge(t, path, raw, mayWait); known || !done {
		return no, done
	}
	if x.finding = t.find(&s.req, path, nil); x.needsBody {
		if !mayWait {
			return no, false
		}
		if no = s.shed(); no.status != 0 {
			return no, true
		}
		s.note(path, false)
		if status, reason, why := s.routeByBody(t, path); status != 0 {
			return refusal{status: status, reason: reason, why: why}, true
		}
		path, raw, _ = s.path()
	}
	switch {
	case x.target == nil && x.noGroupFits:
		return refusal{status: 503, reason: listener.ReasonUnknownRoute, why: "no upstream takes this request: see the groups of its route, and the header " + identity.Fallback}, true
	case x.target == nil:
		return refusal{status: 404, reason: listener.ReasonUnknownRoute, why: "no route for this request"}, true
	case (x.target.affinity != nil || x.target.limiter != nil || x.target.route.Upstream == nil) && !mayWait:
		return no, false // the key may be in the body; a request counts once; the answer has to be written
	}
	if no = s.enter(); no.status != 0 {
		return no, true
	}
	if no = s.addressDenied(); no.status != 0 {
		return no, true
	}
	if no = s.preflight(); no.status != 0 {
		return no, true
	}
	l := x.target.limiter
	if l != nil && !l.shared {
		if no = s.overRate(l); no.status != 0 {
			return no, true
		}
	}
	s.setDeadline()
	if a := x.target.access; a != nil {
		if no, done = s.admit(a, path, mayWait); !done || no.status != 0 {
			return no, done
		}
	}
	if l != nil || x.target.llm != nil {
		if no = s.overShared(l); no.status != 0 {
			return no, true
		}
	}
	s.begin(path, raw)
	return no, true
}

// enter chooses between the upstreams of the request's route, and refuses the request if there is no memory for it. The
// status is 0 if the request is admitted.
func (s *session) enter() (no refusal) {
	s.ex.cookieCanary, s.ex.captured = nil, nil // of the previous table, if judge is called again
	t := s.ex.target
	if t.captures {
		if no = s.capture(); no.status != 0 {
			return no
		}
	}
	if t.route.Upstream == nil { // such an answer takes little memory, and may serve a check of the gateway's health
		return no
	}
	if c := t.canary; c != nil && s.takes(c) {
		s.ex.target = c.target
	}
	if s.tooLong(s.req.Length - s.ex.tokens.addition()) {
		return refusal{status: http.StatusRequestEntityTooLarge, reason: listener.ReasonProtocol, why: tooLongText(t.route.MaxBody)}
	}
	return s.shed()
}

// begin begins the exchange of a request that goes to an upstream or that its route answers. raw is the request's
// target.
func (s *session) begin(path string, raw []byte) {
	x := &s.ex
	x.raw = raw
	if x.target.route.Upstream == nil {
		s.note(path, true)
		if x.id == nil {
			s.identify()
		}
		return
	}
	s.beginTrace()
	s.note(path, true)
	if x.target.affinity != nil && !x.peeked {
		s.findAffinityKey(nil)
	}
	x.tunnel = s.upgrading()
	x.close = s.closesAfter()
	if x.id == nil {
		s.identify()
	}
	s.checkForBody()
}

// canonical brings the target into origin form (RFC 9112, section 3.2), and makes the checks that all later code relies
// on. The status is 0 unless the request is refused.
func (s *session) canonical() (status int, reason, why string) {
	r := &s.req
	if string(r.Method) == http.MethodConnect {
		return http.StatusMethodNotAllowed, listener.ReasonUnknownRoute, "CONNECT is not supported"
	}
	if s.stream != nil && r.Upgrade != nil && s.req.Switches() == nil {
		return http.StatusNotImplemented, listener.ReasonProtocol, "this :protocol is not supported"
	}
	malformed := func(why string) (int, string, string) {
		return http.StatusBadRequest, listener.ReasonProtocol, why
	}
	switch {
	case r.Hosts > 1 || r.Hosts == 0 && r.Minor > 0:
		return malformed("there must be one Host field")
	case r.Hosts == 1 && !httpwire.ValidHost(r.Host):
		return malformed("the Host field is not a name with or without a port")
	case r.Target[0] == '/':
	case string(r.Target) == "*" && string(r.Method) == http.MethodOptions:
	default:
		host, target, ok := splitAbsolute(r.Target, string(r.Method) == http.MethodOptions)
		if !ok {
			return malformed("the target is neither a path nor an http:// URL")
		}
		r.Host, r.Target = host, target
	}
	if bytes.IndexByte(r.Target, '#') >= 0 {
		return malformed("the target has a fragment")
	}
	if bytes.IndexByte(r.Target, '\\') >= 0 { // some servers treat it as a slash
		end := pathEnd(r.Target)
		r.Target = append(bytes.ReplaceAll(r.Target[:end], []byte(`\`), []byte("%5C")), r.Target[end:]...)
	}
	return 0, "", ""
}

// splitAbsolute splits a target in absolute form into the host and the target in origin form. An OPTIONS request
// without path and query is about the whole server (RFC 9112, section 3.2.4).
func splitAbsolute(target []byte, options bool) (host, origin []byte, ok bool) {
	for _, scheme := range [...]string{"http://", "https://"} {
		if len(target) <= len(scheme) || !httpwire.EqualFold(target[:len(scheme)], scheme) {
			continue
		}
		host = target[len(scheme):]
		switch i := bytes.IndexAny(host, "/?"); {
		case i < 0 && options:
			origin = []byte("*")
		case i < 0:
			origin = []byte("/")
		case host[i] == '?':
			host, origin = host[:i], append([]byte("/"), host[i:]...)
		default:
			host, origin = host[:i], host[i:]
		}
		return host, origin, httpwire.ValidHost(host)
	}
	return nil, nil, false
}

// closesAfter reports whether the connection closes after this request.
func (s *session) closesAfter() bool {
	return s.req.Close || s.req.Switches() != nil || s.p.isDraining()
}

// path returns the decoded path of the target, and the target as it is to be forwarded.
func (s *session) path() (decoded string, raw []byte, ok bool) {
	raw = s.req.Target
	path := view(raw)
	if i := strings.IndexByte(path, '?'); i >= 0 {
		path = path[:i]
	}
	if strings.IndexByte(path, '%') < 0 {
		return path, raw, true
	}
	decoded, err := unescape(path)
	return decoded, raw, err == nil
}

// identify takes the request's ID from its head, or makes one.
func (s *session) identify() {
	x := &s.ex
	n := 0
	for i := range s.req.Fields {
		if f := &s.req.Fields[i]; f.Known == httpwire.XRequestID {
			n++
			x.id = f.Value
		}
	}
	if n != 1 || !httpwire.ValidRequestID(x.id) {
		x.id = strconv.AppendUint(x.idBuf[:0], rand.Uint64()|1<<63, 16)
	}
}

// whole reports whether all that was read of the body can be sent again.
func (s *session) whole() bool { return s.ex.up == nil || !s.ex.up.more }

// lost describes a try whose connection has ended with err.
func (s *session) lost(err error) httpwire.Lost {
	x := &s.ex
	return httpwire.Lost{
		Idled: x.result.Reused, Answered: x.answered, Whole: s.whole(), Unsent: !x.wrote && x.lease.Value().Unsent(x.written), Idempotent: s.req.Idempotent(),
		Reset: errors.Is(err, errServerReset), NotBegun: errors.Is(err, errNotBegun),
	}
}

// acquire leases a connection that is alive.
func (s *session) acquire() error {
	x := &s.ex
	ctx := s.leasing()
	if !x.until.IsZero() {
		bounded, cancel := context.WithDeadline(ctx, x.until)
		defer cancel()
		ctx = bounded
	}
	for {
		if s.clientHasLeft() { // also while the last iteration waited
			if x.ahead.leased {
				x.lease.Release() // nothing was sent on it
			}
			return httppool.ErrClientGone
		}
		l, err := s.lease(ctx)
		if err != nil {
			if errors.Is(err, context.Canceled) && s.clientGone() {
				return httppool.ErrClientGone
			}
			if x.late() {
				err = fmt.Errorf("%w: %v", context.DeadlineExceeded, err) //nolint:errorlint // not a shortage of connections
			}
			return &httppool.Error{Step: "acquire", Err: err}
		}
		if s.clientHasLeft() {
			l.Release() // nothing was sent on it
			return httppool.ErrClientGone
		}
		if l.Value().Alive() {
			return s.hold(l)
		}
		if _, ok := l.Value().NetConn().(*h2Place); ok { // the other leases in its pool are on the same connection
			if renewed, err := s.reopen(ctx, l, x.stale.Renew); err != nil {
				return err
			} else if renewed {
				return s.hold(l)
			}
			x.avoid = append(x.avoid, l.Endpoint())
			continue
		}
		if err := x.stale.Next(l); err != nil {
			if err := s.unusable(err); err != nil {
				return err
			}
		}
	}
}

// lease leases a connection, if possible at an endpoint at which the request has not failed.
func (s *session) lease(ctx context.Context) (upstream.Lease[*httppool.Conn], error) {
	x := &s.ex
	if x.ahead.leased {
		x.ahead.leased = false
		return x.lease, nil
	}
	u, connect, maxLoad := x.target.route.Upstream, x.target.retries.connect, 0
	if a := x.target.affinity; a != nil {
		maxLoad = a.maxLoad
	}
	wait := x.target.route.ConnectTimeout
	x.queued = true
	defer func() { x.queued = false }()
	if len(x.avoid) == 0 && connect && maxLoad == 0 && wait == 0 {
		return u.AcquireKey(ctx, s.key())
	}
	return u.AcquireNarrow(ctx, s.key(), upstream.Narrow{Avoid: x.avoid, One: !connect, MaxLoad: maxLoad, Wait: wait})
}

// hold takes over a lease whose connection is alive.
func (s *session) hold(l upstream.Lease[*httppool.Conn]) error {
	x, c := &s.ex, l.Value()
	x.lease = l
	s.server.use(c.NetConn())
	s.server.conn.Adopt() // only its user may call it, and after uses another fiber may close the connection
	if s.stream != nil && !s.stream.uses(c) {
		l.Release() // nothing was sent on it
		return httppool.ErrClientGone
	}
	if p := s.place(); p != nil {
		p.c.counted(l.Traffic())
	}
	x.result.Endpoint, x.result.Reused = l.Endpoint(), c.Use(s.now)
	s.about.holds(x.result.Endpoint, s.now)
	return nil
}

// exchange calls sendAndReceive, or a later part of it. It ends the lease, unless the session rests. An error after the
// beginning of the response means that the client must not take the response for complete.
func (s *session) exchange(part func() error) error {
	returned := false
	defer func() {
		if !returned { // a panic; the pool must not lose a connection
			_ = s.fail("", httppool.ErrClientGone)
			s.endCopy()
		}
	}()
	err := part()
	returned = true
	return err
}

// sendAndReceive sends the request on the lease and passes the response on.
func (s *session) sendAndReceive() error {
	if ahead := s.ex.ahead; ahead.sent {
		if s.ex.ahead = (aheadOf{}); ahead.err != nil {
			return s.fail(ahead.step, ahead.err)
		}
		if ahead.bodyPending {
			s.ex.inline = false // the upload waits for the window while the answer is read
		}
	} else {
		if s.ex.tunnel != nil {
			if err := s.prepareUpgrade(); err != nil {
				return err
			}
		}
		if err := s.send(); err != nil {
			return s.fail("send", err)
		}
	}
	if !s.ex.inline {
		s.startUpload()
	}
	return s.receiveAll()
}

// receiveAll passes the response on and ends the lease.
func (s *session) receiveAll() error {
	if err := s.receive(); err != nil || s.ex.upgraded { // the lease has ended then, or the session rests
		return err
	}
	return s.endLease()
}

// send sends the head, with the body if that has arrived.
func (s *session) send() (err error) {
	x := &s.ex
	if x.trace != nil {
		x.beginTry(time.Now())
	}
	s.out = s.appendRequest(s.outgoing(), x.raw)
	x.sent = fiber.Now()
	if !x.ahead.sent { // otherwise nothing may wait
		s.limitSend()
	}
	x.written = 0
	if p := s.place(); p != nil {
		if x.tunnel != nil {
			err = p.sendConnect(s.out)
		} else {
			err = p.sendHead(s.out, s.asksHead(), s.req.Length, x.ahead.sent)
		}
		if err != nil {
			return err
		}
		x.written = len(s.out)
		return s.sendBody()
	}
	if body := s.takeInline(); s.req.Length == httpwire.Chunked && x.inline { // a stream's
		s.out = appendTrailers(appendChunk(s.out, body), nil)
	} else {
		s.out = append(s.out, body...)
	}
	x.written, err = s.server.conn.Write(s.out)
	return err
}

// limitSend bounds the time for sending the received part of the request.
func (s *session) limitSend() {
	x := &s.ex
	by := x.until
	if d := x.target.idle; d > 0 {
		by = x.earlier(x.sent.Add(d))
	}
	if !by.IsZero() {
		s.deadline = true
		_ = s.server.conn.SetWriteDeadline(by)
	}
}

// asksHead reports whether the request asks for a head only.
func (s *session) asksHead() bool { return string(s.req.Method) == http.MethodHead }

// receive reads interim responses and the final one, and passes them on.
func (s *session) receive() error {
	for s.ex.interims < httpwire.MaxInterim {
		n, err := s.responseHead()
		switch {
		case errors.Is(err, errRests):
			return err
		case err != nil:
			return s.fail("receive", err)
		}
		if t := s.ex.tunnel; t != nil && t.alone {
			s.resp.Reusable = false // the lease is one of HTTP/2
		}
		switch {
		case s.switched():
			return s.upgrade(n)
		case s.resp.Status < 200:
			s.ex.interims++
			if err := s.interim(n); err != nil {
				return s.fail("receive", err)
			}
			continue
		case s.resp.Status >= 502 && s.rejected(n):
			return nil
		}
		if p := s.pageForServer(); p != nil {
			return s.respondPage(p, n)
		}
		return s.respond(n)
	}
	return s.fail("receive", fmt.Errorf("%w: more than %d interim responses", httpwire.ErrMalformed, httpwire.MaxInterim))
}

// clientHasLeft reports whether the client has gone before anything was sent for it, so that its request needs no upstream
// connection. It checks only if the check costs nothing or the client has waited for long.
func (s *session) clientHasLeft() bool {
	if s.isTLS == nil && (s.stream != nil || s.client.conn.Loop() != 0) {
		return s.client.conn.Ended()
	}
	return time.Since(s.now) > unwatched && s.clientGone()
}

// unwatched is how long a client may wait without a check by left.
const unwatched = 10 * time.Millisecond

// clientGone reports whether the client has closed its connection, and has sent nothing before that which is unread.
func (s *session) clientGone() bool {
	if s.ex.up != nil && !s.ex.up.ended() {
		return false // the fiber that reads the body sees it
	}
	return s.client.conn.State() == fiber.Dead
}

// endLease releases the lease if the connection is between two messages, and closes the connection otherwise.
func (s *session) endLease() error {
	x := &s.ex
	if s.stream != nil {
		s.stream.uses(nil)
	}
	clean := s.resp.Reusable && s.server.r == s.server.w && !s.req.ConnectionAuth &&
		(x.serverContinues || !s.req.Expects()) // a server that answers without having asked for the body may take it for another request
	if x.up != nil && !s.endUpload() {
		clean = false
	}
	s.server.drop()
	if clean && s.deadline {
		clean = s.server.conn.SetDeadline(time.Time{}) == nil
	}
	s.deadline = false
	if !x.measured { // the answer was not passed on
		s.measureAnswer()
	}
	if clean && x.lease.Value().Alive() {
		x.lease.Release()
		return nil
	}
	_ = x.lease.Value().Close()
	x.lease.OK() // the endpoint is not to blame
	x.lease.Discard()
	return nil
}

// lateWrite reports whether the error is that of a write to the client that ended with the exchange's time. An answer can follow an interim
// response, see writeInterim.
func (s *session) lateWrite(err error) bool {
	return s.ex.late() && errors.Is(err, os.ErrDeadlineExceeded)
}

// fail ends the lease after an error, unless the request is sent again on it, and returns the error to report.
func (s *session) fail(step string, err error) error {
	x := &s.ex
	s.deadline = false
	var upload error
	if x.up != nil {
		s.endUpload()
		upload, x.close = x.up.err, true
	}
	if s.stream != nil && !s.stream.uses(nil) {
		err = httppool.ErrClientGone
	}
	_ = x.lease.Value().Close()
	s.server.drop()
	blame := false
	switch {
	case errors.Is(err, httppool.ErrClientGone) && !s.lateWrite(err):
		s.measureSilence(step, false)
	case s.ctx.Err() != nil:
		err = context.Cause(s.ctx)
	case x.late() && (errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(upload, os.ErrDeadlineExceeded) || errors.Is(err, errServerReset)):
		err = context.DeadlineExceeded // by our clock, or by the server's, which has the same deadline
		s.measureSilence(step, false)
	case errors.Is(upload, httppool.ErrRequestBody):
		err = upload
	case errors.Is(upload, os.ErrDeadlineExceeded) && errors.Is(err, net.ErrClosed): // see startUpload
		err = httppool.ErrIdleTimeout
	case errors.Is(err, os.ErrDeadlineExceeded):
		if err = httppool.ErrResponseTimeout; step != "receive" {
			err = httppool.ErrIdleTimeout
		} else {
			s.measureSilence(step, s.hadEnoughTime())
			if s.tooSlow() {
				x.retry = elsewhere
			}
		}
	default:
		lost := s.lost(err)
		if !x.wrote && !errors.Is(err, httpwire.ErrMalformed) {
			x.retry = s.afterReset(err, lost)
		}
		blame = lost.Blames()
		err = httppool.ServerFailure(err)
	}
	failed := &httppool.Error{Endpoint: x.lease.Endpoint(), Step: step, Reused: x.result.Reused, Err: s.byKill(err)}
	if x.trace != nil {
		x.endTry(time.Now(), 0, reasonOf(failed))
	}
	switch {
	case x.retry == renewed:
	case blame:
		x.lease.Fail(failed)
	default:
		x.lease.Discard()
	}
	return failed
}
