package admin

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headpond/headpond/listener"
)

// Session is an element of /api/v1/sessions. Fields that do not apply are empty, 0 or null.
type Session struct {
	ID           string     `json:"id"`
	Listener     string     `json:"listener"`
	Protocol     string     `json:"protocol"`
	Client       string     `json:"client"`
	State        string     `json:"state"` // queued, starting, idle, waiting, active, "idle in transaction" or pinned
	Since        time.Time  `json:"since"`
	StateSeconds float64    `json:"state_seconds"`
	Draining     bool       `json:"draining"`
	Accepted     time.Time  `json:"accepted"`
	User         string     `json:"user"`
	Database     string     `json:"database"`
	Application  string     `json:"application"` // application_name, or the user agent
	Method       string     `json:"method"`
	Host         string     `json:"host"` // of HTTP, or the target that the client names
	Path         string     `json:"path"`
	Statement    string     `json:"statement"` // where show_statements is on
	Streams      int        `json:"streams"`   // of an HTTP/2 connection
	Upstream     string     `json:"upstream"`
	Endpoint     string     `json:"endpoint"` // whose connection it holds
	ServerPID    uint32     `json:"server_pid"`
	HeldSince    *time.Time `json:"held_since"` // null: it holds no connection
	HeldSeconds  float64    `json:"held_seconds"`
	Pinned       string     `json:"pinned"`   // the state that it keeps the connection for beyond its transactions, such as "temporary objects"
	Channels     int        `json:"channels"` // that it listens to through the shared listening connection
	BytesIn      uint64     `json:"bytes_in"`
	BytesOut     uint64     `json:"bytes_out"`
}

// Who names the client in the terms of the session's protocol.
func (s *Session) Who() string {
	switch {
	case s.User != "" && s.Host != "" && s.Method == "":
		return s.User + " to " + s.Host
	case s.User != "":
		return strings.TrimSpace(s.User + "@" + s.Database + " " + s.Application)
	case s.Method != "":
		return s.Method + " " + s.Host + s.Path
	case s.Streams > 0:
		return fmt.Sprintf("HTTP/2, %d streams", s.Streams)
	}
	return "-"
}

// Doing is the state in few words, with what else the session does.
func (s *Session) Doing() string {
	state := s.State
	if state == StateInTransaction {
		state = "idle in tx"
	}
	if s.Pinned != "" {
		if state != StatePinned {
			state += ", pinned"
		}
		state += ": " + s.Pinned
	}
	if s.Channels > 0 {
		state += fmt.Sprintf(", listens: %d", s.Channels)
	}
	if s.Draining {
		state += ", draining"
	}
	return state
}

// Sessions is the body of /api/v1/sessions: the matching sessions, sorted.
type Sessions struct {
	Total    int            `json:"total"`   // sessions there are
	States   map[string]int `json:"states"`  // how many of them are in each state
	Matched  int            `json:"matched"` // that the query asks for
	Offset   int            `json:"offset"`
	Sessions []Session      `json:"sessions"`
}

// Limits of an answer of /api/v1/sessions.
const (
	DefaultSessions = 100
	MaxSessions     = 1000
)

// Orders of /api/v1/sessions. With "-" before it, an order is reversed.
const (
	SortHeld  = "held"  // the default, that of SortSessions
	SortWait  = "wait"  // those that wait for a connection, the longest first, then as SortHeld
	SortAge   = "age"   // the oldest first
	SortState = "state" // by state: those that wait or hold something first, idle ones last; then the longest in it first
	SortBytes = "bytes" // the most bytes of both directions first
)

// orders are the comparisons of the orders, before that of SortHeld.
var orders = map[string]func(a, b *listener.Info) int{
	SortHeld:  func(_, _ *listener.Info) int { return 0 },
	SortWait:  func(a, b *listener.Info) int { return cmp.Or(waits(b)-waits(a), waits(a)*a.Since.Compare(b.Since)) },
	SortAge:   func(a, b *listener.Info) int { return a.Accepted.Compare(b.Accepted) },
	SortState: func(a, b *listener.Info) int { return cmp.Or(rank(a.State)-rank(b.State), a.Since.Compare(b.Since)) },
	SortBytes: func(a, b *listener.Info) int { return cmp.Compare(b.BytesIn+b.BytesOut, a.BytesIn+a.BytesOut) },
}

// waits is 1 for a session that waits, 0 for others.
func waits(s *listener.Info) int {
	if s.State == listener.StateWaiting {
		return 1
	}
	return 0
}

// stateOrder is the order of states for SortState.
var stateOrder = []listener.State{
	listener.StateWaiting, listener.StateInTransaction, listener.StatePinned, listener.StateActive, listener.StateStarting, listener.StateQueued, listener.StateIdle,
}

// rank is the place of a state in stateOrder.
func rank(s listener.State) int { return slices.Index(stateOrder, s) }

// SortSessions sorts by the time a session has held its connection, then by the time in its state, longest first.
// PostgreSQL sessions know both times to a quarter of a second only; among equal sessions the one accepted first comes
// first.
func SortSessions(all []listener.Info) {
	slices.SortFunc(all, func(a, b listener.Info) int { return compareHeld(&a, &b) })
}

func compareHeld(a, b *listener.Info) int {
	switch {
	case a.Held.IsZero() != b.Held.IsZero():
		if a.Held.IsZero() {
			return 1
		}
		return -1
	case !a.Held.Equal(b.Held):
		return a.Held.Compare(b.Held)
	}
	return cmp.Or(a.Since.Compare(b.Since), a.Accepted.Compare(b.Accepted), cmp.Compare(a.ID, b.ID))
}

// query says which sessions are requested. Empty strings and lists match everything.
type query struct {
	listener, user, database, upstream, text, sort string
	states, ids                                    []string
	older, held                                    time.Duration
	offset, limit                                  int
}

// States that the API's clients know.
const (
	StateWaiting       = string(listener.StateWaiting)
	StateInTransaction = string(listener.StateInTransaction)
	StatePinned        = string(listener.StatePinned)
	stateDraining      = "draining" // matches the sessions of a listener that drains, whatever they do
)

func parseQuery(v url.Values) (q query, err error) {
	q = query{limit: DefaultSessions}
	texts := map[string]*string{"listener": &q.listener, "user": &q.user, "database": &q.database, "upstream": &q.upstream, "text": &q.text, "sort": &q.sort}
	lists := map[string]*[]string{"state": &q.states, "id": &q.ids}
	durations := map[string]*time.Duration{"older": &q.older, "held": &q.held}
	numbers := map[string]*int{"offset": &q.offset, "limit": &q.limit}
	for name, values := range v {
		value, bad := values[0], error(nil)
		if p := texts[name]; p != nil {
			*p = value
		} else if p := lists[name]; p != nil {
			*p = slices.DeleteFunc(values, func(v string) bool { return v == "" })
		} else if p := durations[name]; p != nil {
			*p, bad = time.ParseDuration(value)
		} else if p := numbers[name]; p != nil {
			*p, bad = strconv.Atoi(value)
		} else {
			return q, fmt.Errorf("unknown parameter %q", name)
		}
		if bad != nil {
			want := "a whole number"
			if durations[name] != nil {
				want = "a duration such as 10s or 5m"
			}
			return q, fmt.Errorf("parameter %s: %q: want %s", name, value, want)
		}
	}
	for _, state := range q.states {
		if state != stateDraining && !slices.Contains(listener.States(), listener.State(state)) {
			return q, fmt.Errorf("parameter state: %q is not one of %q", state, append(listener.States(), stateDraining))
		}
	}
	if q.sort = cmp.Or(q.sort, SortHeld); orders[strings.TrimPrefix(q.sort, "-")] == nil {
		return q, fmt.Errorf("parameter sort: %q is not one of %q, or that after a \"-\"", q.sort, slices.Sorted(maps.Keys(orders)))
	}
	if q.offset < 0 || q.limit < 0 || q.limit > MaxSessions {
		return q, fmt.Errorf("parameter limit must be from 0 to %d, and offset not negative", MaxSessions)
	}
	q.text = strings.ToLower(q.text)
	return q, nil
}

func (q *query) matches(s *listener.Info, now time.Time) bool {
	same := func(want, have string) bool { return want == "" || want == have }
	state := func(want string) bool { return want == string(s.State) || want == stateDraining && s.Draining }
	return same(q.listener, s.Listener) && same(q.user, s.User) && same(q.database, s.Database) && same(q.upstream, s.Upstream) &&
		(len(q.ids) == 0 || slices.Contains(q.ids, s.ID)) && (len(q.states) == 0 || slices.ContainsFunc(q.states, state)) &&
		// The state of a session that began during the request may have begun after now.
		(q.older <= 0 || now.Sub(s.Since) >= q.older) && (q.held <= 0 || !s.Held.IsZero() && now.Sub(s.Held) >= q.held) &&
		(q.text == "" || contains(s, q.text))
}

// contains reports whether one of the names of a session has a text, which is in lower case, in any case.
func contains(s *listener.Info, text string) bool {
	for _, name := range []string{
		s.ID, s.Listener, s.Protocol, s.Client, s.User, s.Database, s.Application, s.Method, s.Host, s.Path, s.Statement, s.Upstream, s.Endpoint, s.Pinned,
	} {
		if strings.Contains(strings.ToLower(name), text) {
			return true
		}
	}
	return s.ServerPID != 0 && text == strconv.FormatUint(uint64(s.ServerPID), 10)
}

// sortBy sorts in an order, perhaps reversed.
func sortBy(all []listener.Info, order string) {
	order, reversed := strings.CutPrefix(order, "-")
	first := orders[order]
	slices.SortFunc(all, func(a, b listener.Info) int {
		if reversed {
			a, b = b, a
		}
		return cmp.Or(first(&a, &b), compareHeld(&a, &b))
	})
}

func (h *handler) sessions(w http.ResponseWriter, r *http.Request) {
	q, err := parseQuery(r.URL.Query())
	if err != nil {
		writeJSON(w, http.StatusBadRequest, result{Error: err.Error()})
		return
	}
	all, now := h.cfg.Sessions(), time.Now()
	body := Sessions{Total: len(all), States: map[string]int{}, Offset: q.offset, Sessions: []Session{}}
	for i := range all {
		body.States[string(all[i].State)]++
	}
	all = slices.DeleteFunc(all, func(s listener.Info) bool { return !q.matches(&s, now) })
	body.Matched = len(all)
	sortBy(all, q.sort)
	all = all[min(q.offset, len(all)):]
	for _, s := range all[:min(q.limit, len(all))] {
		body.Sessions = append(body.Sessions, session(s, now))
	}
	writeJSON(w, http.StatusOK, body)
}

// session returns the API's form of a session.
func session(s listener.Info, now time.Time) Session {
	out := Session{
		ID: s.ID, Listener: s.Listener, Protocol: s.Protocol, Client: s.Client, State: string(s.State), Since: s.Since,
		StateSeconds: max(now.Sub(s.Since).Seconds(), 0), Draining: s.Draining, Accepted: s.Accepted,
		User: s.User, Database: s.Database, Application: s.Application, Method: s.Method, Host: s.Host, Path: s.Path, Statement: s.Statement,
		Streams: s.Streams, Upstream: s.Upstream, Endpoint: s.Endpoint, ServerPID: s.ServerPID, HeldSince: timeOrNil(s.Held), Pinned: s.Pinned, Channels: s.Channels,
		BytesIn: s.BytesIn, BytesOut: s.BytesOut,
	}
	if !s.Held.IsZero() {
		out.HeldSeconds = max(now.Sub(s.Held).Seconds(), 0)
	}
	return out
}

// kill ends one session.
func (h *handler) kill(w http.ResponseWriter, r *http.Request) {
	if id := r.PathValue("id"); !h.cfg.Kill(id) {
		writeJSON(w, http.StatusNotFound, result{Error: fmt.Sprintf("there is no session %q", id)})
		return
	}
	writeJSON(w, http.StatusOK, result{Applied: true})
}
