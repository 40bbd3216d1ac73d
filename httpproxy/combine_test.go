package httpproxy_test

import (
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headpond/headpond/httpproxy"
)

// Features of routes are tested one by one elsewhere. Here they meet: routes have random features at the same time, and random
// clients ask random servers through them. All that happens to a request follows from its combined, which client, servers
// and the model share. The model (combine_model_test.go) says what docs/http.md and RFC 9110 promise for it.

var (
	combineRounds = flag.Int("combinations", 2, "rounds of TestCombinations: each has other routes")
	combineSeed   = flag.Uint64("combinations-seed", 1, "of the first round of TestCombinations")
)

// Sizes of a round.
const (
	combineRoutes  = 8
	combineClients = 8
	combineTurns   = 18 // of each client; in one it sends one request or several
)

// combineWarm is the path of a route without any feature.
const combineWarm = "/warm"

// combined is a request, with all that its client, its route and its servers do.
type combined struct {
	tag   string
	route *combineRoute

	// Of the client.
	proto      int // 10, 11 or 20
	method     string
	rest       string // of the path, behind the route's prefix
	query      string
	body       []byte
	chunked    bool
	trailers   bool // the body has some
	expects    bool
	closes     bool // Connection: close; with HTTP/1.0: no keep-alive
	credential string
	origin     string
	accept     string // Accept-Encoding; "" = none
	wantsJSON  bool
	asksFor    string // If-None-Match
	idempotent bool   // it has an Idempotency-Key
	bucket     string
	model      string
	grpc       bool // it is a call of gRPC
	hasty      bool // it has a deadline
	waits      bool // half of the body waits for the head of the answer, for a while
	preflight  bool
	upgrade    string // the protocol that it asks for
	said       []byte // by the client, after the upgrade
	gives      bool   // the client leaves before it has the answer

	tries []combineTry

	mu     sync.Mutex
	seen   int  // by servers
	copies int  // by the mirror
	asked  int  // by the authentication server
	unsent bool // an answer before it has ended the connection
	notes  *combineNotes
}

// combineTry is what a server does with a request.
type combineTry struct {
	status   int
	size     int
	framing  string // length, chunks or close
	trailers bool
	interims int
	fault    string // "", reset, close, cut, early, stall; of the server framed also refuse, goaway
	early    bool   // refuse and goaway do not wait for the body
	duplex   bool   // half of the answer does not either
	closes   bool   // the connection ends after the answer
	etag     string
	media    string
	coded    bool // it has a Content-Encoding
	vary     string
	control  string
	checksum bool
}

// try returns what the server does with the nth try.
func (c *combined) try(n int) *combineTry { return &c.tries[min(n, len(c.tries)-1)] }

// gaveBack reports whether the server says that it has not looked at the request.
func (t *combineTry) gaveBack() bool { return t.fault == "refuse" || t.fault == "goaway" }

// begin counts a try of a server, and returns it.
func (c *combined) begin() (*combineTry, int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen++
	return c.try(c.seen - 1), c.seen - 1
}

// content is what try n answers.
func (c *combined) content(n int) []byte {
	piece := fmt.Sprintf("%s.%d|", c.tag, n)
	size := c.try(n).size
	return []byte(strings.Repeat(piece, 1+size/len(piece))[:size])
}

// combineRound has what the requests of a round share.
type combineRound struct {
	t       *testing.T
	seed    uint64
	proxy   running
	cfg     httpproxy.Config
	clients []*combineClient
	routes  []*combineRoute
	lines   *logLines
	all     sync.Map // *combined by tag

	mu       sync.Mutex
	buckets  map[string]*combineBucket
	failures int
	told     map[string]bool // requests about which a failure was reported
}

// combineBucket is a value that a rate limit counts by.
type combineBucket struct{ limit, admitted, refused int }

func (r *combineRound) find(tag string) *combined {
	c, ok := r.all.Load(tag)
	if !ok {
		r.t.Errorf("a server gets a request with the tag %q, which no client has sent", tag)
		return nil
	}
	return c.(*combined)
}

// maxCombineFailures bounds what is reported of a round: the first ones tell most.
const maxCombineFailures = 10

func (r *combineRound) failed(c *combined, format string, args ...any) {
	r.mu.Lock()
	many := r.failures >= maxCombineFailures || r.told[c.tag]
	if !many {
		r.failures++
		r.told[c.tag] = true
	}
	r.mu.Unlock()
	if !many {
		r.t.Errorf("%s: %s\n\t%s", c.tag, fmt.Sprintf(format, args...), c)
	}
}

// String describes the request for a failure.
func (c *combined) String() string {
	s := fmt.Sprintf("HTTP/%d %s %s%s%s body=%d chunked=%t trailers=%t expects=%t closes=%t credential=%q origin=%q accept=%q json=%t asks=%q idem=%t bucket=%q model=%q grpc=%t hasty=%t upgrade=%q gives=%t seen=%d\n\t%s",
		c.proto, c.method, c.route.prefix, c.rest, c.query, len(c.body), c.chunked, c.trailers, c.expects, c.closes, c.credential, c.origin, c.accept, c.wantsJSON, c.asksFor, c.idempotent, c.bucket, c.model, c.grpc, c.hasty, c.upgrade, c.gives, c.seen, c.route)
	for _, try := range c.tries[:4] {
		s += fmt.Sprintf("\n\t%+v", try)
	}
	return s
}

// TestCombinations: whatever features are on at the same time, clients get what each of them promises, servers get each request as
// often as they may, and logs and counters tell what clients saw. Run it for longer by -combinations N; a failure names the
// round's seed, for -combinations-seed N -combinations 1.
func TestCombinations(t *testing.T) {
	for i := range uint64(*combineRounds) {
		seed := *combineSeed + i
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			r := &combineRound{t: t, seed: seed, lines: &logLines{t: t}, buckets: map[string]*combineBucket{}, told: map[string]bool{}}
			r.begin()
			r.run()
			r.check()
		})
	}
}

// begin makes servers and routes.
func (r *combineRound) begin() {
	rnd := rand.New(rand.NewPCG(r.seed, 1)) //nolint:gosec // for tests
	s := newCombineServers(r)
	cfg := httpproxy.Config{AccessLog: &httpproxy.AccessLog{To: r.lines, Format: combineFormat}}
	cfg.Listener.Logger = slog.New(slog.DiscardHandler)
	cfg.Routes = append(cfg.Routes, httpproxy.Route{Path: combineWarm, Upstream: newUpstream(r.t, serveHTTP(r.t, func(http.ResponseWriter, *http.Request) {})), NoAccessLog: true})
	for i := range combineRoutes {
		route := newCombineRoute(rnd, s, i)
		r.routes = append(r.routes, route)
		if route.big != nil { // before the other, as the order decides between equal expressions
			cfg.Routes = append(cfg.Routes, *route.big)
		}
		cfg.Routes = append(cfg.Routes, route.Route)
	}
	r.cfg = cfg
	r.proxy = startProxy(r.t, cfg)
	for range combineClients * combineTurns { // retries are within the budget then, which all upstreams share
		if resp, _ := get(r.t, r.proxy.url+combineWarm); resp.StatusCode != http.StatusOK {
			r.t.Fatal(resp.Status)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

// run has all clients send their requests.
func (r *combineRound) run() {
	var clients, reloads sync.WaitGroup
	over := make(chan struct{})
	reloads.Go(func() { r.reload(over) })
	for i := range combineClients {
		client := newCombineClient(r, i, rand.New(rand.NewPCG(r.seed, uint64(100+i)))) //nolint:gosec // for tests
		r.clients = append(r.clients, client)
		clients.Go(func() {
			for turn := range combineTurns {
				client.turn(fmt.Sprintf("s%dc%dt%d", r.seed, i, turn))
			}
		})
	}
	clients.Wait()
	close(over)
	reloads.Wait()
}

// reload gives the proxy its configuration again, with and without a route that gets no request, while requests run: nobody notices.
func (r *combineRound) reload(over <-chan struct{}) {
	cfg := r.cfg
	cfg.Routes = append([]httpproxy.Route{{Path: "/other", Respond: httpproxy.Respond{Status: http.StatusOK}, RateLimit: httpproxy.RateLimit{Requests: 1}}}, r.cfg.Routes...)
	for i := 0; r.seed%2 == 0; i++ {
		select {
		case <-over:
			return
		case <-time.After(20 * time.Millisecond):
		}
		next := r.cfg
		if i%2 == 0 {
			next = cfg
		}
		if err := r.proxy.Update(next); err != nil {
			r.t.Error(err)
			return
		}
	}
}

// combineFormat is the format of the access log; the parts are those of combineLine.
const combineFormat = "{header.x-tag}|{status}|{bytes_in}|{bytes_out}|{retries}|{protocol}|{method}|{path}|{user}|{reason}|{request_id}|{upstream}|{error}"

// check compares logs and counters with what clients have seen, and waits until nothing is left.
func (r *combineRound) check() {
	eventually(r.t, "all connections of clients end, and their memory is given back", func() bool {
		for _, client := range r.clients {
			client.close() // a stream that its client has just reset may have kept its connection
		}
		s := r.proxy.Stats()
		return s.Active == 0 && s.Buffered == 0
	})
	eventually(r.t, "no answer is being compressed", func() bool { return httpproxy.CompressorsInUse() == 0 })
	r.lines.mu.Lock()
	lines := map[string][]string{}
	for _, line := range r.lines.all {
		tag, rest, _ := strings.Cut(line, "|")
		lines[tag] = append(lines[tag], rest)
	}
	r.lines.mu.Unlock()
	for tag := range r.told {
		r.t.Logf("%s is logged as %q", tag, lines[tag])
	}
	r.all.Range(func(tag, c any) bool {
		r.checkEnd(c.(*combined), lines[tag.(string)])
		return true
	})
	for name, b := range r.buckets {
		if total := b.admitted + b.refused; b.admitted != min(total, b.limit) {
			r.t.Errorf("%d of %d requests of %s are within the limit of %d", b.admitted, total, name, b.limit)
		}
	}
	r.checkCounters(lines)
}
