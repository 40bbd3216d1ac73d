package httpproxy

import (
	"fmt"
	"time"

	"github.com/headpond/headpond/httpwire"
	"github.com/headpond/headpond/upstream"
)

// waited returns how long the server has had the whole request. known is false while part of the request is still to be
// sent, because that time is the client's, and after sending has failed.
func (s *session) waited() (waited time.Duration, known bool) {
	x := &s.ex
	since := x.sent
	if up := x.up; up != nil {
		at := up.at.Load()
		if at == 0 || !up.sent() {
			return 0, false
		}
		since = up.time(at)
	}
	return max(time.Since(since), 0), true
}

// measureAnswer measures the response whose head has arrived, for balancing and for the ejection of its endpoint.
func (s *session) measureAnswer() {
	x := &s.ex
	x.measured = true
	if !x.lease.Measures() {
		return
	}
	waited, known := s.waited()
	if !known {
		waited = upstream.Unmeasured
	}
	if x.lease.Answered(waited, httpwire.ServerFailed(s.resp.Status)) {
		x.lease.Blame(fmt.Errorf("status %d after %v", s.resp.Status, max(waited, 0).Round(time.Millisecond)))
	}
}

// measureSilence measures a try that ends without the head of a response. late says that a time-out of this server
// alone has ended it.
func (s *session) measureSilence(step string, late bool) {
	x := &s.ex
	if step != "receive" || x.measured || !x.lease.Measures() {
		return
	}
	if waited, known := s.waited(); known && x.lease.Unanswered(waited, late) {
		x.lease.Blame(fmt.Errorf("no answer within %v", waited.Round(time.Millisecond)))
	}
}
