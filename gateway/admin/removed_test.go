package admin_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/headpond/headpond/gateway/admin"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/upstream"
)

// TestRemovedEndpoint: an endpoint that a reload has removed is shown, with its connections in use, and is neither
// healthy nor unhealthy.
func TestRemovedEndpoint(t *testing.T) {
	h := newHandler(t, admin.Config{Snapshot: func() admin.Snapshot {
		return admin.Snapshot{Upstreams: []admin.Upstream{{Protocol: "tcp", Status: upstream.Status{
			Name: "api", Endpoints: []upstream.EndpointStatus{
				{Address: "a:1", Healthy: true},
				{Address: "b:1", Removed: true, Pool: pool.Stats{InUse: 3}},
			},
		}}}}
	}})
	var s admin.Status
	if w := get(h, "/api/v1/status"); json.Unmarshal(w.Body.Bytes(), &s) != nil || len(s.Upstreams) != 1 || len(s.Upstreams[0].Endpoints) != 2 {
		t.Fatal(w.Body)
	}
	if e := s.Upstreams[0].Endpoints; e[0].Removed || !e[1].Removed || e[1].Pool.InUse != 3 {
		t.Errorf("endpoints: %+v", e)
	}
	metrics := get(h, "/metrics").Body.String()
	for line, want := range map[string]bool{
		`headpond_upstream_endpoint_healthy{endpoint="a:1",`: true,
		`headpond_upstream_endpoint_healthy{endpoint="b:1",`: false,
		`headpond_pool_in_use{endpoint="b:1",`:               true,
	} {
		if strings.Contains(metrics, line) != want {
			t.Errorf("%s… in the metrics: want %v", line, want)
		}
	}
}
