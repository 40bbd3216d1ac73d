package top

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/headpond/headpond/gateway/admin"
)

// status is an answer of /api/v1/status.
type status struct {
	admin.Status
	endpoints []endpoint
	// By name; of endpoints by upstream and address.
	byListener map[string]*admin.Listener
	byUpstream map[string]*admin.UpstreamStatus
	byEndpoint map[[2]string]*endpoint
}

// endpoint is an endpoint with all members that the gateway has sent, those that this program does not know among them.
type endpoint struct {
	upstream string
	admin.Endpoint
	members map[string]any
}

// parseStatus parses an answer.
func parseStatus(body []byte) (*status, error) {
	s := &status{byListener: map[string]*admin.Listener{}, byUpstream: map[string]*admin.UpstreamStatus{}, byEndpoint: map[[2]string]*endpoint{}}
	if err := json.Unmarshal(body, &s.Status); err != nil {
		return nil, fmt.Errorf("the answer is not a gateway's status: %w", err)
	}
	var all struct {
		Upstreams []struct{ Endpoints []map[string]any }
	}
	_ = json.Unmarshal(body, &all) // no error: it has been parsed above
	for i := range s.Upstreams {
		u := &s.Upstreams[i]
		s.byUpstream[u.Name] = u
		for j, e := range u.Endpoints {
			s.endpoints = append(s.endpoints, endpoint{u.Name, e, all.Upstreams[i].Endpoints[j]})
		}
	}
	for i := range s.endpoints {
		s.byEndpoint[[2]string{s.endpoints[i].upstream, s.endpoints[i].Address}] = &s.endpoints[i]
	}
	for i := range s.Listeners {
		s.byListener[s.Listeners[i].Name] = &s.Listeners[i]
	}
	return s, nil
}

// now is the gateway's time of the answer.
func (s *status) now() time.Time {
	return s.Started.Add(time.Duration(s.UptimeSeconds * float64(time.Second)))
}

// sameProcess reports whether two answers come from one process. Counters of another one begin anew.
func (s *status) sameProcess(other *status) bool { return s.Started.Equal(other.Started) }

// span is the time between two answers of one process: for rates. The zero span has none.
type span struct{ from, to *status }

// minSpan is the shortest time, in seconds, over which rates are shown: those of less vary without meaning.
const minSpan = 0.1

// seconds is how long the span is by the gateway's clock, 0 if there is none.
func (s span) seconds() float64 {
	if s.from == nil || !s.from.sameProcess(s.to) {
		return 0
	}
	if d := s.to.UptimeSeconds - s.from.UptimeSeconds; d >= minSpan {
		return d
	}
	return 0
}

// rate returns how much a counter has grown for each second. ok is false if that is not known.
func (s span) rate(read func(*status) (float64, bool)) (perSecond float64, ok bool) {
	over := s.seconds()
	if over == 0 {
		return 0, false
	}
	from, there := read(s.from)
	to, still := read(s.to)
	return max(to-from, 0) / over, there && still // a counter falls when a reload has removed a part
}

// times returns the durations that were counted within the span.
func (s span) times(read func(*status) admin.Histogram) admin.Histogram {
	if s.seconds() == 0 {
		return nil
	}
	return read(s.to).Since(read(s.from))
}
