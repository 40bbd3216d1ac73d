package protocols

import (
	"cmp"
	"slices"
	"time"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/httpproxy"
)

// Retries says which failed requests are sent again; see httpproxy.Retries.
type Retries struct {
	On            []httpproxy.Failure `conf:"on" required:"checked" maxlen:"5"`                                // never empty when read from a file
	Methods       []Method            `conf:"methods" required:"checked" maxlen:"20"`                          // empty: the idempotent methods
	Attempts      int                 `conf:"attempts" default:"3" min:"1" max:"10"`                           // the first one included
	PerTryTimeout time.Duration       `conf:"per_try_timeout" default:"never" min:"1ms" max:"168h" never:"0s"` // from a try to the response's header
	Pause         time.Duration       `conf:"pause" default:"0s" min:"0s" max:"10s"`                           // before a request is sent again, doubled each time
	Budget        int                 `conf:"budget" default:"20" min:"1" max:"100"`                           // percent of the requests
}

// Method is one of HTTP's.
type Method string

// Values implements config.Enum.
func (Method) Values() []string {
	return []string{"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE", "POST", "PATCH", "PROPFIND", "QUERY", "REPORT", "SEARCH"}
}

// setLists fills in the lists that were not written.
func (r *Retries) setLists() {
	if len(r.On) == 0 {
		r.On = []httpproxy.Failure{httpproxy.FailedConnect, httpproxy.FailedReset}
	}
}

// settings returns the proxy's form.
func (r *Retries) settings() httpproxy.Retries {
	if r == nil { // of a configuration that was not read from a file
		return httpproxy.Retries{}
	}
	s := httpproxy.Retries{On: r.On, Attempts: r.Attempts, PerTryTimeout: r.PerTryTimeout, Pause: r.Pause, Budget: r.Budget}
	for _, m := range r.Methods {
		s.Methods = append(s.Methods, string(m))
	}
	return s
}

// checkPause refuses a pause after which no request of the route could be retried in time. all is the listener's
// policy.
func checkPause(c *config.Checker, r *Route, all *Retries) {
	own := r.Retries
	used := cmp.Or(own, all)
	if used == nil || used.Pause == 0 || r.RequestTimeout == 0 || used.Pause < r.RequestTimeout || !c.NoProblemAt(&used.Pause, &r.RequestTimeout) {
		return
	}
	at := c.Mark(&r.RequestTimeout)
	if own != nil {
		at = c.Mark(&own.Pause)
	}
	c.Report(at, "pause: a request is never sent again, as its request_timeout: %v is over before the pause: %v can be", r.RequestTimeout, used.Pause)
}

func checkRetries(c *config.Checker, r *Retries) {
	if r == nil || r.PerTryTimeout == 0 || slices.Contains(r.On, httpproxy.Failed504) || !c.NoProblemAt(&r.On, &r.PerTryTimeout) {
		return
	}
	c.Report(c.Mark(&r.PerTryTimeout), "per_try_timeout: a try that takes too long is a failure of the kind 504; add it to \"on\", as in on: [connect, reset, 504]")
}
