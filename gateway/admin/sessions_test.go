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
	for _, query := range []string{"limit=0", "limit=1001", "limit=x", "offset=-1", "older=10", "held=soon", "state=asleep", "colour=red"} {
		if answer := get(h, "/api/v1/sessions?"+query); answer.Code != http.StatusBadRequest || !strings.Contains(answer.Body.String(), "error") {
			t.Errorf("%s: %d %s", query, answer.Code, answer.Body)
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
