package kube_test

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/certs"
	"github.com/headpond/headpond/internal/leaktest"
	"github.com/headpond/headpond/internal/sourcetest"
	"github.com/headpond/headpond/upstream/kube"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// api answers as an API server does for EndpointSlices: lists at a version, watches from one, bookmarks, 410 for versions that it has
// forgotten, 401 without the token. The real one is asked by `make test-kube`.
type api struct {
	*httptest.Server
	t      *testing.T
	ca     string // file
	closed chan struct{}

	authority *certs.Authority

	mu       sync.Mutex
	changed  chan struct{}             // closed at each change
	slices   map[string]map[string]any // by namespace/name
	history  []change
	version  int
	oldest   int // changes up to here are forgotten
	token    string
	broken   func(w http.ResponseWriter, r *http.Request) bool // answers in the API's stead
	requests []string
	ends     int // counts how often watches were ended
}

type change struct {
	version int
	kind    string
	object  map[string]any
}

func newAPI(t *testing.T) *api {
	t.Helper()
	a := &api{
		t: t, changed: make(chan struct{}), closed: make(chan struct{}), slices: map[string]map[string]any{}, version: 100, oldest: 100,
		token: "secret-1",
	}
	authority := certs.New()
	cert, _ := certs.PEM(authority.Certificate)
	a.ca = write(t, filepath.Join(t.TempDir(), "ca.crt"), string(cert))
	a.Server = httptest.NewUnstartedServer(a)
	a.TLS, _ = authority.Configs()
	a.TLS.ClientAuth = tls.RequestClientCert
	a.authority = authority
	a.EnableHTTP2 = true
	a.StartTLS()
	t.Cleanup(func() { close(a.closed); a.Close() })
	return a
}

func write(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// do changes something and wakes watches.
func (a *api) do(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f()
	close(a.changed)
	a.changed = make(chan struct{})
}

// put adds or replaces a slice of default/kubernetes; text is its JSON without metadata.
func (a *api) put(name, text string) {
	a.t.Helper()
	a.putOf("default", "kubernetes", name, text)
}

func (a *api) putOf(namespace, service, name, text string) {
	a.t.Helper()
	var object map[string]any
	if err := json.Unmarshal([]byte(text), &object); err != nil {
		a.t.Fatalf("%v in %s", err, text)
	}
	a.do(func() {
		kind := "MODIFIED"
		if a.slices[namespace+"/"+name] == nil {
			kind = "ADDED"
		}
		a.version++
		object["metadata"] = map[string]any{
			"name": name, "namespace": namespace, "resourceVersion": strconv.Itoa(a.version),
			"labels": map[string]any{"kubernetes.io/service-name": service},
		}
		a.slices[namespace+"/"+name] = object
		a.history = append(a.history, change{a.version, kind, object})
	})
}

func (a *api) remove(name string) {
	a.do(func() {
		a.version++
		object := maps.Clone(a.slices["default/"+name])
		metadata := maps.Clone(object["metadata"].(map[string]any))
		metadata["resourceVersion"] = strconv.Itoa(a.version)
		object["metadata"] = metadata
		delete(a.slices, "default/"+name)
		a.history = append(a.history, change{a.version, "DELETED", object})
	})
}

// forget has the API server know no older version than the current one, and ends watches.
func (a *api) forget() {
	a.do(func() {
		a.version += 10
		a.oldest, a.history = a.version, nil
		a.ends++
	})
}

func (a *api) endWatches() { a.do(func() { a.ends++ }) }

// took returns the requests since the last call: "list" or "watch" and the version.
func (a *api) took() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	asked := a.requests
	a.requests = nil
	return asked
}

func fail(w http.ResponseWriter, code int, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message})
}

// ServeHTTP implements http.Handler.
func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	token, broken, ends := a.token, a.broken, a.ends // of one moment: a request that broken does not answer sees the end set with it
	if token != "" {
		token = "Bearer " + token
	}
	kind := "list"
	if r.URL.Query().Get("watch") == "true" {
		kind = "watch"
	}
	a.requests = append(a.requests, fmt.Sprintf("%s %s %s", r.Proto, kind, r.URL.Query().Get("resourceVersion")))
	a.mu.Unlock()
	namespace, ok := strings.CutPrefix(r.URL.Path, "/apis/discovery.k8s.io/v1/namespaces/")
	namespace, ok2 := strings.CutSuffix(namespace, "/endpointslices")
	service, ok3 := strings.CutPrefix(r.URL.Query().Get("labelSelector"), "kubernetes.io/service-name=")
	switch {
	case r.Header.Get("Authorization") != token:
		fail(w, http.StatusUnauthorized, "Unauthorized")
	case broken != nil && broken(w, r):
	case !ok || !ok2 || !ok3:
		fail(w, http.StatusNotFound, "the server could not find the requested resource")
	case kind == "watch":
		a.watch(w, r, namespace, service, ends)
	default:
		a.list(w, r, namespace, service)
	}
}

func belongs(object map[string]any, namespace, service string) bool {
	metadata := object["metadata"].(map[string]any)
	return metadata["namespace"] == namespace && metadata["labels"].(map[string]any)["kubernetes.io/service-name"] == service
}

func (a *api) list(w http.ResponseWriter, r *http.Request, namespace, service string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if at, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion")); at > a.version {
		fail(w, http.StatusGatewayTimeout, "Timeout: Too large resource version")
		return
	}
	items := []any{}
	for _, key := range slices.Sorted(maps.Keys(a.slices)) {
		if belongs(a.slices[key], namespace, service) {
			items = append(items, a.slices[key])
		}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{
		"kind": "EndpointSliceList", "metadata": map[string]any{"resourceVersion": strconv.Itoa(a.version)}, "items": items,
	})
}

func (a *api) watch(w http.ResponseWriter, r *http.Request, namespace, service string, ends int) {
	at, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	life, _ := strconv.Atoi(r.URL.Query().Get("timeoutSeconds"))
	over := time.NewTimer(time.Duration(life) * time.Second)
	defer over.Stop()
	w.Header().Set("Content-Type", "application/json")
	send := func(kind string, object any) {
		_ = json.NewEncoder(w).Encode(map[string]any{"type": kind, "object": object})
	}
	_ = http.NewResponseController(w).Flush()
	a.mu.Lock()
	if at < a.oldest {
		send("ERROR", map[string]any{"kind": "Status", "code": http.StatusGone, "message": "too old resource version"})
		a.mu.Unlock()
		return
	}
	for {
		for _, c := range a.history {
			if c.version > at {
				at = c.version
				if belongs(c.object, namespace, service) {
					send(c.kind, c.object)
				} else {
					send("BOOKMARK", map[string]any{"metadata": map[string]any{"resourceVersion": strconv.Itoa(at)}})
				}
			}
		}
		changed, ended := a.changed, a.ends != ends
		a.mu.Unlock()
		_ = http.NewResponseController(w).Flush()
		if ended {
			return
		}
		select {
		case <-changed:
		case <-over.C:
			return
		case <-r.Context().Done():
			return
		case <-a.closed:
			return
		}
		a.mu.Lock()
	}
}

// config asks the API with its token.
func (a *api) config(t *testing.T) kube.Config {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	return kube.Config{Server: a.URL, CA: a.ca, TokenFile: write(t, filepath.Join(t.TempDir(), "token"), a.token+"\n")}
}

func watch(t *testing.T, cfg kube.Config) *sourcetest.Watched {
	t.Helper()
	s, err := kube.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return sourcetest.Watch(t, s)
}

// ofPort is a slice with one port; each endpoint is its JSON.
func ofPort(port int, endpoints ...string) string {
	return fmt.Sprintf(`{"addressType":"IPv4","ports":[{"name":"https","protocol":"TCP","port":%d}],"endpoints":[%s]}`, port, strings.Join(endpoints, ","))
}

// at is an endpoint with these conditions, which is all of its JSON that matters.
func at(address, rest string) string {
	if rest == "" {
		rest = `"conditions":{"ready":true,"serving":true,"terminating":false}`
	}
	return fmt.Sprintf(`{"addresses":[%q],%s}`, address, rest)
}
