package httpproxy

import (
	"cmp"
	"net/http"
	"slices"
	"time"

	"github.com/headpond/headpond/traffic"
)

// Counts of requests: by the first digit of the status; 0 is for those that got no answer.
const statusClasses = 6

// Counts of a route that an endpoint does not have.
const (
	retriesOf      = statusClasses // the first of one for each retryCause
	retriesRefused = retriesOf + int(retryCauses)

	affinityKnown   = retriesRefused + 1  // of requests to a route with Affinity: those that have a key,
	affinitySet     = affinityKnown + 1   // get one with the answer,
	affinityMissing = affinitySet + 1     // have none
	rateLimited     = affinityMissing + 1 // that RateLimit has refused
	compressedBy    = rateLimited + 1     // answers, by the index of the encoding,
	compressedFrom  = compressedBy + 2    // the bytes of their content before
	compressedTo    = compressedFrom + 1  // and after
	compressionBusy = compressedTo + 1    // that were not, because too many compressors were in use
	routeCounts     = compressionBusy + 1
)

// Timings of a route. An endpoint has the first one.
const (
	requestTime = iota // of a route from the request's head to the response's end; of an endpoint from when it was sent
	waitTime           // until it was sent
	routeTimings
	endpointTimings = waitTime
)

// maxRoutes bounds the routes that are counted by name. It is for gateways whose configuration is changed for ever: a route that was
// removed keeps its counts.
const maxRoutes = 1000

var routeTraffic = &traffic.Schema{
	Labels: []string{"route", "upstream"}, Limit: maxRoutes, Counts: routeCounts, Timings: routeTimings,
	Views: []traffic.View{{
		Labels: []string{"route", "upstream"},
		Counters: slices.Concat(byStatus("http_requests_total",
			"Requests of clients, by the class of the answer's status; none: there was no answer. Without a route: refused."), retryCounters(), affinityCounters(), rateCounters(), compressionCounters()),
		Histograms: []traffic.Timer{
			{Name: "http_request_seconds", Help: "Time from a request's head to the end of the response.", Read: traffic.Time(requestTime)},
			{Name: "http_request_wait_seconds", Help: "The part of it until the request was sent to an upstream.", Read: traffic.Time(waitTime)},
		},
	}},
	Summary: &traffic.Summary{Unit: "requests", Done: answers, Failed: failures, Time: traffic.Time(requestTime)},
}

func answers(r *traffic.Row) (n float64) {
	for _, c := range r.Counts[:statusClasses] { // behind them retries are counted
		n += float64(c)
	}
	return n
}

// failures are requests without an answer, and those with a status of 500 or more.
func failures(r *traffic.Row) float64 {
	return float64(r.Counts[classOf(0)] + r.Counts[classOf(http.StatusInternalServerError)])
}

// Counts of an endpoint that a route does not have: of HTTP/2.
const (
	connsOpened = statusClasses + iota
	connsClosed
	connsLeft      // by GOAWAY
	streamsRefused // by REFUSED_STREAM
	endpointCounts
)

var endpointTraffic = &traffic.Schema{
	Counts: endpointCounts, Timings: endpointTimings,
	Views: []traffic.View{{
		Counters: append(byStatus("http_upstream_requests_total",
			"Requests sent to an endpoint, by the class of its answer's status; none: there was no whole answer."), connCounters()...),
		Histograms: []traffic.Timer{
			{Name: "http_upstream_request_seconds", Help: "Time from sending a request to the end of the response.", Read: traffic.Time(requestTime)},
		},
	}},
}

func connCounters() []traffic.Counter {
	list := []traffic.Counter{
		{Name: "http_upstream_connections_opened_total", Help: "HTTP/2 connections to an endpoint on which requests were sent."},
		{Name: "http_upstream_connections_closed_total", Help: "Those of them that are closed."},
		{Name: "http_upstream_goaways_total", Help: "HTTP/2 connections on which the server told us to send no more requests (GOAWAY)."},
		{Name: "http_upstream_refused_streams_total", Help: "Requests that the server gave back unread (REFUSED_STREAM)."},
	}
	for i := range list {
		list[i].Read = traffic.Count(connsOpened + i)
	}
	return list
}

// label is a route's name in counters: its host and path, "=" before an exact path, "~" before an expression. It leaves
// conditions out, because they may hold secrets.
func (r Route) label() string {
	return r.Host + [...]string{PathPrefix: "", PathExact: "=", PathRegexp: "~"}[r.PathMatch] + cmp.Or(r.Path, "/")
}

func byStatus(name, help string) []traffic.Counter {
	list := make([]traffic.Counter, statusClasses)
	for i, class := range [statusClasses]string{"none", "1xx", "2xx", "3xx", "4xx", "5xx"} {
		list[i] = traffic.Counter{Name: name, Help: help, Label: "code", Value: class, Read: traffic.Count(i), Sparse: class == "1xx"}
	}
	return list
}

// classOf is the count of a status.
func classOf(status int) int {
	if class := status / 100; class > 0 && class < statusClasses {
		return class
	}
	return 0
}

func retryCounters() []traffic.Counter {
	list := make([]traffic.Counter, retryCauses, retryCauses+1)
	for cause, name := range causeNames {
		list[cause] = traffic.Counter{
			Name: "http_retries_total", Help: "Requests sent to another endpoint after a failure, by what it was.",
			Label: "failure", Value: string(name), Read: traffic.Count(retriesOf + cause), Sparse: cause > int(causeReset),
		}
	}
	return append(list, traffic.Counter{
		Name: "http_retries_refused_total", Help: "Requests that would have been sent again, had the budget for retries allowed it.",
		Read: traffic.Count(retriesRefused),
	})
}

func affinityCounters() (list []traffic.Counter) {
	for i, name := range []string{"found", "set", "missing"} {
		list = append(list, traffic.Counter{
			Name: "http_affinity_total", Help: "Requests to a route with affinity: whether they have the key, get it with the answer (a cookie), or lack it.",
			Label: "key", Value: name, Read: traffic.Count(affinityKnown + i), Sparse: i > 0,
		})
	}
	return list
}

func rateCounters() []traffic.Counter {
	return []traffic.Counter{{
		Name: "http_rate_limited_total", Help: "Requests that were refused by the rate limit of the route.", Read: traffic.Count(rateLimited),
	}}
}

func compressionCounters() []traffic.Counter {
	const answers, bytes = "Answers that were compressed.", "Bytes of answers that were compressed, before and after that."
	return []traffic.Counter{
		{Name: "http_compressed_total", Help: answers, Label: "encoding", Value: "gzip", Read: traffic.Count(compressedBy)},
		{Name: "http_compressed_total", Help: answers, Label: "encoding", Value: "zstd", Read: traffic.Count(compressedBy + 1)},
		{Name: "http_compressed_bytes_total", Help: bytes, Label: "side", Value: "before", Read: traffic.Count(compressedFrom)},
		{Name: "http_compressed_bytes_total", Help: bytes, Label: "side", Value: "after", Read: traffic.Count(compressedTo)},
		{Name: "http_compression_busy_total", Help: "Answers that passed as they are because too many others were being compressed.", Read: traffic.Count(compressionBusy)},
	}
}

// measure counts the request that has ended.
func (s *session) measure(err error) {
	x := &s.ex
	s.ended = time.Now()
	route := x.target.traffic.Shard(int(s.shard))
	route.Add(classOf(x.result.Status), 1)
	if !x.upgraded { // bytes after an upgrade are no part of the request
		route.Observe(requestTime, s.ended.Sub(s.now))
	}
	if x.sent.IsZero() {
		return
	}
	route.Observe(waitTime, x.sent.Sub(s.now))
	status := x.result.Status
	if err != nil {
		status = 0
	}
	s.measureTry(status, s.ended)
}

// measureTry counts for its endpoint that the request, sent on the present lease, or the last one, has been answered or has failed (status 0).
func (s *session) measureTry(status int, ended time.Time) {
	x := &s.ex
	x.endTry(ended, status, "")
	cell := x.lease.Traffic()
	if cell == nil { // none of NewUpstream's
		return
	}
	endpoint := cell.Shard(int(s.shard))
	endpoint.Add(classOf(status), 1)
	if !x.upgraded {
		endpoint.Observe(requestTime, ended.Sub(x.sent))
	}
}

// countRefused counts a request that no upstream sees.
func (p *Proxy) countRefused(status int) {
	p.unrouted.Shard(traffic.ShardOf(0)).Add(classOf(status), 1)
}
