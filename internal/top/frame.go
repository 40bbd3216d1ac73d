package top

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/headpond/headpond/gateway/admin"
	"github.com/headpond/headpond/listener"
)

// frameLines is the number of lines around the rows: the header, the views, the titles and the footer.
const frameLines = 6

// room is the number of rows that fit.
func (m *Model) room() int {
	if m.Height == 0 {
		return math.MaxInt32
	}
	return max(m.Height-frameLines, 1)
}

// Frame draws the screen: no more lines than Height, none wider than Width.
func (m *Model) Frame(now time.Time) []Line {
	lines := m.header(now)
	switch {
	case m.help:
		lines = append(lines, helpLines()...)
	case m.details != "":
		lines = append(lines, m.detailLines()...)
	default:
		lines = append(lines, m.tableLines()...)
	}
	if m.Height > 0 {
		lines = lines[:min(len(lines), max(m.Height-1, 0))]
		for len(lines) < m.Height-1 {
			lines = append(lines, nil)
		}
		lines = append(lines, m.footer())
	}
	for i, l := range lines {
		lines[i] = l.fit(m.Width)
	}
	return lines
}

// Text returns a frame without styles.
func Text(lines []Line) string {
	var b strings.Builder
	for _, l := range lines {
		var text strings.Builder
		for _, p := range l {
			text.WriteString(p.text)
		}
		b.WriteString(strings.TrimRight(text.String(), " ") + "\n")
	}
	return b.String()
}

// between puts two texts at the ends of a line. The first pieces of the right one are left out where there is no room.
func (m *Model) between(left, right Line) Line {
	space := m.Width - left.columns() - right.columns()
	for ; space < 1 && len(right) > 0; right = right[1:] {
		space += right[:1].columns()
	}
	if len(right) == 0 {
		return left
	}
	return append(append(left, piece{strings.Repeat(" ", space), plain}), right...)
}

// header draws who answers, the sums, and what is wrong.
func (m *Model) header(now time.Time) []Line {
	var first, sums, wrong Line
	if s := m.status; s != nil {
		first, sums, wrong = m.identity(now), m.sums(), problems(s)
	}
	if m.err != nil {
		wrong = nil
		since := ""
		if !m.answered.IsZero() {
			since = fmt.Sprintf(" for %s, this is what was before", Age(max(now.Sub(m.answered).Seconds(), 0)))
		}
		wrong.add(bad, "NO ANSWER"+since+": "+m.err.Error())
	}
	return []Line{first, sums, wrong, m.tabs()}
}

// maxVersion bounds the version in the first line: those of builds between two releases are long.
const maxVersion = 14

// identity is the first line: the program, and what it uses.
func (m *Model) identity(now time.Time) Line {
	s := m.status
	var left, right Line
	left.add(bold, "headpond "+clip(clean(s.Version), maxVersion))
	left.add(plain, "  "+s.Engine+"  up "+uptime(s.UptimeSeconds)+"  ")
	switch {
	case s.Draining:
		left.add(bad, "DRAINING")
	case !s.Ready:
		left.add(bad, "NOT READY")
	default:
		left.add(good, "ready")
	}
	cpu, ok := m.over.rate(func(s *status) (float64, bool) { return s.Process.CPUSeconds, s.Process.CPUSeconds > 0 })
	if ok {
		right.add(plain, fmt.Sprintf("  cpu %.0f%% of %d%%", 100*cpu, 100*s.Process.CPUs))
	}
	if s.Process.ResidentBytes > 0 {
		right.add(plain, "  rss "+size(float64(s.Process.ResidentBytes)))
	}
	if m.paused {
		right.add(warn, "  paused at "+m.answered.Format(time.TimeOnly))
	} else {
		right.add(plain, "  "+now.Format(time.TimeOnly))
	}
	return m.between(left, right)
}

// summed are the states of sessions that the header counts, in this order.
var summed = []listener.State{
	listener.StateWaiting, listener.StateActive, listener.StateInTransaction, listener.StatePinned, listener.StateStarting, listener.StateQueued, listener.StateIdle,
}

// sums is the second line: the sessions by state, and the connections to servers.
func (m *Model) sums() Line {
	var left, right Line
	left.add(plain, fmt.Sprintf("sessions %d", m.sessions.Total))
	between := ": "
	for _, state := range summed {
		n := m.sessions.States[string(state)]
		usual := state == listener.StateWaiting || state == listener.StateActive || state == listener.StateIdle
		if n == 0 && !usual {
			continue
		}
		st := plain
		if n > 0 && (state == listener.StateWaiting || state == listener.StateQueued) {
			st = warn
		}
		left.add(plain, between)
		left.add(st, fmt.Sprintf("%d %s", n, short(string(state))))
		between = ", "
	}
	used, idle, waiting := 0.0, 0.0, 0.0
	for i := range m.status.Upstreams {
		u := &m.status.Upstreams[i]
		used += sum(u, func(p *admin.Pool) int { return p.InUse + p.Direct })
		idle += sum(u, func(p *admin.Pool) int { return p.Idle })
		waiting += waitersOf(u)
	}
	right.add(plain, fmt.Sprintf("  pools: %.0f in use, %.0f idle", used, idle))
	if waiting > 0 {
		right.add(warn, fmt.Sprintf("  waiters: %.0f", waiting))
	}
	return m.between(left, right)
}

// short is a state in few letters.
func short(state string) string {
	if state == admin.StateInTransaction {
		return "idle in tx"
	}
	return state
}

// problems is the third line: what an operator must know first.
func problems(s *status) Line {
	var parts, paused, out []string
	if s.Draining {
		parts = append(parts, "DRAINING")
	}
	if len(s.NotReady) > 0 {
		parts = append(parts, "NOT READY: "+strings.Join(s.NotReady, "; "))
	}
	for i := range s.Upstreams {
		u := &s.Upstreams[i]
		if u.PausedUntil != nil {
			paused = append(paused, u.Name)
		}
		for j := range u.Endpoints {
			if e := &u.Endpoints[j]; isOut(e) {
				out = append(out, fmt.Sprintf("%s %s (%s)", u.Name, e.Address, e.State))
			}
		}
	}
	if len(paused) > 0 {
		parts = append(parts, "PAUSED: "+strings.Join(paused, ", "))
	}
	if n := len(s.Trouble); n > 0 {
		parts = append(parts, fmt.Sprintf("PROBLEMS: %d (key 5)", n))
	}
	if len(out) > 0 {
		parts = append(parts, "FAILING: "+strings.Join(out, ", "))
	}
	var l Line
	if len(parts) == 0 {
		l.add(good, "no problems")
		return l
	}
	l.add(bad, strings.Join(parts, "  "))
	return l
}

// tabs is the line of the views, with what chooses and orders the rows.
func (m *Model) tabs() Line {
	right := m.chosen()
	left := m.tabsNamed(func(v View) string { return fmt.Sprintf(" %d %s ", v+1, v) })
	if left.columns()+right.columns() > m.Width {
		left = m.tabsNamed(func(v View) string { return fmt.Sprintf(" %d ", v+1) })
	}
	return m.between(left, right)
}

// tabsNamed draws the views: the present one with its name.
func (m *Model) tabsNamed(name func(View) string) (l Line) {
	for v := range View(views) {
		if v == m.view {
			l.add(bold, fmt.Sprintf("[%d %s]", v+1, v))
		} else {
			l.add(dim, name(v))
		}
	}
	return l
}

// chosen draws what chooses and orders the rows.
func (m *Model) chosen() (right Line) {
	right.add(dim, "  every "+m.Interval.String())
	s := m.state()
	if o := m.order(); o.column != "" {
		text := "  by " + o.name
		if s.reversed {
			text += " reversed"
		}
		right.add(plain, text)
	}
	if s.filter != "" {
		right.add(warn, fmt.Sprintf("  filter %q", s.filter))
	}
	if state := sessionStates[m.states]; state != "" && m.view == Sessions {
		right.add(warn, "  "+short(state)+" only")
	}
	return right
}

// tableLines draws the titles and the rows on the screen.
func (m *Model) tableLines() []Line {
	if m.status == nil {
		return nil
	}
	t, s := m.table(), m.state()
	top := max(min(s.top, len(t.rows)-1), 0)
	rows := t.rows[top:]
	rows = rows[:min(len(rows), m.room())]
	l := t.layout(rows, m.Width)
	lines := []Line{m.underlined(l.titles(&t), &t, &l)}
	for i := range rows {
		line := l.line(&t, rows[i].cells)
		if rows[i].id == s.selected {
			line = m.marked(line)
		}
		lines = append(lines, line)
	}
	if len(t.rows) == 0 {
		var l Line
		l.add(dim, m.nothing())
		lines = append(lines, l)
	}
	return lines
}

// nothing says why there are no rows.
func (m *Model) nothing() string {
	switch {
	case m.view == Sessions && m.queried != m.Query():
		return "asking the gateway"
	case m.state().filter != "" || m.view == Sessions && m.states > 0:
		return "nothing matches; Escape shows all"
	case m.view == Problems:
		return "no problems"
	}
	return "there are none"
}

// underlined draws the line of the titles; that of the order's column in the style of the cursor.
func (m *Model) underlined(line Line, t *table, l *layout) Line {
	at := slices.IndexFunc(l.columns, func(c int) bool { return m.order().column != "" && t.columns[c].title == m.order().column })
	for i := range line {
		line[i].style = heading
		if i%2 == 0 && i/2 == at { // a gap follows each title but the last
			line[i].style = selected
		}
	}
	return line
}

// marked draws a line with the cursor, over the width of the screen.
func (m *Model) marked(line Line) Line {
	for i := range line {
		line[i].style = selected
	}
	return append(line, piece{strings.Repeat(" ", max(m.Width-line.columns(), 0)), selected})
}

// detailLines draws all members of a row.
func (m *Model) detailLines() (lines []Line) {
	rows := m.table().rows
	i := slices.IndexFunc(rows, func(r row) bool { return r.id == m.details })
	var first Line
	first.add(heading, strings.TrimSuffix(m.view.String(), "s")+" "+m.details)
	lines = append(lines, first)
	if i < 0 {
		var l Line
		l.add(bad, "it is gone")
		if m.view == Sessions && m.queried != m.Query() {
			l = nil
		}
		return append(lines, l)
	}
	names, fields := 0, rows[i].fields()
	for _, f := range fields {
		names = max(names, columnsOf(clean(f.name)))
	}
	for _, f := range fields {
		for j, text := range wrap(clean(f.value), m.Width-names-2) {
			var l Line
			name := ""
			if j == 0 {
				name = f.name
			}
			l.add(dim, fmt.Sprintf("%-*s  ", names, name))
			l.add(plain, text)
			lines = append(lines, l)
		}
	}
	return lines
}

// footer draws the question, the filter as it is typed, the last message, or the keys.
func (m *Model) footer() (l Line) {
	switch {
	case m.asked != nil:
		l.add(bad, "End session "+m.asked.id+"? y/n")
		l.add(plain, "  "+m.asked.text)
	case m.typing != nil:
		l.add(bold, "filter: "+m.state().filter+"_")
		l.add(dim, "  Enter: keep  Escape: as before")
	case m.message != "" && m.failed:
		l.add(bad, m.message)
	case m.message != "":
		l.add(bold, m.message)
	case m.help:
		l.add(dim, "any key: back")
	case m.details != "":
		l.add(dim, "Escape: back  k: end the session  p: pause  ^C: quit")
	default:
		l.add(dim, "?: help  ↑↓: choose  Enter: details  /: filter  < >: order  p: pause  q: quit")
	}
	return l
}

// helpText is the help. It fits 80 columns and 18 rows.
const helpText = `1 2 3 4 5, Tab   views: pools, sessions, listeners, endpoints, problems
↑ ↓ PgUp PgDn    choose a row; the cursor stays on it, wherever it moves
End, Home        the last row; the first ones, without a cursor
Enter            everything about the row
/                only rows with a text; Escape: all again
s                sessions: only those in one state
< >              another order: the column that is marked
r                reverses it
k                sessions: end the chosen one, after a question
p                pause, and go on
+ -              ask the gateway less or more often
^L               draw the screen again
q                quit

USE MAX IDLE     connections to servers: in use, the limit, idle
WAIT OLDEST      who waits for one, and how long the first has waited
P50 P99          50 or 99 in 100 took no longer, of those since the last answer
FOR HELD         how long in the state; how long with the connection`

func helpLines() (lines []Line) {
	for text := range strings.SplitSeq(helpText, "\n") {
		lines = append(lines, Line{{text, plain}})
	}
	return lines
}
