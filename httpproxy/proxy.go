package httpproxy

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/httpwire"
	"github.com/headpond/headpond/internal/jsonfield"
	"github.com/headpond/headpond/internal/jwt"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/traffic"
)

// Proxy accepts HTTP/1.1 and HTTP/2 and forwards requests over pooled connections. All methods are safe for
// concurrent use.
type Proxy struct {
	srv      *listener.Server
	tls      atomic.Pointer[tls.Config] // nil = plain
	carriers carriers
	limits   atomic.Pointer[limits]
	table    atomic.Pointer[table]
	traffic  *traffic.Set
	models   *traffic.Set              // of routes with LLM
	users    *traffic.Set              // of routes with LLM: what authenticated users use
	name     string                    // the listener's
	log      atomic.Pointer[accessLog] // nil = none
	tracer   Tracer                    // nil = none
	unrouted *traffic.Cell             // counts requests without a route
	ledger   ledger

	copies     fiber.Group     // sends copies for Mirrors
	copying    context.Context // of the copies
	stopCopies context.CancelFunc

	tables  sync.Mutex         // held while a table is made
	budgets map[string]*budget // by name of the upstream; guarded by tables
	// limiters holds the limiters of the routes' RateLimits; guarded by tables.
	limiters map[string]*limiter
	// keys holds the keys of tokens, by JWT.Source; guarded by tables.
	keys    map[string]*jwt.Keys
	readers goroutines // read these keys
}

var _ listener.Handler = (*Proxy)(nil)

// limits are the parts of a Config that sessions use.
type limits struct {
	readHeader, clientIdle time.Duration
	head, fields, streams  int
}

func limitsOf(cfg Config) *limits {
	return &limits{
		readHeader: cmp.Or(cfg.ReadHeaderTimeout, DefaultReadHeaderTimeout),
		clientIdle: cmp.Or(cfg.ClientIdleTimeout, DefaultClientIdleTimeout),
		streams:    cmp.Or(cfg.MaxStreams, DefaultMaxStreams),
		head:       cmp.Or(cfg.MaxHeaderBytes, DefaultMaxHeaderBytes),
		fields:     min(cmp.Or(cfg.MaxHeaderFields, DefaultMaxHeaderFields), httpwire.MaxFields),
	}
}

// New checks cfg and makes a Proxy. Errors wrap ErrConfig or listener.ErrConfig.
func New(cfg Config) (*Proxy, error) {
	if err := cfg.Verify(); err != nil {
		return nil, err
	}
	cfg.Listener.Protocol, cfg.Listener.ClientFirst = "http", true
	p := &Proxy{name: cfg.Listener.Name, tracer: cfg.Tracer, traffic: traffic.NewSet(routeTraffic), models: traffic.NewSet(modelTraffic), users: traffic.NewSet(userTraffic), budgets: map[string]*budget{}}
	p.copying, p.stopCopies = context.WithCancel(context.Background())
	p.unrouted = p.traffic.Cell("", "")
	var err error
	if p.srv, err = listener.New(cfg.Listener, p); err != nil {
		return nil, err
	}
	p.srv.Measure(p.traffic)
	p.srv.Measure(p.models)
	p.srv.Measure(p.users)
	p.ledger.memory = cfg.Memory
	if cfg.Memory == nil {
		p.ledger.memory = SharedMemory()
	}
	p.ledger.limit.Store(cfg.MaxBuffered)
	p.ledger.perConn.Store(cfg.MaxBufferedPerConn)
	p.table.Store(p.newTable(cfg))
	p.log.Store(newAccessLog(cfg))
	p.limits.Store(limitsOf(cfg))
	if cfg.TLS != nil {
		p.tls.Store(serverTLS(cfg.TLS))
		p.carriers.tls.Store(carrierTLS(cfg.TLS))
	}
	p.carriers.secret = cfg.ResetSecret
	p.carriers.set(cfg.Announce)
	return p, nil
}

// newTable makes the routes of cfg ready to serve.
func (p *Proxy) newTable(cfg Config) *table {
	p.tables.Lock()
	defer p.tables.Unlock()
	fields, lengths := bodyFields(cfg.Routes), promptLengths(cfg.Routes)
	limiters, keys := map[string]*limiter{}, map[string]*jwt.Keys{}
	trusted := listener.Addresses{Allow: cfg.TrustedProxies}.Plain().Allow
	pages := newErrorPages(cfg.ErrorPages)
	counts, asks := false, false // some route counts tokens, or asks for the usage
	var ready func(r Route) *target
	ready = func(r Route) *target {
		strip := 0
		if r.StripPrefix {
			strip = len(strings.TrimSuffix(r.Path, "/"))
		}
		name := ""
		if r.Upstream != nil {
			name = r.Upstream.Name()
		}
		path, expression := canonicalPath(r.Path), (*regexp.Regexp)(nil)
		if r.PathMatch != PathPrefix {
			path = r.Path
		}
		if r.PathMatch == PathRegexp {
			expression, _ = CompilePath(r.Path) // no error: Verify has compiled it
		}
		label := r.label()
		cell := p.traffic.Cell(label, name)
		tg := &target{
			label: label, path: path, match: r.PathMatch, expression: expression, when: newConditions(r, fields), groups: groupsOf(r, fields),
			affinity: newAffinity(r.Affinity, lengths), access: p.newAccess(r, keys), limiter: p.limiterOf(r, limiters), compress: newCompressing(r.Compression), cors: newCORS(r),
			route: r, name: name, strip: strip,
			traffic: cell, retries: newRetryPolicy(r.Retries), budget: p.budgetOf(name, cell),
			trusted: trusted, forwarded: !cfg.NoForwarded, via: cfg.Via,
			idle:     max(cmp.Or(r.IdleTimeout, DefaultIdleTimeout), 0),
			response: max(cmp.Or(r.ResponseTimeout, defaultResponseTimeout), 0),
		}
		if r.LLM != nil {
			tg.llm = p.newLLM(slices.Index(fields, modelField), p.tokenLimitersOf(r, limiters), label, name)
			if counts = true; r.LLM.IncludeUsage {
				tg.llm.ask, asks = newUsageFields(fields), true
			}
		}
		if tg.pages = pages; r.ErrorPages != nil {
			tg.pages = newErrorPages(r.ErrorPages)
		}
		tg.readsBody = tg.llm != nil || tg.affinity.readsBody()
		tg.change(r)
		tg.mirror = newMirror(r.Mirror, tg.response, tg.idle)
		if c := r.Canary; c.Upstream != nil {
			r.Upstream, r.Canary, r.RateLimit, r.BasicAuth, r.BearerAuth, r.ForwardAuth = c.Upstream, Canary{}, RateLimit{}, nil, nil, nil
			share := ready(r)
			share.limiter, share.access, share.mirror = tg.limiter, tg.access, tg.mirror // one for all targets of the route
			if tg.llm != nil {
				share.llm.limits = tg.llm.limits
			}
			tg.canary = newCanary(c, share)
		}
		return tg
	}
	t := newTable(cfg.Routes, ready)
	p.limiters, p.keys = limiters, keys
	t.keyAuthorization, t.trusted = cfg.KeyAuthorization, trusted
	t.asks, t.pages = asks, pages
	t.peek, t.refuse = cmp.Or(cfg.PeekBytes, DefaultPeekBytes), cfg.RefuseBeyondPeek
	if len(fields)+len(lengths) > 0 {
		plan, _ := jsonfield.NewPlan(fields) // no error: Verify has made it
		if t.plan = plan.WithPrompts(lengths); counts {
			t.plan = t.plan.WithPromptSize()
		}
	}
	return t
}

// change prepares the route's changes to messages, or its own answer. Verify has found no error.
func (t *target) change(r Route) {
	t.route.Respond.ContentType = cmp.Or(r.Respond.ContentType, "text/plain; charset=utf-8")
	t.route.DeadlineHeader = strings.ToLower(r.DeadlineHeader)
	t.requestRules, _ = newHeaderRules(r.RequestHeaders, true)
	if r.LLM != nil && !r.RequestHeaders.names("accept-encoding") {
		t.requestRules = t.requestRules.withSet("Accept-Encoding", "identity")
	}
	t.responseRules, _ = newHeaderRules(r.ResponseHeaders, false)
	t.rewrite, _ = parseTemplate(r.Rewrite, true, t.expression)
	t.reverse = newReverse(r, t.rewrite)
	t.redirect, _ = parseTemplate(r.Redirect.To, true, t.expression)
	t.captures = t.rewrite.groups()+t.redirect.groups() > 0
	t.redirectStatus = cmp.Or(r.Redirect.Status, http.StatusPermanentRedirect)
	if r.PathMatch == PathPrefix {
		t.prefix = len(strings.TrimSuffix(r.Path, "/"))
	}
}

// budgetOf returns the retry budget of an upstream, and makes the requests counted by cell count for it. The caller
// holds tables.
func (p *Proxy) budgetOf(upstream string, cell *traffic.Cell) *budget {
	b := p.budgets[upstream]
	if b == nil {
		b = newBudget(time.Now())
		p.budgets[upstream] = b
	}
	b.watch(cell)
	return b
}

// defaultResponseTimeout is the default of Route.ResponseTimeout.
const defaultResponseTimeout = time.Minute

// Serve accepts connections from l until Drain or Close and then returns nil. It takes l over. It may be called for
// several listeners, of which some may be CarrierListeners if the Config has TLS.
func (p *Proxy) Serve(l net.Listener) error {
	if err := p.beginCarriers(l); err != nil {
		return err
	}
	defer p.carriers.remove(l)
	p.ledger.memory.add(&p.ledger)
	return p.srv.Serve(l)
}

// isDraining reports whether the proxy drains.
func (p *Proxy) isDraining() bool { return p.srv.IsDraining() }

// errPanicked is the reason recorded for work that a panic has ended.
var errPanicked = errors.New("a defect of the proxy")

// noteRefused counts and logs a request whose head could not be read, for a reason of package listener.
func (p *Proxy) noteRefused(c net.Conn, reason string) {
	p.srv.Report(reason, slog.LevelInfo, "request refused: malformed, incomplete, too large or too slow",
		"client", c.RemoteAddr().String())
}

// recovered must be deferred by the fibers that a session starts; the listener recovers panics of sessions themselves.
func (p *Proxy) recovered(lc *listener.Conn) {
	if v := recover(); v != nil {
		p.srv.Report(listener.ReasonInternal, slog.LevelError, "session panicked", "client", lc.RemoteAddr().String(),
			"panic", v, "stack", string(debug.Stack()))
	}
}

// Update replaces the routes, the listener settings, and which client certificates TLS asks for. Requests under way
// finish with the old routes. On an error nothing changes.
func (p *Proxy) Update(cfg Config) error {
	if err := cfg.Verify(); err != nil {
		return err
	}
	cfg.Listener.Protocol, cfg.Listener.ClientFirst = "http", true
	if err := p.srv.Update(cfg.Listener); err != nil {
		return err
	}
	p.updateTLS(cfg.TLS)
	p.carriers.set(cfg.Announce)
	p.table.Store(p.newTable(cfg))
	p.log.Store(newAccessLog(cfg))
	p.limits.Store(limitsOf(cfg))
	p.ledger.limit.Store(cfg.MaxBuffered)
	p.ledger.perConn.Store(cfg.MaxBufferedPerConn)
	return nil
}

// Drain stops accepting, closes idle connections and lets requests and upgraded connections finish; HTTP/2 clients are
// asked to reconnect. If ctx ends first, the remaining connections are closed and the error wraps ctx's.
func (p *Proxy) Drain(ctx context.Context) error {
	interrupted := make(chan struct{})
	go func() {
		defer close(interrupted)
		<-p.srv.Draining()
		p.srv.Each(func(s listener.Session) { s.(interface{ interrupt() }).interrupt() }) //nolint:forcetypeassert // all are sessions or http2
	}()
	err := p.srv.Drain(ctx)
	<-interrupted
	p.readers.stop()
	p.endCopies(ctx)
	p.ledger.memory.remove(&p.ledger)
	return err
}

// Stats returns the listener's counters.
func (p *Proxy) Stats() listener.Stats {
	st := p.srv.Stats()
	st.Buffered = p.ledger.held()
	return st
}
