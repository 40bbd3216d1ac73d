package top_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/gateway/admin"
	"github.com/headpond/headpond/internal/leaktest"
	"github.com/headpond/headpond/internal/top"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the golden files; commit only the changes you understand")

func TestMain(m *testing.M) { leaktest.Main(m) }

// started is when the gateway of these tests began.
var started = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)

// fake is a gateway. It answers with status, and with those of sessions that a query asks for, in the order given.
type fake struct {
	status   map[string]any // as JSON has it
	sessions []admin.Session
	total    int
	err      error
	killed   []string
	queries  []string // of sessions
}

func (f *fake) Get(_ context.Context, path string) ([]byte, error) {
	if f.err != nil {
		return nil, f.err
	}
	path, query, _ := strings.Cut(path, "?")
	if path == "/api/v1/status" {
		return json.Marshal(f.status)
	}
	f.queries = append(f.queries, query)
	q, err := url.ParseQuery(query)
	if err != nil {
		return nil, err
	}
	limit := len(f.sessions)
	if q.Get("limit") != "" {
		if _, err := fmt.Sscan(q.Get("limit"), &limit); err != nil {
			return nil, err
		}
	}
	body := admin.Sessions{Total: f.total, States: map[string]int{}}
	for _, s := range f.sessions {
		body.States[s.State]++
		if id := q.Get("id"); id != "" && id != s.ID || !strings.Contains(s.User, q.Get("text")) {
			continue
		}
		if body.Matched++; len(body.Sessions) < limit {
			body.Sessions = append(body.Sessions, s)
		}
	}
	return json.Marshal(body)
}

func (f *fake) Kill(_ context.Context, id string) error {
	f.killed = append(f.killed, id)
	i := slices.IndexFunc(f.sessions, func(s admin.Session) bool { return s.ID == id })
	if i < 0 {
		return errors.New("there is no such session")
	}
	f.sessions = slices.Delete(f.sessions, i, i+1)
	return nil
}

// later lets time pass, and counters grow.
func (f *fake) later(seconds float64) { f.status["uptime_seconds"] = f.uptime() + seconds }

func (f *fake) uptime() float64 { n, _ := f.status["uptime_seconds"].(float64); return n }

// user is an operator at a screen.
type user struct {
	*top.Model
	t *testing.T
	*fake
}

func newUser(t *testing.T, f *fake) *user {
	u := &user{top.NewModel(top.Pools, 2*time.Second), t, f}
	u.poll()
	return u
}

func (u *user) now() time.Time {
	return started.Add(time.Duration(u.uptime() * float64(time.Second)))
}

// poll asks the gateway, and does what the model wants.
func (u *user) poll() {
	p := top.Ask(context.Background(), u.fake, u.Query())
	p.At = u.now()
	u.do(u.Update(p))
}

func (u *user) do(actions []top.Action) {
	for _, a := range actions {
		switch a.Do {
		case top.Poll:
			u.poll()
		case top.Kill:
			u.do(u.Killed(a.ID, u.Kill(context.Background(), a.ID)))
		case top.Quit, top.Redraw, top.Suspend:
		}
	}
}

func (u *user) press(keys ...top.Key) *user {
	for _, k := range keys {
		u.do(u.Press(k))
	}
	return u
}

func (u *user) text() string { return top.Text(u.Frame(u.now())) }

// sees fails unless the screen has the texts.
func (u *user) sees(texts ...string) {
	u.t.Helper()
	for _, text := range texts {
		if !strings.Contains(u.text(), text) {
			u.t.Errorf("no %q in\n%s", text, u.text())
		}
	}
}

func compareGolden(t *testing.T, name, got string) {
	t.Helper()
	golden := filepath.Join("testdata", name)
	if *rewrite {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s is now:\n%s", golden, got)
	}
}

// members returns a value as decoded JSON.
func members(t *testing.T, v any) (m map[string]any) {
	t.Helper()
	text, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(text, &m)
	}
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// hostile is a name with all that a terminal could act on.
const hostile = "\x1b[2J\x07\r\n\x9b31m\u202eevil\u200d日本e\u0301\u0301\u0301\u0301\u0301\x00 " + "ﷺ😀"

// busy is a gateway with everything on the screen.
func busy(t *testing.T) *fake {
	t.Helper()
	now := started.Add(100 * time.Hour)
	at := func(ago time.Duration) time.Time { return now.Add(-ago) }
	until := now.Add(4 * time.Minute)
	served := func(done float64) *admin.Served {
		return &admin.Served{Unit: "transactions", Done: done, Failed: done / 100, Histogram: admin.Histogram{{UpTo: 0.0012, Count: uint64(done)}, {UpTo: 0.25, Count: uint64(done / 50)}}}
	}
	pool := admin.Pool{InUse: 20, MaxSize: 20, Waiting: 12, OldestWait: 3.1, Acquired: 100000, AcquireHistogram: admin.Histogram{{UpTo: 1.0 / (1 << 20), Count: 99000}, {UpTo: 0.0625, Count: 1000}}}
	s := members(t, admin.Status{
		Version: "1.2.3", Engine: "uring", Started: started, UptimeSeconds: 360000, Ready: true,
		Process: admin.Process{CPUSeconds: 1000, CPUs: 2, ResidentBytes: 88 << 20},
		Listeners: []admin.Listener{
			{Name: "db", Protocol: "postgres", Address: "10.0.0.1:6432", Active: 1204, MaxConns: 10000, Queued: 3, Accepted: 50000, BytesIn: 1 << 30, BytesOut: 5 << 30, Served: served(100000)},
			{Name: "kube", Protocol: "tcp", Address: "127.0.0.1:6443", Active: 1, MaxConns: 1, Accepted: 7, Rejected: 2, Errors: map[string]uint64{"timeout": 1}},
			{Name: hostile, Protocol: "tcp"},
		},
		Upstreams: []admin.UpstreamStatus{
			{Name: "pg", Protocol: "postgres", Served: served(100000), Endpoints: []admin.Endpoint{
				{Address: "10.0.0.5:5432", Weight: 1, State: "healthy", Healthy: true, Pool: pool},
				{Address: "10.0.0.6:5432", Weight: 2, Priority: 1, Zone: "b", State: "unhealthy", LastError: "dial tcp 10.0.0.6:5432: connect: connection refused"},
			}},
			{Name: "shared", Protocol: "postgres", PausedUntil: &until, Endpoints: []admin.Endpoint{{Address: "10.0.0.7:5432", Weight: 1, State: "healthy"}}, Pairs: []admin.Pair{
				{Name: "app@shop", InUse: 3, MaxSize: 20, Waiting: 1}, {Name: "job@shop", MaxSize: 20, Idle: 2},
			}},
			{Name: hostile, Protocol: "tcp", Endpoints: []admin.Endpoint{{Address: hostile, Weight: 1, State: "failing", LastError: hostile}}},
		},
		Trouble: []string{"upstream pg, endpoint 10.0.0.5:5432: every connection is in use (max_size 20), sessions that wait: 12", "upstream shared is paused by an operator"},
		Sizing:  []string{"upstream pg, endpoint 10.0.0.5:5432: max_size 20 is small"},
	})
	held, young := at(12*time.Minute), at(300*time.Millisecond)
	return &fake{status: s, total: 1204, sessions: []admin.Session{
		{ID: "3wq1x0k", Listener: "db", Protocol: "postgres", Client: "10.0.3.7:51422", State: "idle in transaction", StateSeconds: 720, Accepted: at(time.Hour), User: "app", Database: "shop", Application: "nightly",
			Upstream: "pg", Endpoint: "10.0.0.5:5432", ServerPID: 71342, HeldSince: &held, HeldSeconds: 720, BytesIn: 4000, BytesOut: 1 << 20, Statement: "select pg_advisory_lock(7), 'a statement that is longer than one line of this screen has room for'"},
		{ID: "3wq9b2e@4711", Listener: "db", Protocol: "postgres", Client: "10.0.3.9:40112", State: "active", StateSeconds: 0.3, Accepted: at(time.Minute), User: "app", Database: "shop", Application: "web",
			Upstream: "pg", Endpoint: "10.0.0.5:5432", ServerPID: 71346, HeldSince: &young, HeldSeconds: 0.3, Draining: true},
		{ID: "3wq9c7f", Listener: "db", Protocol: "postgres", Client: "10.0.3.9:40114", State: "waiting", StateSeconds: 3.1, Accepted: at(3 * time.Second), User: "app", Database: "shop", Application: hostile, Upstream: "pg"},
		{ID: "3wq9c80.5", Listener: "web", Protocol: "http", Client: "[2001:db8:aaaa:bbbb:cccc:dddd:eeee:ffff]:65535", State: "active", StateSeconds: 0.1, Accepted: at(0), Method: "GET", Host: "shop.example", Path: "/a/very/long/path/of/a/request"},
	}}
}

// grow lets an interval pass in which the gateway has worked.
func grow(t *testing.T, f *fake) {
	t.Helper()
	var s admin.Status
	text, err := json.Marshal(f.status)
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil {
		t.Fatal(err)
	}
	s.UptimeSeconds += 2
	s.Process.CPUSeconds++
	for _, served := range []*admin.Served{s.Listeners[0].Served, s.Upstreams[0].Served} {
		served.Done += 1624
		served.Failed += 3
		served.Histogram[0].Count += 1600
		served.Histogram[1].Count += 24
	}
	s.Upstreams[0].Endpoints[0].Pool.Acquired += 1624
	s.Upstreams[0].Endpoints[0].Pool.AcquireHistogram[0].Count += 1500
	s.Upstreams[0].Endpoints[0].Pool.AcquireHistogram[1].Count += 124
	s.Listeners[0].Accepted += 10
	s.Listeners[0].BytesIn += 2 << 20
	s.Listeners[1].Rejected += 4
	f.status = members(t, s)
}

// TestFrames compares what an operator sees, step by step.
func TestFrames(t *testing.T) {
	f := busy(t)
	u := newUser(t, f)
	u.Width, u.Height = 80, 24
	var got strings.Builder
	show := func(what string) { fmt.Fprintf(&got, "---- %s\n%s", what, u.text()) }
	show("at the start")
	grow(t, f)
	u.poll()
	show("pools")
	u.press(">", "r")
	show("by the waiters, reversed")
	u.press("2")
	show("sessions")
	u.press(top.KeyDown, top.KeyDown)
	show("with a cursor")
	u.press("k")
	show("k")
	u.press("n", top.KeyUp, top.KeyEnter)
	show("details")
	u.press(top.KeyEscape, "/", "x")
	show("a filter is typed")
	u.press(top.KeyEscape, top.KeyEscape, "3")
	show("listeners")
	u.press("4")
	show("endpoints")
	u.press(top.KeyEnd, top.KeyEnter)
	show("details of an endpoint")
	u.press(top.KeyEscape, "5")
	show("problems")
	u.press("?")
	show("help")
	f.err = errors.New("no gateway answers at 127.0.0.1:9090")
	u.press("1", "1", "p")
	u.poll()
	show("no answer, paused")
	compareGolden(t, "frames.txt", got.String())
}

// TestOtherScreens are narrow, wide, and text for a file.
func TestOtherScreens(t *testing.T) {
	f := busy(t)
	u := newUser(t, f)
	grow(t, f)
	endpoints := f.status["upstreams"].([]any)[0].(map[string]any)["endpoints"].([]any)
	endpoints[0].(map[string]any)["role"], endpoints[1].(map[string]any)["role"] = "primary", "standby" // of a newer gateway
	endpoints[1].(map[string]any)["lag_seconds"] = 1.5
	u.poll()
	var got strings.Builder
	for _, size := range [][2]int{{40, 12}, {132, 14}, {110, 0}} {
		u.Width, u.Height = size[0], size[1]
		for _, view := range []top.Key{"1", "2", "3", "4"} {
			fmt.Fprintf(&got, "---- %d × %d, view %s\n%s", size[0], size[1], view, u.press(view).text())
		}
	}
	compareGolden(t, "sizes.txt", got.String())
	palette := top.PaletteOf(func(name string) string { return map[string]string{"TERM": "xterm"}[name] })
	u.Width, u.Height = 80, 14
	u.press("2", top.KeyDown)
	compareGolden(t, "colours.txt", fmt.Sprintf("%q\n", strings.SplitAfter(string(palette.Draw(u.Frame(u.now()))), "\r\n")))
}
