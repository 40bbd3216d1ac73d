package admin_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/gateway/admin"
	"github.com/headpond/headpond/listener"
)

// register is a list of sessions, each of which can be killed once.
func register(n int) admin.Config {
	now := time.Now()
	killed := map[string]bool{}
	return admin.Config{
		Sessions: func() (all []listener.Info) {
			for i := range n {
				s := listener.Info{ID: fmt.Sprint("s", i), Listener: "db", State: listener.StateIdle, User: "app", Since: now.Add(-time.Duration(i) * time.Minute)}
				s.Accepted = s.Since
				if i%1000 == 5 {
					s.State = listener.StateWaiting
				}
				if i == 9 {
					s.BytesIn, s.BytesOut = 1, 1
				}
				if i%100 == 1 {
					s.State, s.Held, s.Upstream, s.User = listener.StateInTransaction, now.Add(-time.Duration(i)*time.Second), "pg", "job"
				}
				s.Draining = i == 7
				all = append(all, s)
			}
			return all
		},
		Kill: func(id string) bool {
			there := strings.HasPrefix(id, "s") && !killed[id]
			killed[id] = true
			return there
		},
	}
}

// TestSessionsOfOneTick: sessions that hold since the same moment are in the order in which they were accepted.
func TestSessionsOfOneTick(t *testing.T) {
	tick := time.Now()
	var all []listener.Info
	for i := range 5 {
		all = append(all, listener.Info{ID: fmt.Sprint(i), Held: tick, Since: tick, Accepted: tick.Add(time.Duration(-i) * time.Millisecond)})
	}
	admin.SortSessions(all)
	for i, s := range all {
		if s.ID != fmt.Sprint(4-i) {
			t.Errorf("place %d has session %s", i, s.ID)
		}
	}
}

func TestSessionsAreFilteredSortedAndBounded(t *testing.T) {
	h := newHandler(t, register(2000))
	for query, want := range map[string]struct {
		matched int
		first   string // IDs
	}{
		"":                                    {2000, "s1901 s1801 s1701"},
		"limit=1000&offset=1999":              {2000, "s0"},
		"offset=5000":                         {2000, ""},
		"state=idle+in+transaction&limit=2":   {20, "s1901 s1801"},
		"state=draining":                      {1, "s7"},
		"user=job&held=31m&upstream=pg":       {1, "s1901"},
		"state=idle&older=30h&limit=1":        {198, "s1999"},
		"user=job&listener=other&database=db": {0, ""},
		"limit=0":                             {2000, ""},
		"limit=0&text=JOB":                    {20, ""},
		"text=s199&sort=age":                  {11, "s1999 s1998 s1997"},
		"text=nothing":                        {0, ""},
		"id=s5&id=s3&id=s1&id=none&sort=-age": {3, "s1 s3 s5"},
		"state=waiting&state=draining":        {3, "s1005 s7 s5"},
		"sort=wait":                           {2000, "s1005 s5 s1901 s1801"},
		"sort=-wait&limit=1":                  {2000, "s0"},
		"sort=state":                          {2000, "s1005 s5 s1901 s1801"},
		"sort=-state&limit=3":                 {2000, "s0 s2 s3"},
		"sort=bytes&limit=2":                  {2000, "s9 s1901"},
	} {
		answer := get(h, "/api/v1/sessions?"+query)
		var body admin.Sessions
		if err := json.Unmarshal(answer.Body.Bytes(), &body); err != nil || answer.Code != http.StatusOK {
			t.Errorf("%s: %d, %v", query, answer.Code, err)
			continue
		}
		var ids []string
		for _, s := range body.Sessions {
			ids = append(ids, s.ID)
		}
		if got := strings.Join(ids, " "); body.Total != 2000 || body.Matched != want.matched || !strings.HasPrefix(got, want.first) || want.first == "" && got != "" || len(ids) > admin.DefaultSessions {
			t.Errorf("%s: %d of %d, %.60s; want %+v", query, body.Matched, body.Total, got, want)
		}
	}
	for _, query := range []string{"limit=-1", "limit=1001", "sort=name", "state=idle&state=asleep", "limit=x", "offset=-1", "older=10", "held=soon", "state=asleep", "colour=red"} {
		if answer := get(h, "/api/v1/sessions?"+query); answer.Code != http.StatusBadRequest || !strings.Contains(answer.Body.String(), "error") {
			t.Errorf("%s: %d %s", query, answer.Code, answer.Body)
		}
	}
}

// TestSessionsOfAFastClock: a session that has begun while the sessions were read, or by another processor's clock, is in
// the answer.
func TestSessionsOfAFastClock(t *testing.T) {
	h := newHandler(t, admin.Config{Sessions: func() []listener.Info {
		return []listener.Info{{ID: "young", State: listener.StateActive, Since: time.Now().Add(time.Hour), Held: time.Now().Add(time.Hour)}}
	}})
	for query, want := range map[string]int{"": 1, "state=active": 1, "older=0s&held=0s": 1, "older=1ms": 0, "held=1ms": 0} {
		var body admin.Sessions
		if err := json.Unmarshal(get(h, "/api/v1/sessions?"+query).Body.Bytes(), &body); err != nil || body.Matched != want || body.States["active"] != 1 {
			t.Errorf("%q: %v, %+v", query, err, body)
		}
		for _, s := range body.Sessions {
			if s.StateSeconds != 0 || s.HeldSeconds != 0 {
				t.Errorf("%+v", s)
			}
		}
	}
}

func TestKillIsProtected(t *testing.T) {
	h := newHandler(t, register(3))
	ask := func(h http.Handler, from, header, id string) (int, string) {
		r := httptest.NewRequest(http.MethodDelete, "http://127.0.0.1:9090/api/v1/sessions/"+id, nil)
		r.RemoteAddr = from
		if header != "" {
			r.Header.Set(header, "1")
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
	for _, c := range []struct {
		from, header, id string
		code             int
	}{
		{"192.0.2.1:1", admin.ReloadHeader, "s1", http.StatusForbidden},
		{"127.0.0.1:1", "", "s1", http.StatusForbidden},
		{"127.0.0.1:1", admin.ReloadHeader, "s1", http.StatusOK},
		{"127.0.0.1:1", admin.ReloadHeader, "s1", http.StatusNotFound},
		{"[::1]:1", admin.ReloadHeader, "s2.7", http.StatusOK},
		{"@", admin.ReloadHeader, "x", http.StatusNotFound},
	} {
		if code, body := ask(h, c.from, c.header, c.id); code != c.code {
			t.Errorf("%+v: %d %s", c, code, body)
		}
	}
	if code, _ := ask(newHandler(t, admin.Config{}), "127.0.0.1:1", admin.ReloadHeader, "s0"); code != http.StatusNotFound {
		t.Errorf("without Kill: %d", code)
	}
}
