package httpproxy

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/headpond/headpond/httpwire"
	"github.com/headpond/headpond/internal/retrybudget"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/pool/httppool"
	"github.com/headpond/headpond/traffic"
	"github.com/headpond/headpond/upstream"
)

// Failure is a kind of failure of a request's try, for Retries.On.
type Failure string

// The failures after which a request can be sent again.
const (
	// FailedConnect: no connection to the endpoint could be opened.
	FailedConnect Failure = "connect"
	// FailedReset: the connection ended before the client got a byte of the answer.
	FailedReset Failure = "reset"
	// Failed502, Failed503 and Failed504: the backend answered with that status. Failed504 also stands for the end of
	// Retries.PerTryTimeout.
	Failed502 Failure = "502"
	Failed503 Failure = "503"
	Failed504 Failure = "504"
)

// Values lists all failures, which are the values allowed in a configuration file.
func (Failure) Values() []string { return []string{"connect", "reset", "502", "503", "504"} }

// Defaults of Retries, used where a field is zero.
const (
	// DefaultAttempts sends a request to at most three endpoints: if these fail, others rarely do better.
	DefaultAttempts = 3
	// DefaultRetryBudget is in percent. It limits the load on a failing backend to a fifth more requests, instead of
	// three times as many.
	DefaultRetryBudget = 20
)

// maxAttempts bounds Retries.Attempts.
const maxAttempts = 10

// MaxRetryPause bounds the pause before each retry.
const MaxRetryPause = 10 * time.Second

// Retries says which failed requests a route sends again, if possible to an endpoint that has not failed this request.
// The zero value has every default.
//
// A request on a connection that the server had closed while it was idle is sent again by a separate rule, which
// Retries neither changes nor counts. A request is sent again only while the client has got no byte of the final
// answer, and only if all that was read of its body is still held: the part that arrived with its head, and up to 64
// KiB after it.
type Retries struct {
	// On lists the failures after which a request is sent again. nil = FailedConnect and FailedReset. FailedConnect
	// applies to all methods, because nothing was sent: all other endpoints are tried, whatever Attempts and Budget
	// say.
	On []Failure
	// Methods lists the methods of requests that may be sent again although a server may have seen them. nil = the
	// idempotent ones (GET, HEAD, OPTIONS, TRACE, PUT, DELETE, and every method with an Idempotency-Key field). A
	// request with another method is sent again after FailedReset if the socket had not accepted a byte of it.
	Methods []string
	// Attempts is how often a request is sent at most, the first time included, up to 10. 0 = DefaultAttempts; 1 =
	// once.
	Attempts int
	// PerTryTimeout bounds the wait of each try for the answer's head. Route.ResponseTimeout still bounds the waits of
	// all tries together. It requires Failed504. 0 = no bound.
	PerTryTimeout time.Duration
	// Pause is the time to wait before a request is sent again, to any endpoint. It doubles each time, up to
	// MaxRetryPause, and is shortened by a random part of up to a half, so that many requests do not come back
	// together. It does not count for Route.ResponseTimeout. A request is not sent again if Route.Timeout or the
	// client's own deadline could end during the pause. 0 = none.
	Pause time.Duration
	// Budget is how many requests may be sent again, in percent of all requests that the Proxy sent to the route's
	// upstream in the last ten seconds. Ten in ten seconds are always allowed. 0 = DefaultRetryBudget.
	Budget int
}

func (r Retries) verify() error {
	for _, f := range r.On {
		if !slices.Contains(f.Values(), string(f)) {
			return fmt.Errorf("retries: there is no failure %q", f)
		}
	}
	for _, m := range r.Methods {
		if !httpwire.ValidToken(m) {
			return fmt.Errorf("retries: the method %q is not a token", m)
		}
	}
	switch {
	case r.Attempts < 0 || r.Attempts > maxAttempts:
		return fmt.Errorf("retries: %d attempts; want 1 to %d", r.Attempts, maxAttempts)
	case r.Budget < 0 || r.Budget > 100:
		return fmt.Errorf("retries: a budget of %d percent", r.Budget)
	case r.Pause < 0 || r.Pause > MaxRetryPause:
		return fmt.Errorf("retries: a pause of %v; want up to %v", r.Pause, MaxRetryPause)
	case r.PerTryTimeout < 0:
		return errors.New("retries: negative time-out of a try")
	case r.PerTryTimeout > 0 && !slices.Contains(r.On, Failed504):
		return errors.New(`retries: a time-out of a try has no effect unless requests are sent again after "504"`)
	}
	return nil
}

// retryCause is a Failure that counts as a try; a route's counters have the same order.
type retryCause uint8

const (
	causeReset retryCause = iota
	cause502
	cause503
	cause504
	retryCauses
)

var causeNames = [retryCauses]Failure{FailedReset, Failed502, Failed503, Failed504}

// retryPolicy is Retries ready to use.
type retryPolicy struct {
	connect  bool
	on       [retryCauses]bool
	methods  []string // nil = the idempotent ones
	attempts int
	perTry   time.Duration // 0 = no bound
	pause    time.Duration // 0 = none
	percent  int
}

func newRetryPolicy(r Retries) retryPolicy {
	if r.On == nil {
		r.On = []Failure{FailedConnect, FailedReset}
	}
	p := retryPolicy{
		connect: slices.Contains(r.On, FailedConnect), methods: r.Methods, attempts: r.Attempts, perTry: r.PerTryTimeout, pause: r.Pause, percent: r.Budget,
	}
	for cause, name := range causeNames {
		p.on[cause] = slices.Contains(r.On, name)
	}
	if p.attempts == 0 {
		p.attempts = DefaultAttempts
	}
	if p.percent == 0 {
		p.percent = DefaultRetryBudget
	}
	return p
}

// repeatable reports whether a request may be sent again although a server may have seen it.
func (p *retryPolicy) repeatable(r *httpwire.Request) bool {
	if p.methods == nil {
		return r.Idempotent()
	}
	return slices.Contains(p.methods, view(r.Method))
}

// retry is how a request is sent again.
type retry uint8

const (
	noRetry   retry = iota
	renewed         // on a new connection to the endpoint, as the last one was stale; the lease is still held
	elsewhere       // to another endpoint; the lease has ended
)

// mayRetry reports whether a request whose try has just failed is sent again. unseen says that no server can have seen
// the request. mayRetry counts the retry, or its refusal by the budget.
func (s *session) mayRetry(cause retryCause, unseen bool) bool {
	x := &s.ex
	t := x.target
	p := &t.retries
	if !p.on[cause] || x.tries+1 >= p.attempts || !s.whole() || !unseen && !p.repeatable(&s.req) {
		return false
	}
	if s.outOfTime() {
		return false
	}
	counts := t.traffic.Shard(int(s.shard))
	if !t.budget.take(time.Now(), p.percent) {
		counts.Add(retriesRefused, 1)
		return false
	}
	counts.Add(retriesOf+int(cause), 1)
	x.tries++
	return true
}

// outOfTime reports whether the request's time has passed, or would pass in the next pause. Then the client gets the
// answer of the last try.
func (s *session) outOfTime() bool {
	x := &s.ex
	if !x.until.IsZero() && !time.Now().Add(s.nextPause()).Before(x.until) {
		return true
	}
	return x.target.response > 0 && s.spent() >= x.target.response
}

// spent returns how long this try and earlier ones have waited for answers.
func (s *session) spent() time.Duration {
	if s.ex.sent.IsZero() {
		return s.ex.spent
	}
	waited, _ := s.waited()
	return s.ex.spent + waited
}

// nextPause returns the longest possible pause before the next try.
func (s *session) nextPause() time.Duration {
	p := s.ex.target.retries.pause
	return min(p<<s.ex.pauses, MaxRetryPause)
}

// afterReset returns how to send a request again whose connection ended before the client got a byte of the answer.
func (s *session) afterReset(err error, lost httpwire.Lost) retry {
	s.ex.refused = errors.Is(err, errRefused)
	switch {
	case s.ex.refused:
		return s.afterRefusal()
	case lost.Stale():
		return renewed
	case s.mayRetry(causeReset, lost.Unsent):
		return elsewhere
	}
	return noRetry
}

// afterRefusal returns how to send a request again that an HTTP/2 server has refused. A server that refuses it twice is
// overloaded: further attempts count for the retry budget.
func (s *session) afterRefusal() retry {
	x := &s.ex
	t := x.target
	x.refusals++
	switch {
	case !s.whole():
		return noRetry
	case x.refusals > 1 && !t.budget.take(time.Now(), t.retries.percent):
		t.traffic.Shard(int(s.shard)).Add(retriesRefused, 1)
		return noRetry
	}
	return renewed
}

// rejected reports whether the final response, with a status from 502 and a head of n bytes in the server's buffer, is
// dropped and the request sent again. The connection stays usable if the whole response has arrived.
func (s *session) rejected(n int) bool {
	x := &s.ex
	if s.resp.Status > 504 {
		return false
	}
	cause := cause502 + retryCause(s.resp.Status-502)
	if !x.target.retries.on[cause] || !s.sentWhole() || !s.mayRetry(cause, false) {
		return false
	}
	s.server.take(n)
	if length := s.resp.Length; length >= 0 && length <= int64(len(s.server.bytes())) {
		s.server.take(int(length))
	} else {
		s.resp.Reusable = false
	}
	x.result.Status = s.resp.Status
	x.retry = elsewhere
	return true
}

// sentWhole reports whether the whole request has been sent. If the answer came before the write of the last bytes has
// returned, it waits for that write.
func (s *session) sentWhole() bool {
	up := s.ex.up
	if up == nil {
		return true
	}
	if up.state.Load() == uploadLast {
		up.writeUntil(s.server.conn, time.Now().Add(lastWrite))
		up.finished.Wait()
	}
	return up.sent()
}

// tooSlow reports whether a try that got no answer in time is followed by another.
func (s *session) tooSlow() bool {
	return s.ex.target.retries.perTry > 0 && s.mayRetry(cause504, false)
}

// responseLimit returns how long the answer to this try may take from when the request was sent; 0 = no limit.
func (s *session) responseLimit() time.Duration {
	x := &s.ex
	limit := x.target.response
	if limit > 0 {
		limit = max(limit-x.spent, 1)
	}
	if perTry := x.target.retries.perTry; perTry > 0 && (limit == 0 || perTry < limit) {
		return perTry
	}
	return limit
}

// hadEnoughTime reports whether this try had at least half of the time that a first try has. Then the time-out counts as
// the endpoint's failure.
func (s *session) hadEnoughTime() bool {
	t := s.ex.target
	full := t.response
	if perTry := t.retries.perTry; perTry > 0 && (full == 0 || perTry < full) {
		full = perTry
	}
	return httpwire.HadItsTime(s.responseLimit(), full)
}

// tryElsewhere begins the next try. The lease of the last one has ended, and spent includes its time.
func (s *session) tryElsewhere() error {
	x := &s.ex
	s.measureTry(x.result.Status, time.Now())
	x.sent, x.result.Status, x.result.BytesIn = time.Time{}, 0, 0
	x.answered, x.serverContinues, x.measured = false, false, false
	x.avoid = append(x.avoid, x.result.Endpoint)
	if p := s.nextPause(); p > 0 {
		x.pauses++
		if err := s.pauseFor(p); err != nil {
			return err
		}
	}
	return s.acquire()
}

// renew replaces a stale connection.
func (s *session) renew() error {
	x := &s.ex
	if s.clientHasLeft() {
		x.lease.Discard()
		return httppool.ErrClientGone
	}
	ctx := s.leasing()
	if !x.until.IsZero() {
		bounded, cancel := context.WithDeadline(ctx, x.until)
		defer cancel()
		ctx = bounded
	}
	replace := x.stale.Renew
	if x.refused {
		replace = x.stale.Refused
	}
	renewed, err := s.reopen(ctx, x.lease, replace)
	switch {
	case err != nil:
		return err
	case renewed:
		return s.hold(x.lease)
	}
	x.avoid = append(x.avoid, x.result.Endpoint)
	return s.acquire()
}

// reopen calls replace, a method of httppool.Stale, to open the connection of a lease anew within the route's
// ConnectTimeout. false without an error means: try another endpoint.
func (s *session) reopen(ctx context.Context, l upstream.Lease[*httppool.Conn], replace func(context.Context, httppool.Lease) (bool, error)) (renewed bool, err error) {
	wait := s.ex.target.route.ConnectTimeout
	if wait == 0 {
		return replace(ctx, l)
	}
	within, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	renewed, err = replace(within, l)
	if err != nil && within.Err() != nil && ctx.Err() == nil {
		return false, nil // replace has ended the lease
	}
	return renewed, err
}

// pauseFor waits for a random time between d/2 and d. It returns early with an error when the client has gone or the
// exchange is cut off.
func (s *session) pauseFor(d time.Duration) error {
	ctx, cancel := context.WithTimeout(s.leasing(), d-rand.N(d/2+1))
	defer cancel()
	switch err := pool.ParkerOf(ctx).Park(ctx); {
	case s.ctx.Err() != nil:
		return context.Cause(s.ctx)
	case errors.Is(err, httppool.ErrClientGone):
		return err
	}
	return nil
}

// unusable handles an endpoint that closes connections before they are used. nil means: try another endpoint.
func (s *session) unusable(err error) error {
	x := &s.ex
	if failed, ok := errors.AsType[*httppool.Error](err); ok && failed.Endpoint != "" {
		x.avoid = append(x.avoid, failed.Endpoint)
	}
	if !x.target.route.Upstream.Others(x.avoid) || !s.mayRetry(causeReset, true) {
		return err
	}
	x.stale = httppool.Stale{}
	x.result.Retries++
	return nil
}

// budgetWindow: see Retries.Budget.
const budgetWindow = 10 * time.Second

// budgetCount is how often the requests are counted, which reads the counter shards of each route.
const budgetCount = 100 * time.Millisecond

// budget bounds the retries of a Proxy to one upstream in proportion to its requests. It reads the counters of the
// routes' traffic, so that requests themselves cost nothing. Methods may be called from any goroutine.
type budget struct {
	retries *retrybudget.Budget

	mu      sync.Mutex // held for a few hundred instructions
	cells   []*traffic.Cell
	others  uint64    // requests in the cells that do not count here
	counted time.Time // when total was read
	total   uint64    // requests that had ended by then
}

func newBudget(now time.Time) *budget { return &budget{retries: retrybudget.New(budgetWindow, now)} }

// watch adds a route whose requests count.
func (b *budget) watch(c *traffic.Cell) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.Contains(b.cells, c) {
		b.cells = append(b.cells, c)
		b.others += requestsOf(c) // to other upstreams, or long ago
		b.counted = time.Time{}
	}
}

// take reports whether one more request may be sent again, and counts it.
func (b *budget) take(now time.Time, percent int) bool {
	return b.retries.Take(now, b.requests(now), percent)
}

// requests returns how many requests have ended, as of at most budgetCount ago.
func (b *budget) requests(now time.Time) uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now.Sub(b.counted) >= budgetCount {
		b.counted, b.total = now, -b.others
		for _, c := range b.cells {
			b.total += requestsOf(c)
		}
	}
	return b.total
}

// requestsOf returns how many requests a route has answered.
func requestsOf(c *traffic.Cell) (n uint64) {
	for class := range statusClasses {
		n += c.Total(class)
	}
	return n
}

// attempts sends the request and passes the response on. It repeats this while connections are stale or the route's
// Retries allow it.
func (s *session) attempts() error {
	x := &s.ex
	var err error
	if !x.ahead.sent {
		err = s.acquire()
	}
	if err == nil {
		err = s.exchange(s.sendAndReceive)
	}
	return s.tryAgain(err)
}

// tryAgain repeats tries like the one that had the outcome err.
func (s *session) tryAgain(err error) error {
	x := &s.ex
	for x.retry != noRetry {
		how := x.retry
		x.retry = noRetry
		x.result.Retries++
		if how == elsewhere {
			x.spent = s.spent() // read it while x.up still knows when the server had the whole request
		}
		if x.up != nil {
			x.up.in.drop()
			_ = s.client.conn.SetReadDeadline(time.Time{}) // endUpload's: a check of the client would take it for the client's end
			x.up, x.close = nil, s.closesAfter()
		}
		if how == renewed {
			err = s.renew()
		} else {
			err = s.tryElsewhere()
		}
		if err == nil {
			err = s.exchange(s.sendAndReceive)
		}
	}
	return err
}
