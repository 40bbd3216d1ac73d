package admin_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/gateway/admin"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/upstream"
)

// TestPairs shows the pairs of an upstream. What is wrong with a pair's pool is said of the pair: the sums of all pairs
// at an endpoint say nothing about max_size.
func TestPairs(t *testing.T) {
	lately := time.Now().Add(-10 * time.Second)
	st := upstream.Status{Name: "pg", MoreTenants: 3, Tenants: []upstream.TenantStatus{
		{Name: "ada@shop", Pool: pool.Stats{Idle: 1, InUse: 3, Direct: 1, Opening: 2, Waiting: 5, MaxSize: 3}},
		{Name: "bob@shop", Closed: true, Pool: pool.Stats{InUse: 1, MaxSize: 3, TimedOut: 4, Rejected: 2, LastRefused: lately}},
		{Name: "cy@shop", Pool: pool.Stats{InUse: 1, MaxSize: 3}},
	}, Endpoints: []upstream.EndpointStatus{
		{Address: "a:1", Healthy: true, Pool: pool.Stats{InUse: 5, MaxSize: 9, PeakInUse: 9, Waiting: 5, Acquired: 9000, Waited: 5000, TimedOut: 6, LastRefused: lately}},
		{Address: "b:1", Healthy: true, Pool: pool.Stats{Acquired: 9000, Waited: 5000}},
	}}
	s := admin.Snapshot{Upstreams: []admin.Upstream{{Protocol: "postgres", Status: st}, {Protocol: "postgres", Status: upstream.Status{Name: "one"}}}}
	var status admin.Status
	body := get(newHandler(t, admin.Config{Snapshot: func() admin.Snapshot { return s }}), "/api/v1/status").Body
	if err := json.Unmarshal(body.Bytes(), &status); err != nil {
		t.Fatal(err)
	}
	u := status.Upstreams[0]
	if len(u.Pairs) != 3 || u.MorePairs != 3 || status.Upstreams[1].Pairs == nil || len(status.Upstreams[1].Pairs) != 0 {
		t.Fatalf("%+v, %+v", u, status.Upstreams[1])
	}
	if got, want := u.Pairs[0], (admin.Pair{Name: "ada@shop", Idle: 1, InUse: 4, Opening: 2, Waiting: 5, MaxSize: 3}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if p := u.Pairs[1]; !p.Ended || p.Refused != 6 || p.LastRefused == nil {
		t.Errorf("%+v", p)
	}
	want := "upstream pg, pair ada@shop: every connection is in use (max_size 3), sessions that wait: 5\n" +
		"upstream pg, pair bob@shop: acquires were refused 10s ago, no connection was free or could be opened in time (max_size 3); since the start: 6\n"
	if got := statusLines(t, s); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	for i := range 20 {
		s.Upstreams[1].Tenants = append(s.Upstreams[1].Tenants, upstream.TenantStatus{Name: fmt.Sprint("u", i), Pool: pool.Stats{InUse: 1, MaxSize: 1, Waiting: 1}})
	}
	if got := statusLines(t, s); strings.Count(got, "upstream one, pair") != 5 || !strings.Contains(got, "upstream one: pairs in like trouble that are not shown: 15\n") {
		t.Errorf("got\n%s", got)
	}
}
