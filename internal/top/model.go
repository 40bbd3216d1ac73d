package top

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/headpond/headpond/gateway/admin"
	"github.com/headpond/headpond/listener"
)

// Model is the state of the screen. It is not safe for concurrent use.
type Model struct {
	Width, Height int // of the screen; Height 0 = as many lines as there are
	Interval      time.Duration

	view   View
	tables [views]viewState
	states int // index in sessionStates

	status   *status // the newest; nil = none yet
	over     span    // for rates
	sessions admin.Sessions
	queried  string    // the query that sessions answers
	answered time.Time // when status was received
	err      error     // of the last request; nil = it was answered

	paused  bool
	help    bool
	details string  // the ID of the row whose details are shown; "" = none
	typing  *string // the filter before it was edited; nil = it is not
	asked   *target // the session that is killed if the operator confirms; nil = none
	message string  // of the last event, until the next key
	failed  bool    // the message is an error
}

// target is a session that is to be killed: the very one that the operator has seen, whatever rows do meanwhile.
type target struct{ id, text string }

// viewState is the state of one view.
type viewState struct {
	selected string // the ID of the row with the cursor; "" = none
	at       int    // its index when it was last seen
	top      int    // index of the first row on the screen
	order    int    // index in orders
	reversed bool
	filter   string
	all      bool // ask for as many sessions as the gateway gives
}

// sessionStates are the filters by state; "" = all sessions.
var sessionStates = []string{
	"", string(listener.StateWaiting), string(listener.StateActive), string(listener.StateInTransaction), string(listener.StatePinned), string(listener.StateIdle),
	string(listener.StateStarting), string(listener.StateQueued), "draining",
}

// Intervals between which the keys + and - choose.
var intervals = []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second, time.Minute}

// An Action is what the shell must do after an event.
type Action struct {
	Do Do
	ID string // of the session, for Kill
}

// Do is the kind of an Action.
type Do int

// The kinds of actions.
const (
	Poll    Do = iota // ask the gateway now
	Kill              // end a session
	Redraw            // clear the screen and draw it anew
	Suspend           // stop the process, as ^Z does
	Quit
)

// NewModel returns the screen of a view.
func NewModel(view View, interval time.Duration) *Model {
	return &Model{view: view, Interval: interval, Width: 80, Height: 24}
}

// SetOrder sets the order of the view; "-" before its name reverses it.
func (m *Model) SetOrder(name string) error {
	state := m.state()
	reversed := false
	if name != "" && name[0] == '-' {
		reversed, name = true, name[1:]
	}
	i := slices.IndexFunc(orders[m.view], func(o order) bool { return o.name == name })
	if i < 0 {
		var names []string
		for _, o := range orders[m.view] {
			names = append(names, o.name)
		}
		return fmt.Errorf("unknown order %q of view %s; want one of %q", name, m.view, names)
	}
	state.order, state.reversed = i, reversed
	return nil
}

// SetFilter sets the text that rows must have.
func (m *Model) SetFilter(text string) { m.state().filter = text }

// Paused reports whether the gateway is asked only because of keys.
func (m *Model) Paused() bool { return m.paused }

func (m *Model) state() *viewState { return &m.tables[m.view] }

// order is the order of the view.
func (m *Model) order() order { return orders[m.view][m.state().order] }

// Query is the query of /api/v1/sessions whose answer the screen needs.
func (m *Model) Query() string {
	q := url.Values{"limit": {"0"}}
	if m.view == Sessions {
		s := m.state()
		limit := admin.DefaultSessions
		for limit < min(s.top+2*m.Height, admin.MaxSessions) || s.all && limit < admin.MaxSessions {
			limit = min(2*limit, admin.MaxSessions)
		}
		sort := m.order().name
		if s.reversed {
			sort = "-" + sort
		}
		q = url.Values{"limit": {strconv.Itoa(limit)}, "sort": {sort}}
		if s.filter != "" {
			q.Set("text", s.filter)
		}
		if state := sessionStates[m.states]; state != "" {
			q.Set("state", state)
		}
		if m.details != "" {
			q = url.Values{"id": {m.details}}
		}
	}
	return q.Encode()
}

// Picture is an answer of the gateway, or the error in its place.
type Picture struct {
	At       time.Time // of the receipt
	Query    string    // of the sessions
	status   *status
	sessions admin.Sessions
	Err      error
}

// Update shows a picture.
func (m *Model) Update(p Picture) []Action {
	if p.Err != nil {
		m.err = p.Err
		return nil
	}
	switch {
	case m.status == nil:
		m.over = span{p.status, p.status}
	case !m.status.sameProcess(p.status):
		m.restarted(p)
	case m.err != nil:
		m.say("the gateway answers again, the same process")
	}
	if p.status.UptimeSeconds-m.over.to.UptimeSeconds >= 0.9*m.Interval.Seconds() || m.over.from == m.over.to && p.status != m.over.to {
		m.over = span{m.over.to, p.status} // answers to keys come in between, and do not disturb the rates
	}
	m.err, m.status, m.answered = nil, p.status, p.At
	if p.Query != m.Query() { // keys have changed it meanwhile: only the numbers of all sessions are right
		m.sessions.Total, m.sessions.States = p.sessions.Total, p.sessions.States
		return nil
	}
	m.sessions, m.queried = p.sessions, p.Query
	return m.follow()
}

// restarted begins anew: another process gives its sessions the IDs that others had.
func (m *Model) restarted(p Picture) {
	for i := range m.tables {
		m.tables[i].selected, m.tables[i].at, m.tables[i].top = "", 0, 0
	}
	m.details, m.asked = "", nil
	m.over = span{p.status, p.status}
	m.fail("the gateway was restarted: another process answers, begun at " + p.status.Started.In(p.At.Location()).Format(time.TimeOnly))
}

// Killed shows the outcome of a Kill.
func (m *Model) Killed(id string, err error) []Action {
	if err != nil {
		m.fail(fmt.Sprintf("session %s was not ended: %v", id, err))
	} else {
		m.say(fmt.Sprintf("session %s was ended", id))
		if s := &m.tables[Sessions]; s.selected == id {
			s.selected = ""
		}
	}
	return []Action{{Do: Poll}}
}

func (m *Model) say(text string)  { m.message, m.failed = text, false }
func (m *Model) fail(text string) { m.message, m.failed = text, true }

// table returns the rows of the view, filtered and sorted.
func (m *Model) table() (t table) {
	if m.status == nil {
		return t
	}
	s := m.state()
	switch m.view {
	case Pools:
		t = poolTable(m.status, m.over)
	case Sessions:
		return sessionTable(m.status, m.sessions.Sessions) // the gateway has filtered and sorted
	case Listeners:
		t = listenerTable(m.status, m.over)
	case Endpoints:
		t = endpointTable(m.status, m.over)
	case Problems:
		t = problemTable(m.status)
	}
	t.filter(s.filter)
	t.sort(m.order().column, s.reversed)
	t.shrink()
	return t
}

// follow keeps the cursor on its row, wherever that is now. A row that is gone leaves no cursor: another row must not get
// what is meant for it.
func (m *Model) follow() []Action {
	if m.details != "" {
		return nil
	}
	s, rows := m.state(), m.table().rows
	i := slices.IndexFunc(rows, func(r row) bool { return r.id == s.selected })
	switch {
	case s.selected == "":
	case i >= 0:
		s.at = i
	case m.view == Sessions && !s.all && m.sessions.Matched > len(rows):
		s.all = true // it may be among those that the gateway has not sent
		return []Action{{Do: Poll}}
	default:
		if m.view == Sessions {
			m.say(fmt.Sprintf("session %s has ended, or does not match any more", s.selected))
		}
		s.selected = ""
	}
	m.scroll(len(rows))
	return nil
}

// scroll keeps the cursor on the screen.
func (m *Model) scroll(rows int) {
	s, room := m.state(), m.room()
	if s.selected != "" {
		s.top = max(min(s.top, s.at), s.at-room+1)
	}
	s.top = max(min(s.top, rows-room), 0)
}
