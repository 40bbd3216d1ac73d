package httpproxy

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/headpond/headpond/httpwire"
	"github.com/headpond/headpond/pool/httppool"
	"github.com/headpond/headpond/traffic"
)

// Failure is a way in which a try of a request fails, for Retries.On.
type Failure string

// The failures after which a request can be sent again.
const (
	// FailedConnect: no connection to the endpoint could be opened.
	FailedConnect Failure = "connect"
	// FailedReset: the connection ended before the client had a byte of the answer.
	FailedReset Failure = "reset"
	// Failed502, Failed503 and Failed504: the backend answered with that status. Failed504 is also that
	// Retries.PerTryTimeout was over.
	Failed502 Failure = "502"
	Failed503 Failure = "503"
	Failed504 Failure = "504"
)

// Values lists all failures; it is the set of values that a configuration file may have.
func (Failure) Values() []string { return []string{"connect", "reset", "502", "503", "504"} }

// Defaults of Retries, used where a field is zero.
const (
	// DefaultAttempts sends a request to three endpoints at most: if these fail, others rarely do better.
	DefaultAttempts = 3
	// DefaultRetryBudget is in percent. With it a backend that fails gets at most a fifth more requests, not three times as many.
	DefaultRetryBudget = 20
)

// maxAttempts bounds Retries.Attempts.
const maxAttempts = 10

// Retries says which failed requests a route sends again, if possible to an endpoint that has not failed this request.
// The zero value has every default.
//
// A request whose connection the server had closed while it was idle is sent again by a separate rule, which Retries
// neither changes nor counts. A request is sent again only while the client has not got a byte of the final answer, and
// only if no more of its body was read than the part that arrived with its head.
type Retries struct {
	// On are the failures after which a request is sent again. nil = FailedConnect and FailedReset. FailedConnect applies
	// to all methods, as nothing was sent: every other endpoint is tried, whatever Attempts and Budget say.
	On []Failure
	// Methods are those of the requests that may be sent again although a server may have seen them. nil = the idempotent ones (GET,
	// HEAD, OPTIONS, TRACE, PUT, DELETE, and all with an Idempotency-Key field). Requests with other methods are sent
	// again after FailedReset if the socket had not taken a byte of them.
	Methods []string
	// Attempts is how often a request is sent at most, the first time included, up to 10. 0 = DefaultAttempts; 1 = it is sent once.
	Attempts int
	// PerTryTimeout bounds the wait for the answer's head to each try, within Route.ResponseTimeout, which bounds all
	// tries together. It requires Failed504. 0 = no further bound.
	PerTryTimeout time.Duration
	// Budget is how many requests may be sent again, in percent of all that the Proxy sent to the route's upstream in the
	// last ten seconds. Ten in ten seconds are always allowed. 0 = DefaultRetryBudget.
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
	case r.PerTryTimeout < 0:
		return errors.New("retries: negative time-out of a try")
	case r.PerTryTimeout > 0 && !slices.Contains(r.On, Failed504):
		return errors.New(`retries: a time-out of a try has no effect unless requests are sent again after "504"`)
	}
	return nil
}

// retryCause is a Failure that costs a try; the counts of a route follow their order.
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
	methods  []string // nil = idempotent ones
	attempts int
	perTry   time.Duration // 0 = no bound
	percent  int
}

func newRetryPolicy(r Retries) retryPolicy {
	if r.On == nil {
		r.On = []Failure{FailedConnect, FailedReset}
	}
	p := retryPolicy{
		connect: slices.Contains(r.On, FailedConnect), methods: r.Methods, attempts: r.Attempts, perTry: r.PerTryTimeout, percent: r.Budget,
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

// repeatable reports whether a request may be sent again that a server may have seen.
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
	renewed         // on a new connection, as the last one was stale; the lease is still held
	elsewhere       // to another endpoint; the lease has ended
)

// mayRetry reports whether the request, a try of which has just failed, is to be sent again. unseen says that no server can have seen
// it. It counts the retry, or that the budget does not allow it.
func (s *session) mayRetry(cause retryCause, unseen bool) bool {
	x := &s.ex
	t := x.target
	p := &t.retries
	if !p.on[cause] || x.tries+1 >= p.attempts || x.late() || !s.whole() || !unseen && !p.repeatable(&s.req) {
		return false
	}
	counts := t.traffic.Shard(int(s.shard))
	if !t.budget.take(time.Now(), p.percent) {
		counts.Add(retriesRefused, 1)
		return false
	}
	counts.Add(retriesOf+int(cause), 1)
	if x.first.IsZero() {
		x.first = x.sent
	}
	x.tries++
	return true
}

// afterReset is how the request, whose connection has ended before the client has got a byte of the answer, is sent again.
func (s *session) afterReset(err error) retry {
	s.ex.refused = errors.Is(err, errRefused)
	switch {
	case s.ex.refused:
		return s.afterRefusal()
	case errors.Is(err, errNotBegun) && s.whole(), s.stale() && !errors.Is(err, errServerReset):
		return renewed
	case s.mayRetry(causeReset, s.ex.lease.Value().Unsent(s.ex.written)):
		return elsewhere
	}
	return noRetry
}

// afterRefusal is how a request is sent again that an HTTP/2 server has refused. A server that refuses it again is overloaded: each further
// attempt takes from the retry budget.
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

// rejected reports whether the final response, of a status from 502 and with a head of n bytes in the server's buffer, is dropped and the
// request sent again. The connection can be used again if the response is all there.
func (s *session) rejected(n int) bool {
	x := &s.ex
	if s.resp.Status > 504 || x.up != nil || !s.mayRetry(cause502+retryCause(s.resp.Status-502), false) {
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

// tooSlow reports whether a try that has got no answer in time is to be followed by another.
func (s *session) tooSlow() bool {
	x := &s.ex
	t := x.target
	first := x.first
	if first.IsZero() {
		first = x.sent
	}
	return t.retries.perTry > 0 && (t.response == 0 || time.Since(first) < t.response) && s.mayRetry(cause504, false)
}

// responseLimit is how long the answer to this try may take, from when it was sent; 0 = for ever.
func (s *session) responseLimit() time.Duration {
	x := &s.ex
	limit := x.target.response
	if limit > 0 && !x.first.IsZero() {
		limit = max(limit-x.sent.Sub(x.first), 1)
	}
	if perTry := x.target.retries.perTry; perTry > 0 && (limit == 0 || perTry < limit) {
		return perTry
	}
	return limit
}

// tryElsewhere begins the next try. The lease of the last one has ended.
func (s *session) tryElsewhere() error {
	x := &s.ex
	s.measureTry(x.result.Status, time.Now())
	x.sent, x.result.Status, x.result.BytesIn = time.Time{}, 0, 0
	x.answered, x.leave = false, false
	x.avoid = append(x.avoid, x.result.Endpoint)
	return s.acquire()
}

// unusable continues after an endpoint has closed connections before they were used: nil means that another one is to
// be tried.
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

// Bounds of a budget.
const (
	budgetWindow = 10 * time.Second
	// budgetFloor is how many retries a window allows however few requests there are, so that they work at low rates.
	budgetFloor = 10
	// budgetCount is how often the requests are counted anew, which takes a look at the shards of each route.
	budgetCount = 100 * time.Millisecond
)

// budget bounds the retries of a Proxy to one upstream by its requests in a sliding window. It counts no request itself: the routes' traffic
// does, and a request pays nothing for it. All methods may be called from any goroutine.
type budget struct {
	mu      sync.Mutex // held for a few hundred instructions
	cells   []*traffic.Cell
	counted time.Time // when requests was read
	total   uint64    // requests that have ended until then

	began    time.Time // of the present window
	before   uint64    // total when it began
	retries  int       // in it
	requests float64   // in the window before
	earlier  float64   // retries in the window before
}

// watch adds a route whose requests count.
func (b *budget) watch(c *traffic.Cell) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.Contains(b.cells, c) {
		b.cells = append(b.cells, c)
		b.before += requestsOf(c) // which were not to this upstream's routes, or long ago
		b.counted = time.Time{}
	}
}

// take reports whether one more request may be sent again, and counts it.
func (b *budget) take(now time.Time, percent int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now.Sub(b.counted) >= budgetCount {
		b.counted, b.total = now, 0
		for _, c := range b.cells {
			b.total += requestsOf(c)
		}
	}
	b.slide(now)
	share := 1 - float64(now.Sub(b.began))/float64(budgetWindow) // of the window before that is in the last ten seconds
	requests := float64(b.total-b.before) + share*b.requests
	if float64(b.retries)+share*b.earlier+1 > max(budgetFloor, requests*float64(percent)/100) {
		return false
	}
	b.retries++
	return true
}

// slide begins a new window if the present one is over.
func (b *budget) slide(now time.Time) {
	if b.began.IsZero() {
		b.began = now
	}
	elapsed := now.Sub(b.began)
	if elapsed < budgetWindow {
		return
	}
	b.requests = float64(b.total-b.before) * float64(budgetWindow) / float64(elapsed)
	b.earlier, b.began = float64(b.retries), b.began.Add(budgetWindow)
	if elapsed >= 2*budgetWindow { // every retry was in the first of these windows
		b.earlier, b.began = 0, now
	}
	b.before, b.retries = b.total, 0
}

// requestsOf is how many requests a route has answered.
func requestsOf(c *traffic.Cell) (n uint64) {
	for class := range statusClasses {
		n += c.Total(class)
	}
	return n
}
