package peers_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/peers"
)

// modelServer answers every request with the status and the text, which can be changed.
type modelServer struct {
	*httptest.Server
	status  atomic.Int64
	text    atomic.Pointer[string]
	working atomic.Bool
}

func newModelServer(t *testing.T, status int, text string) *modelServer {
	s := &modelServer{}
	s.say(status, text)
	s.working.Store(true)
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != "GET" || r.URL.RequestURI() != "/v1/models" || r.Host != "localhost" {
			t.Errorf("%s %s of %s", r.Method, r.URL, r.Host)
		}
		w.WriteHeader(int(s.status.Load()))
		fmt.Fprint(w, *s.text.Load())
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *modelServer) say(status int, text string) {
	s.status.Store(int64(status))
	s.text.Store(&text)
}

// service is the server as a service that tells of its models.
func (s *modelServer) service(groups ...string) peers.Service {
	service := to("llm", s.Listener.Addr().String())
	service.Models, service.Healthy, service.Groups = "/v1/models", s.working.Load, groups
	return service
}

// list is the answer of a server with these models.
func list(ids ...string) string {
	data := []string{}
	for _, id := range ids {
		data = append(data, fmt.Sprintf(`{"id": %q, "object": "model"}`, id))
	}
	return `{"object": "list", "data": [` + strings.Join(data, ", ") + `]}`
}

// wantGroups waits until a node knows that a service is offered with these groups.
func wantGroups(t *testing.T, n *peers.Node, groups ...string) {
	t.Helper()
	var got []string
	conntest.Eventually(t, fmt.Sprintf("the groups are %q", groups), func() bool {
		for _, o := range n.Status().Offers {
			if got = o.Groups; slices.Equal(got, groups) {
				return true
			}
		}
		return false
	})
}

// TestModels: a service says which models it serves, and other nodes know of them; a server that comes back with others is asked again.
func TestModels(t *testing.T) {
	server := newModelServer(t, 200, list("qwen3", "llama3", "llama3"))
	far, log := start(t, peers.Config{Services: []peers.Service{server.service("model=llama3", "tier=1")}})
	near, _ := start(t, peers.Config{Bootstrap: far.Addrs()})
	wantGroups(t, near, "model=llama3", "tier=1", "model=qwen3")
	conntest.Eventually(t, "the log tells of the models", func() bool { return log.Line("models of a service", "qwen3") != "" })
	server.working.Store(false)
	knows(t, near, "llm")
	server.say(200, list("mistral"))
	server.working.Store(true)
	wantGroups(t, near, "model=llama3", "tier=1", "model=mistral")
}

// TestModelsThatCannotBeKnown: whatever the server answers, the service is offered with the groups that are configured.
func TestModelsThatCannotBeKnown(t *testing.T) {
	var many []string
	for i := range 200 {
		many = append(many, fmt.Sprintf("model-%03d", i))
	}
	var (
		cfg    peers.Config
		logged []string
		want   = map[string][]string{}
	)
	for name, c := range map[string]struct {
		status int
		answer string
		groups []string
		log    string
	}{
		"not-found":  {404, list("a"), nil, "404 Not Found"},
		"moved":      {301, list("a"), nil, "301 Moved Permanently"},
		"text":       {200, "hello", nil, "invalid character"},
		"other-JSON": {200, `{"models": []}`, nil, `there is no \"data\"`},
		"too-long":   {200, `{"data": [], "x": "` + strings.Repeat("x", 1<<20) + `"}`, nil, "more than 1048576 bytes"},
		"names":      {200, list("", "*", strings.Repeat("n", 251), "good"), []string{"model=good"}, "3 of 4 models are left out"},
		"too-many":   {200, list(many...), nil, "137 of 200 models are left out"},
	} {
		s := newModelServer(t, c.status, c.answer).service("all")
		s.Name = "llm-" + name
		cfg.Services, logged = append(cfg.Services, s), append(logged, c.log)
		groups := append([]string{"all"}, c.groups...)
		if name == "too-many" {
			for _, id := range many[:63] {
				groups = append(groups, "model="+id)
			}
		}
		want[s.Name] = groups
	}
	far, log := start(t, cfg)
	near, _ := start(t, peers.Config{Bootstrap: far.Addrs()})
	conntest.Eventually(t, "the services are offered", func() bool {
		got := map[string][]string{}
		for _, o := range near.Status().Offers {
			got[o.Name] = o.Groups
		}
		return reflect.DeepEqual(got, want)
	})
	for _, text := range logged {
		conntest.Eventually(t, "the log says why: "+text, func() bool { return strings.Contains(log.String(), text) })
	}
}

// TestManyModelsOfManyServices: however many models there are, they fit into what a node can tell of itself.
func TestManyModelsOfManyServices(t *testing.T) {
	var ids []string
	for i := range 60 {
		ids = append(ids, fmt.Sprintf("%0200d", i))
	}
	server := newModelServer(t, 200, list(ids...))
	cfg := peers.Config{}
	for i := range 10 {
		s := server.service()
		s.Name = fmt.Sprintf("llm%d", i)
		cfg.Services = append(cfg.Services, s)
	}
	far, _ := start(t, cfg)
	near, _ := start(t, peers.Config{Bootstrap: far.Addrs()})
	conntest.Eventually(t, "each service has some of its models", func() bool {
		offers := near.Status().Offers
		return len(offers) == 10 && !slices.ContainsFunc(offers, func(o peers.OfferStatus) bool { return len(o.Groups) != 3 })
	})
}
