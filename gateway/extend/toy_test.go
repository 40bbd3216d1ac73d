package extend_test

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/headpond/headpond/gateway"
	"github.com/headpond/headpond/gateway/admin"
	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/gateway/extend"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/gatewaytest"
	"github.com/headpond/headpond/internal/leaktest"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/tcpproxy"
	"github.com/headpond/headpond/upstream"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const quoteText = `admin: 127.0.0.1:0
listeners:
  - name: q
    protocol: quote
    listen: 127.0.0.1:0
    quote: {text: "{text}"}
`

// TestConfigurationOfAProtocol: the keys of a registered protocol are read, checked and shown like all others.
func TestConfigurationOfAProtocol(t *testing.T) {
	for text, want := range map[string]string{
		`{txet: a}`:                  `quote.yaml:6:13: listener "q": unknown key "txet"; did you mean "text"?`,
		`{times: 2}`:                 `quote.yaml:6:12: listener "q": "text" is missing`,
		`{text: a, times: 11}`:       `quote.yaml:6:29: listener "q": times: "11": out of range; want 1 to 10`,
		"{text: \"a\\nb\"}":          `quote.yaml:6:19: listener "q": text: want a single line`,
		`{text: a, address: b}`:      `quote.yaml:6:22: listener "q": unknown key "address"`,
		"{text: a}\n    upstream: x": `quote.yaml:7:15: listener "q": upstream: a quote is all that its clients get`,
		"{text: a}\n    http: {}":    `quote.yaml:7:11: listener "q": "http": these settings are for another protocol; this listener's is "quote"`,
	} {
		_, problems := config.Parse("quote.yaml", []byte(strings.Replace(quoteText, `{text: "{text}"}`, text, 1)))
		if got := problems.String(); !strings.Contains(got, want) {
			t.Errorf("%s:\n%swant\n%s", text, got, want)
		}
	}
	effective, err := gatewaytest.Parse(t, quoteText).YAML()
	if err != nil || !strings.Contains(string(effective), "  quote:\n    text: \"{text}\"\n    times: 1\n") {
		t.Errorf("%v\n%s", err, effective)
	}
}

// TestLifeOfAProtocol: a listener of a registered protocol is served, counted, reloaded and drained like all others.
func TestLifeOfAProtocol(t *testing.T) {
	quote := func(text string) *config.Config { return gatewaytest.Parse(t, quoteText, "{text}", text) }
	gw := gatewaytest.Run(t, quote("before"))
	c := conntest.Dial(t, gw.Addr("q"))
	ask(t, c, "before")
	address := gw.Addr("q")
	if err := gw.Reload(quote("after")); err != nil {
		t.Fatal(err)
	}
	if ask(t, c, "after"); gw.Addr("q") != address {
		t.Error("a changed listener has another address")
	}
	if err := gw.Reload(quote(" ")); err != nil {
		t.Fatal(err)
	}
	handler, err := admin.New(admin.Config{Snapshot: gw.Snapshot})
	if err != nil {
		t.Fatal(err)
	}
	for path, wants := range map[string][]string{
		"/metrics":       {`headpond_listener_connections_active{listener="q",protocol="quote"} 1`, `headpond_quote_asked_total{listener="q"} 2`},
		"/api/v1/status": {"\"asked\": 2\n", `"quotes q have nothing to say"`, `"title": "Quotes"`},
	} {
		page := httptest.NewRecorder()
		handler.ServeHTTP(page, httptest.NewRequest(http.MethodGet, path, nil))
		for _, want := range wants {
			if !strings.Contains(page.Body.String(), want) {
				t.Errorf("%s lacks %s", path, want)
			}
		}
	}
	gw.Stop()
	conntest.Eventually(t, "it does not drain", func() bool { return gw.Snapshot().Listeners[0].Draining })
	ask(t, c, " ") // a session may finish
	_ = c.Close()
	if err := <-gw.Result; err != nil {
		t.Error(err)
	}
}

// A listener of protocol relay is a tcp listener by another name.
func init() {
	extend.RegisterProtocol(extend.Protocol{
		Config: config.ListenerProtocol{
			Name: "relay", Section: &struct{}{}, Pool: config.Pool{MaxSize: 10},
		},
		Prepare: func(l extend.Listener) (extend.Server, error) {
			to, err := extend.Runs[*upstream.Upstream[net.Conn]](l, l.Upstream)
			if err != nil {
				return extend.Server{}, err
			}
			return extend.Serve(tcpproxy.Config{Listener: l.Common, Upstream: to}, tcpproxy.New)
		},
	})
}

// TestProtocolWithUpstream: the pools of an upstream are made for the protocol that uses it, with its limits.
func TestProtocolWithUpstream(t *testing.T) {
	gw := gatewaytest.Run(t, gatewaytest.Parse(t, `
listeners:
  - {name: r, protocol: relay, listen: "127.0.0.1:0", upstream: echo}
upstreams:
  echo: {endpoints: ["{echo}"]}
`, "{echo}", conntest.Serve(t, conntest.Echo)))
	if err := conntest.RoundTrip(gw.Addr("r"), "there and back"); err != nil {
		t.Fatal(err)
	}
	if u := gw.Snapshot().Upstreams[0]; u.Protocol != "relay" || u.Endpoints[0].Pool.MaxSize != 10 || u.Endpoints[0].Pool.Acquired != 1 {
		t.Errorf("%+v", u)
	}
}

// TestPoolOfAProtocol: limits that a protocol leaves out have the defaults of package pool, and the configuration that is shown can be read.
func TestPoolOfAProtocol(t *testing.T) {
	cfg := gatewaytest.Parse(t, `
listeners:
  - {name: r, protocol: relay, listen: "127.0.0.1:0", upstream: echo}
upstreams:
  echo: {endpoints: ["127.0.0.1:1"]}
`)
	effective, err := cfg.YAML()
	if err != nil {
		t.Fatal(err)
	}
	again, problems := config.Parse("effective.yaml", effective)
	if problems != nil {
		t.Fatalf("%s\n%s", problems, effective)
	}
	if p := again.Upstreams[0].Pool; p.IdleTimeout != pool.DefaultIdleTimeout || p.CheckAfter != pool.DefaultCheckAfter {
		t.Errorf("%+v", p)
	}
}

// twinKey is the key under which listeners of protocol twin show their rows.
var twinKey atomic.Value

func init() {
	twinKey.Store("twins")
	extend.RegisterProtocol(extend.Protocol{
		Config:  config.ListenerProtocol{Name: "twin", Section: &struct{}{}, NoUpstream: "a twin has none"},
		Prepare: prepareQuote,
		Show: func([]extend.Proxy) []admin.Addition {
			return []admin.Addition{(&admin.Report[QuoteStatus]{Key: twinKey.Load().(string), Title: "Twins"}).Of(nil)}
		},
	})
}

// TestOneKeyForTwoProtocols: two protocols that would show their rows under one key are refused at the start, when a file is checked too.
func TestOneKeyForTwoProtocols(t *testing.T) {
	cfg := gatewaytest.Parse(t, quoteText)
	twinKey.Store("quotes")
	defer twinKey.Store("twins")
	for name, start := range map[string]func(){
		"Check": func() { gateway.Check(cfg) },
		"New":   func() { _, _ = gateway.New(cfg, gateway.Options{Logger: slog.New(slog.DiscardHandler)}) },
	} {
		func() {
			defer func() {
				if err, _ := recover().(error); err == nil || !strings.Contains(err.Error(), `key "quotes" of report "Twins" is already the key of report "Quotes"`) {
					t.Errorf("%s: %v", name, err)
				}
			}()
			start()
		}()
	}
}

func ask(t *testing.T, c net.Conn, want string) {
	t.Helper()
	answer := make([]byte, len(want))
	if _, err := c.Write([]byte("?")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, answer); err != nil || string(answer) != want {
		t.Fatalf("answer %q, %v; want %q", answer, err, want)
	}
}
