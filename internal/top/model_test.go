package top_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/headpond/headpond/gateway/admin"
	"github.com/headpond/headpond/internal/top"
)

// many returns a gateway with n sessions.
func many(t *testing.T, n int) *fake {
	t.Helper()
	f := &fake{total: n, status: members(t, admin.Status{Version: "1.2.3", Started: started, UptimeSeconds: 100, Ready: true})}
	for i := range n {
		f.sessions = append(f.sessions, admin.Session{ID: fmt.Sprint("s", i), Accepted: started, State: "waiting", User: fmt.Sprint("user", i)})
	}
	return f
}

// atCursor returns the line of the screen with the cursor, "" if there is none.
func (u *user) atCursor() string {
	reverse := top.Palette{}
	reverse[len(reverse)-1] = "7"
	for line := range strings.SplitSeq(string(reverse.Draw(u.Frame(u.now()))), "\r\n") {
		if marked, ok := strings.CutPrefix(line, "\x1b[H"); ok {
			line = marked
		}
		if strings.HasPrefix(line, "\x1b[7ms") { // a session's ID, and not a title
			return strings.NewReplacer("\x1b[7m", "", "\x1b[0m", "", "\x1b[K", "").Replace(line)
		}
	}
	return ""
}

// TestCursorStaysOnItsSession wherever its row moves. What was asked is for the session that was seen, and a row that has
// taken its place gets nothing.
func TestCursorStaysOnItsSession(t *testing.T) {
	f := many(t, 6)
	u := newUser(t, f).press("2", top.KeyDown, top.KeyDown)
	at := func(id string) {
		t.Helper()
		if got := u.atCursor(); !strings.HasPrefix(got+" ", id+" ") {
			t.Errorf("the cursor is at %q, want %s", got, id)
		}
	}
	at("s1")
	for range 50 {
		rand.Shuffle(len(f.sessions), func(i, j int) { f.sessions[i], f.sessions[j] = f.sessions[j], f.sessions[i] })
		u.poll()
		at("s1")
	}
	u.press("k").sees("End session s1? y/n", "user1@")
	slices.Reverse(f.sessions)
	u.poll()
	u.press("x").sees("nothing was ended")
	u.press("k")
	slices.Reverse(f.sessions)
	u.poll()
	u.press("y").sees("session s1 was ended")
	if want := []string{"s1"}; !slices.Equal(f.killed, want) {
		t.Errorf("killed %v", f.killed)
	}
	at("")
	u.press("k").sees("choose a session")
	u.press("y")
	if len(f.killed) != 1 {
		t.Errorf("killed %v", f.killed)
	}
}

// TestSessionThatEnds while the operator is asked, or looks at it.
func TestSessionThatEnds(t *testing.T) {
	f := many(t, 3)
	u := newUser(t, f).press("2", top.KeyDown, "k")
	f.sessions = f.sessions[1:]
	u.poll()
	u.sees("End session s0? y/n")
	u.press("y").sees("session s0 was not ended: there is no such session")
	u.press(top.KeyDown, top.KeyEnter).sees("session s1", "user1")
	f.sessions = f.sessions[1:]
	u.poll()
	u.sees("session s1", "it is gone")
	u.press("k").sees("session s1 has ended")
	u.press(top.KeyEscape)
	if got := u.atCursor(); got != "" {
		t.Errorf("the cursor is at %q", got)
	}
	if want := []string{"s0"}; !slices.Equal(f.killed, want) {
		t.Errorf("killed %v", f.killed)
	}
}

// TestSessionsBeyondAnAnswer: the gateway sends the first ones. The cursor reaches the others, and stays on a session that
// is not among the first any more.
func TestSessionsBeyondAnAnswer(t *testing.T) {
	f := many(t, 1500)
	u := newUser(t, f).press("2")
	for range 40 {
		u.press(top.KeyPageDown)
	}
	if got := u.atCursor(); !strings.HasPrefix(got, "s702 ") {
		t.Errorf("the cursor is at %q", got)
	}
	u.press(top.KeyHome)
	if last := f.queries[len(f.queries)-1]; last != "limit=100&sort=held" {
		t.Errorf("asked for %s", last)
	}
	u.press(top.KeyDown)
	f.sessions = append(f.sessions[1:900:900], append([]admin.Session{f.sessions[0]}, f.sessions[900:]...)...)
	u.poll()
	if got := u.atCursor(); !strings.HasPrefix(got, "s0 ") {
		t.Errorf("the cursor is at %q", got)
	}
	f.sessions = append(f.sessions, f.sessions[899])
	f.sessions = slices.Delete(f.sessions, 899, 900) // the last of 1500
	u.poll()
	u.sees("session s0 has ended, or does not match any more")
}

// TestRestart: the sessions of another process may have the IDs of those before.
func TestRestart(t *testing.T) {
	f := many(t, 3)
	u := newUser(t, f).press("2", top.KeyDown, "k")
	f.err = errors.New("refused")
	u.poll()
	f.later(7)
	u.sees("NO ANSWER for 7.0s, this is what was before: refused", "s0 ")
	f.err = nil
	f.status["started"], f.status["uptime_seconds"] = started.Add(time.Hour), 3.0
	u.poll()
	u.sees("the gateway was restarted: another process answers, begun at 01:00:00", "up 3s")
	u.press("y")
	if len(f.killed) != 0 || u.atCursor() != "" {
		t.Errorf("killed %v, the cursor is at %q", f.killed, u.atCursor())
	}
	f.err = errors.New("refused")
	u.poll()
	f.err = nil
	u.poll()
	u.sees("the gateway answers again, the same process")
}

// TestRates are of whole intervals: answers to keys between them do not count, and another process begins anew.
func TestRates(t *testing.T) {
	f := many(t, 0)
	listener := func(accepted uint64) {
		f.status["listeners"] = []admin.Listener{{Name: "db", Accepted: accepted}}
	}
	listener(1000)
	u := newUser(t, f).press("3")
	row := func(want string) {
		t.Helper()
		lines := strings.Split(u.text(), "\n")
		if got := strings.Join(strings.Fields(lines[5]), " "); !strings.HasPrefix(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
	row("db 0 0 0 - -")
	f.later(2)
	listener(1020)
	u.poll()
	row("db 0 0 0 10 0")
	f.later(0.2)
	listener(1120)
	u.poll()
	row("db 0 0 0 10 0")
	f.later(1.8)
	u.poll()
	row("db 0 0 0 50 0")
	f.status["started"], f.status["uptime_seconds"] = started.Add(time.Hour), 3.0
	listener(5)
	u.poll()
	row("db 0 0 0 - -")
	f.later(2)
	u.poll()
	row("db 0 0 0 0 0")
}

// TestQueries are what the gateway is asked for.
func TestQueries(t *testing.T) {
	f := many(t, 3)
	u := newUser(t, f)
	asks := func(want string) {
		t.Helper()
		if got := f.queries[len(f.queries)-1]; got != want {
			t.Errorf("asked for %s, want %s", got, want)
		}
	}
	asks("limit=0")
	u.press("2")
	asks("limit=100&sort=held")
	u.press(">", "r")
	asks("limit=100&sort=-wait")
	u.press("s", "s", "s")
	asks("limit=100&sort=-wait&state=idle+in+transaction")
	u.press("/", "u", "x", top.KeyBackspace, "s", "é", top.KeyUp, top.KeyBackspace, top.KeyEnter)
	asks("limit=100&sort=-wait&state=idle+in+transaction&text=us")
	u.press("/", top.KeyClear, "z", top.KeyEscape).sees(`filter "us"`, "idle in tx only")
	u.press(top.KeyEscape)
	asks("limit=100&sort=-wait")
	u.press("<", top.KeyDown, top.KeyEnter)
	asks("id=s0")
	u.press("q", "1")
	u.poll()
	asks("limit=0")
	u.press("s").sees("only sessions have states")
	u.press("k").sees("only sessions can be ended")
	u.press("/", "a", " ", "k", "q", "?", "1").sees("filter: a kq?1_")
	u.press(top.KeyEnter, top.KeyTab).sees("[2 sessions]")
	for _, quit := range []top.Key{"q", top.KeyInterrupt} {
		if do := u.Press(quit); len(do) != 1 || do[0].Do != top.Quit {
			t.Errorf("%s: %v", quit, do)
		}
	}
}

func TestIntervalsAndPause(t *testing.T) {
	u := newUser(t, many(t, 1))
	for range 20 {
		u.press("-")
	}
	u.press("-").sees("every 500ms")
	u.press("+", "+").sees("every 2s")
	u.Interval = 3 * time.Second
	u.press("-").sees("every 2s")
	u.Interval = 3 * time.Second
	u.press("+").sees("every 5s")
	for range 20 {
		u.press("+")
	}
	u.sees("every 1m0s")
	asked := len(u.queries)
	u.press("p").sees("paused at 00:01:40")
	if !u.Paused() || len(u.queries) != asked {
		t.Error("not paused")
	}
	if u.press("p"); u.Paused() || len(u.queries) != asked+1 {
		t.Error("still paused")
	}
}

// TestFitsEveryScreen: whatever the names and the size, no line is longer than the screen, and nothing in it moves the
// terminal's cursor.
func TestFitsEveryScreen(t *testing.T) {
	u := newUser(t, busy(t))
	u.press("2", top.KeyDown)
	for _, keys := range [][]top.Key{{"1"}, {"2"}, {"k"}, {"n", top.KeyEnter}, {top.KeyEscape, "/"}, {top.KeyEscape, "3"}, {"4"}, {top.KeyEnd, top.KeyEnter}, {top.KeyEscape, "5"}, {"?"}} {
		u.press(keys...)
		for _, width := range []int{1, 2, 3, 10, 30, 50, 79, 80, 81, 120, 300} {
			for _, height := range []int{1, 2, 5, 6, 7, 24, 60} {
				u.Width, u.Height = width, height
				lines := u.Frame(u.now())
				text := top.Text(lines)
				if len(lines) != height {
					t.Fatalf("%d lines of %d", len(lines), height)
				}
				for line := range strings.SplitSeq(strings.TrimSuffix(text, "\n"), "\n") {
					if n := top.Columns(line); n > width {
						t.Fatalf("%q takes %d columns of %d", line, n, width)
					}
					if i := strings.IndexFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }); i >= 0 {
						t.Fatalf("%q", line)
					}
				}
			}
		}
	}
}

// TestOrders: each view has its orders, by the names of the flag.
func TestOrders(t *testing.T) {
	m := top.NewModel(top.Sessions, time.Second)
	for _, name := range []string{"held", "wait", "age", "-bytes", "state"} {
		if err := m.SetOrder(name); err != nil {
			t.Error(err)
		}
	}
	for _, name := range []string{"", "-", "config", "Held"} {
		if err := m.SetOrder(name); err == nil {
			t.Errorf("%q is an order", name)
		}
	}
	if _, err := top.ParseView("tables"); err == nil {
		t.Error("there is a view of tables")
	}
}
