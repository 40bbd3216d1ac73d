package admin_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/gateway/admin"
	"github.com/headpond/headpond/upstream"
)

// TestRoles shows the roles of an upstream with a target, and what is wrong with them.
func TestRoles(t *testing.T) {
	st := upstream.Status{Name: "pg", Target: upstream.TargetPrimary, NoRole: true, Waiting: 12, Endpoints: []upstream.EndpointStatus{
		{Address: "a:1", Healthy: true, Role: upstream.Standby, LastError: "refused"}, // long ago
		{Address: "b:1", Healthy: true, LastError: "refused"},
	}}
	s := admin.Snapshot{Upstreams: []admin.Upstream{
		{Protocol: "postgres", Status: st},
		{Protocol: "postgres", Status: upstream.Status{Name: "any", Endpoints: []upstream.EndpointStatus{{Address: "a:1", Healthy: true}}}},
	}}
	h := newHandler(t, admin.Config{Snapshot: func() admin.Snapshot { return s }})
	var status admin.Status
	if err := json.Unmarshal(get(h, "/api/v1/status").Body.Bytes(), &status); err != nil {
		t.Fatal(err)
	}
	if u := status.Upstreams[0]; u.Target != "primary" || u.Waiting != 12 || !u.NoRole || u.Endpoints[0].Role != "standby" || u.Endpoints[1].Role != "unknown" {
		t.Errorf("%+v", u)
	}
	if u := status.Upstreams[1]; u.Target != "any" || u.NoRole || u.Endpoints[0].Role != "" {
		t.Errorf("%+v", u)
	}
	want := "upstream pg: no endpoint has the role that its target primary wants, clients wait for one\n" +
		"upstream pg, endpoint b:1 does not report its role: refused\n"
	if got := statusLines(t, s); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if w := get(h, "/readyz"); w.Code != 200 || !strings.Contains(w.Body.String(), `upstream "pg": no endpoint has the role that its target primary wants`) {
		t.Errorf("%d: %s", w.Code, w.Body)
	}
	metrics := get(h, "/metrics").Body.String()
	for line, want := range map[string]bool{
		`headpond_upstream_no_role{protocol="postgres",upstream="pg"} 1`:                                               true,
		`headpond_upstream_no_role{protocol="postgres",upstream="any"} 0`:                                              true,
		`headpond_upstream_endpoint_role{endpoint="a:1",protocol="postgres",role="standby",upstream="pg"} 1`:           true,
		`headpond_upstream_endpoint_role{endpoint="a:1",protocol="postgres",role="primary",upstream="pg"} 0`:           true,
		`headpond_upstream_endpoint_role{endpoint="b:1",protocol="postgres",role="unknown",upstream="pg"} 1`:           true,
		`headpond_upstream_endpoint_role{endpoint="a:1",protocol="postgres",role="read-only primary",upstream="pg"} 0`: true,
		`headpond_upstream_waiting{protocol="postgres",upstream="pg"} 12`:                                              true,
		`role="unknown",upstream="any"`: false,
	} {
		if strings.Contains(metrics, line) != want {
			t.Errorf("%s is in the metrics: %v", line, !want)
		}
	}
	s.Upstreams[0].PausedUntil = time.Now().Add(time.Hour)
	if got := statusLines(t, s); strings.Contains(got, "role") || !strings.Contains(got, "sessions that wait: 12,") {
		t.Errorf("in a pause: %s", got)
	}
}
