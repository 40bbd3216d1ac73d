package sources_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"

	"github.com/headpond/headpond/gateway/config"
	_ "github.com/headpond/headpond/gateway/protocols"
	"github.com/headpond/headpond/internal/leaktest"
	"github.com/headpond/headpond/upstream"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// TestKubernetes: the section's settings reach the source. Package upstream/kube tests the source.
func TestKubernetes(t *testing.T) {
	paths := make(chan string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case paths <- r.URL.Path + " " + r.URL.Query().Get("labelSelector"):
		default:
		}
		_, _ = fmt.Fprint(w, `{"metadata": {"resourceVersion": "1"}, "items": [{"ports": [{"name": "a", "port": 1}, {"name": "b", "port": 2}],
			"endpoints": [{"addresses": ["10.0.0.1"], "zone": "east"}, {"addresses": ["10.0.0.2"], "zone": "west"}]}]}`)
	}))
	t.Cleanup(server.Close)
	cache := filepath.Join(t.TempDir(), "kept.json")
	cfg, problems := config.Parse("kube.yaml", fmt.Appendf(nil, `
listeners: [{name: web, protocol: tcp, listen: "127.0.0.1:0", upstream: web}]
upstreams:
  web:
    tls: {}
    discover: {kubernetes: {service: prod/web, port: b, prefer_zone: west, server: %q, cache: %q, bootstrap: ["10.0.0.9:2"]}}
`, server.URL, cache))
	if err := problems.Err(); err != nil {
		t.Fatal(err)
	}
	u := &cfg.Upstreams[0]
	if host := u.SourceHost(); host != "web.prod.svc" || u.TLS.ServerName != host {
		t.Errorf("the endpoints are addresses of %q, and the name in certificates is %q", host, u.TLS.ServerName)
	}
	source, err := u.Source()
	if err != nil || source.String() != "kubernetes prod/web" {
		t.Fatal(source, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var sets [][]upstream.Endpoint
	source.Watch(ctx, func(set []upstream.Endpoint, err error) error {
		if sets = append(sets, set); len(sets) == 2 {
			cancel()
		}
		return err
	})
	if got, want := <-paths, "/apis/discovery.k8s.io/v1/namespaces/prod/endpointslices kubernetes.io/service-name=web"; got != want {
		t.Errorf("asked for %s, want %s", got, want)
	}
	if len(sets[0]) != 1 || sets[0][0].Address != "10.0.0.9:2" {
		t.Errorf("began with %v", sets[0])
	}
	if e := sets[1]; len(e) != 2 || e[0].Address != "10.0.0.1:2" || e[0].Priority == 0 || e[1].Priority != 0 || e[1].Zone != "west" {
		t.Errorf("then %v", e)
	}
}
