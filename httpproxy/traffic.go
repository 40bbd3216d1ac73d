package httpproxy

import (
	"cmp"
	"net/http"
	"slices"
	"time"

	"github.com/headpond/headpond/httpwire"
	"github.com/headpond/headpond/traffic"
)

// Counts of requests by the first digit of the status; 0 counts requests without an answer.
const statusClasses = 6

// Counts of a route that an endpoint does not have.
const (
	retriesOf      = statusClasses // the first of several, one for each retryCause
	retriesRefused = retriesOf + int(retryCauses)

	affinityKnown   = retriesRefused + 1  // requests to a route with Affinity that have a key
	affinitySet     = affinityKnown + 1   // requests that get a key with the answer
	affinityMissing = affinitySet + 1     // requests without a key
	rateLimited     = affinityMissing + 1 // requests that RateLimit has refused
	tokenLimited    = rateLimited + 1     // requests that a TokenLimit has refused
	compressedBy    = tokenLimited + 1    // answers, by the index of the encoding
	compressedFrom  = compressedBy + 2    // bytes of their content before compression
	compressedTo    = compressedFrom + 1  // and after it
	compressionBusy = compressedTo + 1    // answers not compressed because too many compressors were in use
	mirrorSent      = compressionBusy + 1 // copies for a Mirror that were answered
	mirrorFailed    = mirrorSent + 1      // that were not
	mirrorDropped   = mirrorFailed + 1    // that were not sent, because too many were under way
	mirrorTooLarge  = mirrorDropped + 1   // that were not sent, because of the body
	routeCounts     = mirrorTooLarge + 1
)

// Timings. A route has both, an endpoint the first.
const (
	requestTime = iota // of a route from the request's head to the response's end; of an endpoint from when the request was sent
	waitTime           // until the request was sent
	routeTimings
	endpointTimings = waitTime
)

// maxRoutes bounds the routes that are counted by name, for gateways whose configuration changes again and again:
// removed routes keep their counters.
const maxRoutes = 1000

var routeTraffic = &traffic.Schema{
	Labels: []string{"route", "upstream"}, Limit: maxRoutes, Counts: routeCounts, Timings: routeTimings,
	Views: []traffic.View{{
		Labels: []string{"route", "upstream"},
		Counters: slices.Concat(byStatus("http_requests_total",
			"Requests of clients, by the class of the answer's status; none: there was no answer. Without a route: refused."), retryCounters(), affinityCounters(), rateCounters(), compressionCounters(), mirrorCounters()),
		Histograms: []traffic.Timer{
			{Name: "http_request_seconds", Help: "Time from a request's head to the end of the response.", Read: traffic.Time(requestTime)},
			{Name: "http_request_wait_seconds", Help: "The part of it until the request was sent to an upstream.", Read: traffic.Time(waitTime)},
		},
	}},
	Summary: &traffic.Summary{Unit: "requests", Done: answers, Failed: failures, Time: traffic.Time(requestTime)},
}

func answers(r *traffic.Row) (n float64) {
	for _, c := range r.Counts[:statusClasses] { // the counts after these are of retries
		n += float64(c)
	}
	return n
}

// failures returns the number of requests without an answer, or with a status of 500 or more.
func failures(r *traffic.Row) float64 {
	return float64(r.Counts[classOf(0)] + r.Counts[classOf(http.StatusInternalServerError)])
}

// Counts of an endpoint that a route does not have; those of connections and streams are about HTTP/2.
const (
	connsOpened = statusClasses + iota
	connsClosed
	connsLeft      // ended by GOAWAY
	streamsRefused // ended by REFUSED_STREAM
	serversOwn     // answers with a status that is a server's failure, see httpwire.ServerFailed
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
	Summary: &traffic.Summary{
		Unit: "requests", Done: answers, Failed: traffic.Count(serversOwn), Time: traffic.Time(requestTime),
		Failure: "were answered with a status of 500 or more", Tolerated: toleratedErrors,
	},
}

// toleratedErrors is the share of answers with a status of 500 or more that an endpoint may have: some URLs always cause one.
const toleratedErrors = 0.05

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

// label returns a route's name in metrics: its host and path, with "=" before an exact path and "~" before an
// expression. Conditions are left out, because they may hold secrets.
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

// classOf returns the index of the count for a status.
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
	}, {
		Name: "http_token_limited_total", Help: "Requests that were refused by a limit of tokens of the route.", Read: traffic.Count(tokenLimited),
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

func mirrorCounters() (list []traffic.Counter) {
	for i, result := range []string{"sent", "failed", "dropped", "too_large"} {
		list = append(list, traffic.Counter{
			Name: "http_mirrored_total", Help: "Copies of requests for a mirror: answered, not answered, not sent because too many were under way, or because of their size.",
			Label: "result", Value: result, Read: traffic.Count(mirrorSent + i),
		})
	}
	return list
}

// measure counts the request, which has ended.
func (s *session) measure(err error) {
	x := &s.ex
	s.ended = time.Now()
	if x.tokens != nil {
		s.countTokens(err)
	}
	route := x.target.traffic.Shard(int(s.shard))
	route.Add(classOf(x.result.Status), 1)
	if !x.upgraded { // after an upgrade the bytes do not belong to the request
		route.Observe(requestTime, s.ended.Sub(s.now))
	}
	if x.sent.IsZero() {
		return
	}
	route.Observe(waitTime, max(x.sent.Sub(s.now), 0))
	status := x.result.Status
	if err != nil {
		status = 0
	}
	s.measureTry(status, s.ended)
}

// measureTry counts an answered or failed (status 0) try, for the endpoint of the current or last lease.
func (s *session) measureTry(status int, ended time.Time) {
	x := &s.ex
	x.endTry(ended, status, "")
	cell := x.lease.Traffic()
	if cell == nil { // the upstream was not made by NewUpstream
		return
	}
	endpoint := cell.Shard(int(s.shard))
	endpoint.Add(classOf(status), 1)
	if httpwire.ServerFailed(status) {
		endpoint.Add(serversOwn, 1)
	}
	if !x.upgraded {
		endpoint.Observe(requestTime, ended.Sub(x.sent))
	}
}

// countRefused counts a request that goes to no upstream.
func (p *Proxy) countRefused(status int) {
	p.unrouted.Shard(traffic.ShardOf(0)).Add(classOf(status), 1)
}
