package top

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/headpond/headpond/gateway/admin"
)

// View is one of the tables.
type View int

// The views, in the order of their keys.
const (
	Pools View = iota
	Sessions
	Listeners
	Endpoints
	Problems
	views int = iota
)

// viewNames are the names of the views, as the screen and the flags have them.
var viewNames = [views]string{"pools", "sessions", "listeners", "endpoints", "problems"}

// String returns the name of the view.
func (v View) String() string { return viewNames[v] }

// ParseView returns the view with a name.
func ParseView(name string) (View, error) {
	if i := slices.Index(viewNames[:], name); i >= 0 {
		return View(i), nil
	}
	return 0, fmt.Errorf("unknown view %q; want %s", name, strings.Join(viewNames[:], ", "))
}

// order is an order of a view. The gateway sorts sessions, the others are sorted by a column.
type order struct {
	name   string // of the flag; of sessions also of the request
	column string // whose title is marked
}

// orders are the orders of each view; the first is the default. An order without a column is that of the configuration.
var orders = [views][]order{
	Pools: {
		{"config", ""}, {"waiting", "WAIT"}, {"oldest", "OLDEST"}, {"used", "USE"}, {"p99", "P99"}, {"rate", "TX/S"}, {"errors", "ERR/S"}, {"name", "POOL"},
	},
	Sessions: {
		{admin.SortHeld, "HELD"}, {admin.SortWait, "FOR"}, {admin.SortAge, "AGE"}, {admin.SortBytes, "BYTES"}, {admin.SortState, "STATE"},
	},
	Listeners: {
		{"config", ""}, {"sessions", "SESS"}, {"queued", "QUEUE"}, {"rate", "TX/S"}, {"errors", "ERR/S"}, {"accepted", "NEW/S"}, {"name", "LISTENER"},
	},
	Endpoints: {
		{"config", ""}, {"used", "USE"}, {"waiting", "WAIT"}, {"rate", "REQ/S"}, {"errors", "ERR/S"}, {"state", "STATE"}, {"name", "ENDPOINT"},
	},
	Problems: {{"config", ""}},
}

// count is a cell with a number that is known.
func count(n float64) cell { return cell{text: number(n), value: n} }

// perSecond is a cell with a rate; "-" if it is not known.
func perSecond(s span, read func(*status) (float64, bool)) cell {
	n, ok := s.rate(read)
	if !ok {
		return cell{text: "-", value: -1}
	}
	return count(n)
}

// alarming makes a cell conspicuous if its number is above 0.
func alarming(c cell, st style) cell {
	if c.value > 0 {
		c.style = st
	}
	return c
}

// quantile is a cell with a quantile; "-" if nothing was counted.
func quantile(h admin.Histogram, q float64) cell {
	seconds, ok := h.Quantile(q)
	if !ok {
		return cell{text: "-", value: -1}
	}
	return cell{text: latency(seconds), value: seconds}
}

// waited is a cell with the time of the oldest waiter.
func waited(seconds float64) cell {
	if seconds == 0 {
		return cell{text: "-"}
	}
	return cell{text: Age(seconds), value: seconds, style: warn}
}

// sum adds up a number of an upstream's pools.
func sum[N int | uint64 | float64](u *admin.UpstreamStatus, read func(*admin.Pool) N) (total float64) {
	for i := range u.Endpoints {
		total += float64(read(&u.Endpoints[i].Pool))
	}
	return total
}

// waitersOf counts the clients that wait for a connection of the upstream.
func waitersOf(u *admin.UpstreamStatus) float64 {
	waiting, _ := u.Connections()
	return float64(waiting)
}

// failures are the acquires of a pool that failed, and the connections that could not be opened.
func failures(p *admin.Pool) uint64 { return p.OpenFailed + p.TimedOut + p.Rejected + p.GaveUp }

// poolTable has a row for each upstream, and for each pair of user and database that has pools of its own.
func poolTable(s *status, over span) (t table) {
	t.columns = []column{
		{title: "POOL", least: 10}, {title: "STATE"}, {title: "USE", right: true}, {title: "MAX", right: true}, {title: "IDLE", right: true}, {title: "OPEN", right: true, drop: 1},
		{title: "WAIT", right: true}, {title: "OLDEST", right: true}, {title: "P50", right: true}, {title: "P99", right: true}, {title: "TX/S", right: true}, {title: "ERR/S", right: true},
	}
	for i := range s.Upstreams {
		u := &s.Upstreams[i]
		of := func(read func(*admin.UpstreamStatus) (float64, bool)) cell {
			return perSecond(over, func(s *status) (float64, bool) {
				u := s.byUpstream[u.Name]
				if u == nil {
					return 0, false
				}
				return read(u)
			})
		}
		acquires := over.times(func(s *status) (all admin.Histogram) {
			if u := s.byUpstream[u.Name]; u != nil {
				for _, e := range u.Endpoints {
					all = all.Add(e.Pool.AcquireHistogram)
				}
			}
			return all
		})
		oldest := 0.0
		for _, e := range u.Endpoints {
			oldest = max(oldest, e.Pool.OldestWait)
		}
		used := func(p *admin.Pool) int { return p.InUse + p.Direct }
		state, st := upstreamState(s, u)
		t.rows = append(t.rows, row{id: u.Name, cells: []cell{
			{text: u.Name}, {text: state, style: st}, count(sum(u, used)), count(sum(u, func(p *admin.Pool) int { return p.MaxSize })),
			count(sum(u, func(p *admin.Pool) int { return p.Idle })), count(sum(u, func(p *admin.Pool) int { return p.Opening })),
			alarming(count(waitersOf(u)), warn), waited(oldest),
			quantile(acquires, 0.5), quantile(acquires, 0.99),
			of(doneOf), alarming(of(failedOf), bad),
		}, fields: func() []field { return upstreamFields(u) }})
		for _, p := range u.Pairs {
			t.rows = append(t.rows, row{id: u.Name + " " + p.Name, cells: []cell{
				{text: u.Name + " " + p.Name}, {}, count(float64(p.InUse)), count(float64(p.MaxSize)), count(float64(p.Idle)), count(float64(p.Opening)),
				alarming(count(float64(p.Waiting)), warn), {text: ""}, {text: ""}, {text: ""}, {text: ""}, {text: ""},
			}, fields: func() []field { return fieldsOf(p) }})
		}
	}
	return t
}

// doneOf is what an upstream has served: transactions and requests, or sessions of protocols that have neither.
func doneOf(u *admin.UpstreamStatus) (float64, bool) {
	if u.Served != nil {
		return u.Served.Done, true
	}
	return sum(u, func(p *admin.Pool) uint64 { return p.Acquired }), true
}

// failedOf is what of that has failed.
func failedOf(u *admin.UpstreamStatus) (float64, bool) {
	if u.Served != nil {
		return u.Served.Failed, true
	}
	return sum(u, failures), true
}

// stateHealthy is the state of an endpoint with which nothing is wrong.
const stateHealthy = "healthy"

// isOut reports whether an endpoint fails, or is not used because it has failed.
func isOut(e *admin.Endpoint) bool { return e.State != stateHealthy && !e.Removed }

// upstreamState is an upstream's state in a word or two.
func upstreamState(s *status, u *admin.UpstreamStatus) (string, style) {
	out, all := 0, 0
	for i := range u.Endpoints {
		if u.Endpoints[i].Removed {
			continue
		}
		all++
		if isOut(&u.Endpoints[i]) {
			out++
		}
	}
	switch {
	case u.PausedUntil != nil:
		return "paused " + Age(u.PausedUntil.Sub(s.now()).Seconds()), bad
	case out > 0:
		return fmt.Sprintf("%d/%d fail", out, all), bad
	}
	return "ok", good
}

// sessionTable has a row for each session.
func sessionTable(s *status, list []admin.Session) (t table) {
	t.columns = []column{
		{title: "ID"}, {title: "STATE", least: 10}, {title: "FOR", right: true}, {title: "HELD", right: true}, {title: "CLIENT", least: 15}, {title: "WHO", least: 16},
		{title: "HOLDS", least: 8}, {title: "PID", right: true, drop: 2}, {title: "BYTES", right: true, drop: 3}, {title: "AGE", right: true, drop: 4}, {title: "LISTENER", least: 8, drop: 5},
	}
	for i := range list {
		c := &list[i]
		held, pid := cell{text: "-"}, cell{text: "-"}
		if c.HeldSince != nil {
			held = cell{text: Age(c.HeldSeconds)}
		}
		if c.ServerPID != 0 {
			pid = cell{text: strconv.FormatUint(uint64(c.ServerPID), 10)}
		}
		st := plain
		switch c.State {
		case admin.StateWaiting:
			st = warn
		case admin.StateInTransaction, admin.StatePinned:
			st = bold
		}
		held.style = st
		holds := c.Endpoint
		if holds == "" {
			holds = "-"
		}
		t.rows = append(t.rows, row{id: c.ID, cells: []cell{
			{text: c.ID}, {text: c.Doing(), style: st}, {text: Age(c.StateSeconds)}, held, {text: c.Client}, {text: c.Who()}, {text: holds}, pid,
			{text: size(float64(c.BytesIn + c.BytesOut))}, {text: Age(max(s.now().Sub(c.Accepted).Seconds(), 0))}, {text: c.Listener},
		}, fields: func() []field { return fieldsOf(c) }})
	}
	return t
}

// listenerTable has a row for each listener.
func listenerTable(s *status, over span) (t table) {
	t.columns = []column{
		{title: "LISTENER", least: 8}, {title: "PROTOCOL", drop: 1}, {title: "ADDRESS", least: 10, drop: 2}, {title: "SESS", right: true}, {title: "MAX", right: true}, {title: "QUEUE", right: true},
		{title: "NEW/S", right: true}, {title: "REJ/S", right: true, drop: 3}, {title: "TX/S", right: true}, {title: "ERR/S", right: true}, {title: "P50", right: true}, {title: "P99", right: true},
		{title: "IN/S", right: true}, {title: "OUT/S", right: true},
	}
	for i := range s.Listeners {
		l := &s.Listeners[i]
		of := func(read func(*admin.Listener) (float64, bool)) cell {
			return perSecond(over, func(s *status) (float64, bool) {
				l := s.byListener[l.Name]
				if l == nil {
					return 0, false
				}
				return read(l)
			})
		}
		bytes := func(read func(*admin.Listener) uint64) cell {
			c := of(func(l *admin.Listener) (float64, bool) { return float64(read(l)), true })
			if c.value >= 0 {
				c.text = size(c.value)
			}
			return c
		}
		took := over.times(func(s *status) admin.Histogram {
			if l := s.byListener[l.Name]; l != nil && l.Served != nil {
				return l.Served.Histogram
			}
			return nil
		})
		sessions := count(float64(l.Active))
		if l.Active >= l.MaxConns {
			sessions.style = bad
		}
		t.rows = append(t.rows, row{id: l.Name, cells: []cell{
			{text: l.Name}, {text: l.Protocol}, {text: l.Address}, sessions, count(float64(l.MaxConns)), alarming(count(float64(l.Queued)), warn),
			of(func(l *admin.Listener) (float64, bool) { return float64(l.Accepted), true }), alarming(of(func(l *admin.Listener) (float64, bool) { return float64(l.Rejected), true }), bad),
			of(func(l *admin.Listener) (float64, bool) { return servedDone(l.Served), l.Served != nil }), alarming(of(listenerFailures), bad),
			quantile(took, 0.5), quantile(took, 0.99),
			bytes(func(l *admin.Listener) uint64 { return l.BytesIn }), bytes(func(l *admin.Listener) uint64 { return l.BytesOut }),
		}, fields: func() []field { return fieldsOf(l) }})
	}
	return t
}

func servedDone(s *admin.Served) float64 {
	if s == nil {
		return 0
	}
	return s.Done
}

// listenerFailures are the failed requests or the errors of transactions; of other protocols the sessions that ended by an error.
func listenerFailures(l *admin.Listener) (n float64, ok bool) {
	if l.Served != nil {
		return l.Served.Failed, true
	}
	for _, errors := range l.Errors {
		n += float64(errors)
	}
	return n, true
}

// shown are the members of an endpoint that have a column, or that one stands for. All others that are numbers, texts or
// truth values get a column of their own.
var shown = []string{
	"address", "weight", "priority", "zone", "removed", "override", "kept", "healthy", "ejected", "ejected_until", "failures", "last_error", "last_failed", "state",
}

// endpointTable has a row for each endpoint.
func endpointTable(s *status, over span) (t table) {
	t.columns = []column{{title: "UPSTREAM", least: 8}, {title: "ENDPOINT", least: 14}, {title: "STATE"}}
	more := members(s.endpoints)
	for _, name := range more {
		t.columns = append(t.columns, column{title: strings.ToUpper(strings.ReplaceAll(name, "_", " ")), least: 4, drop: 1})
	}
	t.columns = append(t.columns, []column{
		{title: "USE", right: true}, {title: "MAX", right: true}, {title: "IDLE", right: true}, {title: "WAIT", right: true}, {title: "REQ/S", right: true}, {title: "ERR/S", right: true},
		{title: "WEIGHT", right: true, drop: 2}, {title: "PRIO", right: true, drop: 3}, {title: "ZONE", drop: 4, least: 4}, {title: "BY OPERATOR", drop: 5}, {title: "ERROR", least: 12},
	}...)
	for i := range s.endpoints {
		e := &s.endpoints[i]
		p := &e.Pool
		of := func(read func(*admin.Pool) uint64) cell {
			return perSecond(over, func(s *status) (float64, bool) {
				e := s.byEndpoint[[2]string{e.upstream, e.Address}]
				if e == nil {
					return 0, false
				}
				return float64(read(&e.Pool)), true
			})
		}
		state := cell{text: e.State, style: good}
		failure := cell{}
		if e.State != stateHealthy {
			state.style, failure = bad, cell{text: e.LastError, style: bad}
		}
		if e.Removed {
			state.style = warn
		}
		cells := []cell{{text: e.upstream}, {text: e.Address}, state}
		for _, name := range more {
			cells = append(cells, cell{text: scalar(e.members[name])})
		}
		r := row{id: e.upstream + " " + e.Address, cells: append(cells, count(float64(p.InUse+p.Direct)), count(float64(p.MaxSize)), count(float64(p.Idle)),
			alarming(count(float64(p.Waiting)), warn), of(func(p *admin.Pool) uint64 { return p.Acquired }), alarming(of(failures), bad),
			unless(e.Weight, 1), unless(e.Priority, 0), cell{text: e.Zone}, cell{text: e.Override}, failure)}
		r.fields = func() []field { return append([]field{{"upstream", e.upstream}}, flatten("", e.members)...) }
		t.rows = append(t.rows, r)
	}
	return t
}

// unless is a cell with a number, empty for the usual one.
func unless(n, usual int) cell {
	if n == usual {
		return cell{value: float64(n)}
	}
	return count(float64(n))
}

// members returns the names of the members of endpoints that are not shown otherwise, and that have a value in one.
func members(all []endpoint) []string {
	names := map[string]bool{}
	for _, e := range all {
		for name, value := range e.members {
			if scalar(value) != "" && !slices.Contains(shown, name) {
				names[name] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// scalar formats a text, a number or a truth value; "" for other values, and for those that say nothing.
func scalar(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case float64:
		if v != 0 {
			return strconv.FormatFloat(v, 'g', 6, 64)
		}
	case bool:
		if v {
			return "yes"
		}
	}
	return ""
}

// problemTable has a row for each sentence about a problem, and behind them those about the sizes of pools.
func problemTable(s *status) (t table) {
	t.columns = []column{{title: "PROBLEM", least: 20}}
	for _, why := range s.NotReady {
		t.rows = append(t.rows, sentence("not ready: "+why, bad))
	}
	for _, line := range s.Trouble {
		t.rows = append(t.rows, sentence(line, bad))
	}
	for _, line := range s.Sizing {
		t.rows = append(t.rows, sentence("sizing: "+line, plain))
	}
	return t
}

// sentence is a row whose ID has no numbers: they change while the problem stays.
func sentence(text string, st style) row {
	id := strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, text)
	return row{id: id, cells: []cell{{text: text, style: st}}, fields: func() []field { return []field{{"", text}} }}
}
