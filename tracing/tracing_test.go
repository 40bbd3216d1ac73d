package tracing_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/internal/certs"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/gatewaytest"
	"github.com/headpond/headpond/internal/leaktest"
	"github.com/headpond/headpond/internal/repotest"
	"github.com/headpond/headpond/tracing"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// collector runs the receiver of OpenTelemetry's collector, and returns its address and what it gets.
func collector(t *testing.T) (address string, got *consumertest.TracesSink) {
	t.Helper()
	address, got = conntest.FreeAddress(t), new(consumertest.TracesSink)
	f := otlpreceiver.NewFactory()
	cfg := f.CreateDefaultConfig()
	settings := map[string]any{"protocols": map[string]any{"http": map[string]any{"endpoint": address}}}
	if err := confmap.NewFromStringMap(settings).Unmarshal(cfg); err != nil {
		t.Fatal(err)
	}
	r, err := f.CreateTraces(t.Context(), receiver.Settings{
		ID: component.NewID(f.Type()), TelemetrySettings: componenttest.NewNopTelemetrySettings(),
	}, cfg, got)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Start(t.Context(), componenttest.NewNopHost()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return address, got
}

// span is a span as the collector got it.
type span struct {
	ptrace.Span
	resource map[string]any
}

// attribute returns one as a text, "" if there is none.
func (s span) attribute(key string) string {
	if v, ok := s.Attributes().Get(key); ok {
		return v.AsString()
	}
	return ""
}

// spansOf returns all spans, by the id of their parents.
func spansOf(got *consumertest.TracesSink) map[string][]span {
	all := map[string][]span{}
	for _, traces := range got.AllTraces() {
		for _, r := range traces.ResourceSpans().All() {
			for _, scope := range r.ScopeSpans().All() {
				for _, s := range scope.Spans().All() {
					id := s.ParentSpanID().String()
					all[id] = append(all[id], span{s, r.Resource().Attributes().AsRaw()})
				}
			}
		}
	}
	return all
}

// backend answers with the traceparent and tracestate it got, separated by a blank; the first request for /again with 503.
func backend(t *testing.T) string {
	t.Helper()
	failed := false
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/again" && !failed {
			failed = true
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprint(w, strings.Join(r.Header.Values("Traceparent"), ","), " ", r.Header.Get("Tracestate"))
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

const text = `
drain_timeout: 10s
{tracing}
listeners:
  - name: web
    protocol: http
    listen: "127.0.0.1:0"
    http:
      routes:
        - {path: /, upstream: web, retries: {on: ["503"], methods: [GET], attempts: 2}}
        - {path: /own, respond: {status: 204}}
        - {path: /down, upstream: down}
upstreams:
  web: {endpoints: ["{web}", "{also}"], balance: first}
  down: {endpoints: ["127.0.0.1:1"]}
`

// ask makes a request with a traceparent, unless that is empty.
func ask(t *testing.T, url, parent string) string {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("User-Agent", "a\xffb")
	if parent != "" {
		req.Header.Set("Traceparent", parent)
		req.Header.Set("Tracestate", "vendor=1")
	}
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

const (
	traceID, clientID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	sampled           = "00-" + traceID + "-" + clientID + "-01"
	unsampled         = "00-" + traceID + "-" + clientID + "-00"
)

// start runs a gateway with a section "tracing".
func start(t *testing.T, section string) *gatewaytest.Gateway {
	t.Helper()
	return gatewaytest.Run(t, parse(t, section))
}

func parse(t *testing.T, section string) *config.Config {
	t.Helper()
	web := backend(t)
	return gatewaytest.Parse(t, text, "{tracing}", section, "{web}", web, "{also}", strings.Replace(web, "127.0.0.1", "localhost", 1))
}

// TestSpans: a request continues its client's trace, and the backend continues the gateway's.
func TestSpans(t *testing.T) {
	address, got := collector(t)
	gw := start(t, `tracing: {endpoint: "http://`+address+`", sample: 0, service_name: pond, headers: {X-Key: secret}}`)
	url := "http://" + gw.Addr("web")
	seen := ask(t, url+"/a?secret=1", sampled)
	if again := ask(t, url+"/a", unsampled); again != unsampled+" vendor=1" {
		t.Errorf("a trace that is not recorded arrived as %q", again)
	}
	if alone := ask(t, url+"/a", ""); alone != " " {
		t.Errorf("a request that is not traced arrived with %q", alone)
	}
	gw.Stop()
	if err := <-gw.Result; err != nil {
		t.Error(err)
	}
	if got.SpanCount() != 2 {
		t.Fatalf("%d spans: %v", got.SpanCount(), spansOf(got))
	}
	all := spansOf(got)
	if len(all[clientID]) != 1 {
		t.Fatalf("spans: %v", all)
	}
	server := all[clientID][0]
	wantAttributes(t, server, map[string]string{
		"http.request.method": "GET", "url.path": "/a", "url.scheme": "http", "server.address": "127.0.0.1", "http.route": "/", "url.query": "",
		"http.response.status_code": "200", "client.address": "127.0.0.1", "user_agent.original": "a\ufffdb", "network.protocol.version": "1.1",
		"error.type": "", "headpond.listener": "web", "headpond.upstream": "web",
	})
	if server.Name() != "GET /" || server.Kind() != ptrace.SpanKindServer || server.TraceID().String() != traceID || server.TraceState().AsRaw() != "vendor=1" {
		t.Errorf("the server's span: %s %v %s %s", server.Name(), server.Kind(), server.TraceID(), server.TraceState().AsRaw())
	}
	if server.resource["service.name"] != "pond" {
		t.Errorf("the resource: %v", server.resource)
	}
	tries := all[server.SpanID().String()]
	if len(tries) != 1 {
		t.Fatalf("tries: %v", tries)
	}
	wantAttributes(t, tries[0], map[string]string{"http.response.status_code": "200", "error.type": "", "http.request.resend_count": ""})
	if want := "00-" + traceID + "-" + tries[0].SpanID().String() + "-01 vendor=1"; seen != want {
		t.Errorf("the backend got %q, want %q", seen, want)
	}
	if tries[0].Kind() != ptrace.SpanKindClient || tries[0].StartTimestamp() < server.StartTimestamp() || tries[0].EndTimestamp() > server.EndTimestamp() {
		t.Errorf("the client's span: %v, %v to %v within %v to %v", tries[0].Kind(), tries[0].StartTimestamp(), tries[0].EndTimestamp(), server.StartTimestamp(), server.EndTimestamp())
	}
}

func wantAttributes(t *testing.T, s span, want map[string]string) {
	t.Helper()
	for key, value := range want {
		if got := s.attribute(key); got != value {
			t.Errorf("%s: %s is %q, want %q", s.Name(), key, got, value)
		}
	}
}

// TestSpansOfFailures: each try has a span, and requests without an upstream have one, too.
func TestSpansOfFailures(t *testing.T) {
	address, got := collector(t)
	gw := start(t, `tracing: {endpoint: "http://`+address+`/v1/traces", sample: 1}`)
	url := "http://" + gw.Addr("web")
	for _, path := range []string{"/again", "/own", "/down", "/a/../b"} {
		ask(t, url+path, "")
	}
	gw.Stop()
	if err := <-gw.Result; err != nil {
		t.Error(err)
	}
	all := spansOf(got)
	byPath := map[string]span{}
	for _, s := range all[""] {
		byPath[s.attribute("url.path")] = s
	}
	tries := func(path string) []span { return all[byPath[path].SpanID().String()] }
	if len(byPath) != 4 || len(tries("/again")) != 2 || len(tries("/own"))+len(tries("/down"))+len(tries("/a/../b")) != 0 {
		t.Fatalf("spans: %v", all)
	}
	wantAttributes(t, tries("/again")[0], map[string]string{"http.response.status_code": "503", "error.type": "503", "http.request.resend_count": ""})
	wantAttributes(t, tries("/again")[1], map[string]string{"http.response.status_code": "200", "error.type": "", "http.request.resend_count": "1", "server.address": "localhost"})
	wantAttributes(t, byPath["/own"], map[string]string{"http.response.status_code": "204", "http.route": "/own"})
	wantAttributes(t, byPath["/down"], map[string]string{"http.response.status_code": "502", "error.type": "upstream_unavailable"})
	wantAttributes(t, byPath["/a/../b"], map[string]string{"http.response.status_code": "400", "error.type": "protocol_error", "http.route": ""})
}

// TestReload: the section can be added, changed and removed while requests are served.
func TestReload(t *testing.T) {
	address, got := collector(t)
	gw := start(t, "")
	for i, section := range []string{
		`tracing: {endpoint: "http://` + address + `", sample: 1}`, `tracing: {endpoint: "http://` + address + `", sample: 0}`, "",
		`tracing: {endpoint: "http://` + address + `", sample: 1, parents: sample}`,
	} {
		if err := gw.Reload(parse(t, section)); err != nil {
			t.Fatal(err)
		}
		web := "http://" + gw.Addr("web") + "/own"
		ask(t, web, "")
		if want := []int{1, 1, 1, 2}[i]; want > 0 {
			conntest.Eventually(t, fmt.Sprintf("%d spans after reload %d", want, i), func() bool { return got.SpanCount() == want })
		}
	}
	if err := gw.Reload(parse(t, "")); err != nil {
		t.Fatal(err)
	}
}

// TestRenewedAuthority: a reload takes up a changed file of ca, though the section is the same.
func TestRenewedAuthority(t *testing.T) {
	authority := certs.New()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	server.TLS, _ = authority.Configs()
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "ca.pem")
	write := func(a *certs.Authority) {
		t.Helper()
		pem, _ := certs.PEM(a.Certificate)
		if err := os.WriteFile(file, pem, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	section := `tracing: {endpoint: "` + server.URL + `", sample: 1, ca: ` + file + `}`
	write(certs.New())
	gw := start(t, section)
	ask(t, "http://"+gw.Addr("web")+"/own", "")
	counts := func(check func(tracing.Status) bool) func() bool {
		return func() bool {
			for _, a := range gw.Snapshot().Additions {
				if rows, ok := a.Rows.([]tracing.Status); ok && len(rows) == 1 {
					return check(rows[0])
				}
			}
			return false
		}
	}
	conntest.Eventually(t, "the collector's certificate is refused", counts(func(s tracing.Status) bool { return s.Failed == 1 && s.Sent == 0 }))
	write(authority)
	if err := gw.Reload(parse(t, section)); err != nil {
		t.Fatal(err)
	}
	ask(t, "http://"+gw.Addr("web")+"/own", "")
	conntest.Eventually(t, "the span is sent", counts(func(s tracing.Status) bool { return s.Sent == 1 && s.Failed == 0 }))
}

// TestNoCollector: a collector that is not there delays neither requests nor the end, and lost spans are counted.
func TestNoCollector(t *testing.T) {
	address := conntest.FreeAddress(t)
	gw := start(t, `tracing: {endpoint: "http://`+address+`", sample: 1, max_queue: 512}`)
	for range 600 {
		ask(t, "http://"+gw.Addr("web")+"/own", "")
	}
	conntest.Eventually(t, "spans are lost", func() bool {
		for _, a := range gw.Snapshot().Additions {
			if rows, ok := a.Rows.([]tracing.Status); ok && len(rows) == 1 {
				return rows[0].Dropped+rows[0].Failed > 0
			}
		}
		return false
	})
	begin := time.Now()
	gw.Stop()
	if err := <-gw.Result; err != nil || time.Since(begin) > 9*time.Second {
		t.Errorf("after %v: %v", time.Since(begin), err)
	}
}

// TestDocumentedMetrics compares docs/tracing.md with what a gateway exports.
func TestDocumentedMetrics(t *testing.T) {
	doc, err := os.ReadFile("../docs/tracing.md")
	if err != nil {
		t.Fatal(err)
	}
	address, _ := collector(t)
	gw := start(t, "admin: \"127.0.0.1:0\"\ntracing: {endpoint: \"http://"+address+"\"}")
	exported := ask(t, "http://"+gw.Addr("admin")+"/metrics", "")
	names := map[string]bool{}
	for _, name := range regexp.MustCompile("headpond_tracing_[a-z_]+").FindAllString(string(doc), -1) {
		names[name] = true
		if !strings.Contains(exported, "\n"+name+"{endpoint=") {
			t.Errorf("%s is not exported", name)
		}
	}
	if n := strings.Count(exported, "# TYPE headpond_tracing_"); n != len(names) || n == 0 {
		t.Errorf("%d metrics are exported, and %d documented", n, len(names))
	}
}

// TestDocumentedKeys compares docs/tracing.md with the configuration.
func TestDocumentedKeys(t *testing.T) {
	const file = "docs/tracing.md"
	text, err := os.ReadFile("../" + file)
	if err != nil {
		t.Fatal(err)
	}
	repotest.CheckKeys(t, map[string]string{file: string(text)}, []repotest.KeyTable{{File: file, Header: "key of `tracing`", Of: []any{tracing.Settings{}}}})
}

// TestProblems: what is wrong in a file is said with its place.
func TestProblems(t *testing.T) {
	for section, want := range map[string]string{
		`{sample: 1}`:                                      `"endpoint" is missing`,
		`{endpoint: "127.0.0.1:4318"}`:                     "endpoint: want the URL of a collector",
		`{endpoint: "http://u:hidden@a.test"}`:             "endpoint: want the URL of a collector",
		`{endpoint: "http://a.test:4317"}`:                 "warning: endpoint: collectors speak OTLP over gRPC at port 4317",
		`{endpoint: "http://:4318"}`:                       "endpoint: want the URL of a collector",
		`{endpoint: "http://a.test", ca: /etc/hosts}`:      "ca: needs an endpoint with https://",
		`{endpoint: "http://a.test", parent: none}`:        `unknown key "parent"; did you mean "parents"?`,
		`{endpoint: "http://a.test", sample: -1}`:          "sample",
		`{endpoint: "http://a.test", headers: {"a b": x}}`: "headers:",
	} {
		_, problems := config.Parse("c.yaml", []byte("tracing: "+section+"\nlisteners: [{name: w, protocol: http, listen: \"127.0.0.1:0\", http: {routes: [{respond: {status: 204}}]}}]\n"))
		if got := fmt.Sprint(problems); !strings.Contains(got, want) || strings.Contains(got, "hidden") {
			t.Errorf("%s: %q, want %q", section, got, want)
		}
	}
}
