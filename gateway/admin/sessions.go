package admin

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
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

// Sessions is the body of /api/v1/sessions: the matching sessions, the longest holders first, then by time in their
// state.
type Sessions struct {
	Total    int       `json:"total"`   // sessions there are
	Matched  int       `json:"matched"` // that the query asks for
	Offset   int       `json:"offset"`
	Sessions []Session `json:"sessions"`
}

// Limits of an answer of /api/v1/sessions.
const (
	DefaultSessions = 100
	MaxSessions     = 1000
)

// SortSessions sorts by the time a session has held its connection, then by the time in its state, longest first.
// PostgreSQL sessions know both times to a quarter of a second only; among equal sessions the one accepted first comes
// first.
func SortSessions(all []listener.Info) {
	slices.SortFunc(all, func(a, b listener.Info) int {
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
	})
}

// query says which sessions are requested. Empty strings match everything.
type query struct {
	listener, user, database, upstream, state string
	older, held                               time.Duration
	offset, limit                             int
}

// States that the API's clients know.
const (
	StateInTransaction = string(listener.StateInTransaction)
	StatePinned        = string(listener.StatePinned)
	stateDraining      = "draining" // matches the sessions of a listener that drains, whatever they do
)

func parseQuery(v url.Values) (q query, err error) {
	q = query{limit: DefaultSessions}
	texts := map[string]*string{"listener": &q.listener, "user": &q.user, "database": &q.database, "upstream": &q.upstream, "state": &q.state}
	durations := map[string]*time.Duration{"older": &q.older, "held": &q.held}
	numbers := map[string]*int{"offset": &q.offset, "limit": &q.limit}
	for name, values := range v {
		value, bad := values[0], error(nil)
		if p := texts[name]; p != nil {
			*p = value
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
	if q.state != "" && q.state != stateDraining && !slices.Contains(listener.States(), listener.State(q.state)) {
		return q, fmt.Errorf("parameter state: %q is not one of %q", q.state, append(listener.States(), stateDraining))
	}
	if q.offset < 0 || q.limit < 1 || q.limit > MaxSessions {
		return q, fmt.Errorf("parameter limit must be from 1 to %d, and offset not negative", MaxSessions)
	}
	return q, nil
}

func (q *query) matches(s *listener.Info, now time.Time) bool {
	same := func(want, have string) bool { return want == "" || want == have }
	return same(q.listener, s.Listener) && same(q.user, s.User) && same(q.database, s.Database) && same(q.upstream, s.Upstream) &&
		(same(q.state, string(s.State)) || q.state == stateDraining && s.Draining) &&
		now.Sub(s.Since) >= q.older && (q.held == 0 || !s.Held.IsZero() && now.Sub(s.Held) >= q.held)
}

func (h *handler) sessions(w http.ResponseWriter, r *http.Request) {
	q, err := parseQuery(r.URL.Query())
	if err != nil {
		writeJSON(w, http.StatusBadRequest, result{Error: err.Error()})
		return
	}
	all, now := h.cfg.Sessions(), time.Now()
	body := Sessions{Total: len(all), Offset: q.offset, Sessions: []Session{}}
	all = slices.DeleteFunc(all, func(s listener.Info) bool { return !q.matches(&s, now) })
	body.Matched = len(all)
	SortSessions(all)
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
