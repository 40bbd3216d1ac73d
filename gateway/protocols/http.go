package protocols

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/gateway/extend"
	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/httpwire"
)

func init() {
	extend.RegisterProtocol(extend.Protocol{Prepare: prepareHTTP, Backend: newHTTPBackend, Replaces: turnsTLS, Rebuilds: httpRebuilds, Files: httpFiles, Logs: httpLogs, Beside: besideHTTP, Show: showModels, Reuses: true, Config: config.ListenerProtocol{
		Name: config.HTTP, Keys: httpKeys(), Section: &HTTPListener{}, Default: defaultHTTP, Upstreams: routedTo, Check: checkHTTP, Finish: finishHTTP, ForwardHeaders: true, ClientCerts: true, ClientFirst: true, PlainHTTP: true, Beside: servesHTTP3,
		// A server takes thousands of connections; 60s is below the keep-alive time of common servers, so that our side closes first, and
		// each exchange looks at its connection anyway.
		Pool: config.Pool{MaxSize: 1024, IdleTimeout: time.Minute, CheckAfter: -1},
	}})
}

// turnsTLS reports whether a listener gets or loses TLS, and with it HTTP/2.
func turnsTLS(old, changed *config.Listener) bool { return (old.TLS == nil) != (changed.TLS == nil) }

// httpBackend is an upstream of http listeners.
type httpBackend struct{ *httpproxy.Upstream }

var (
	_ extend.Changeable = httpBackend{}
	_ extend.Follower   = httpBackend{}
)

func newHTTPBackend(s extend.Settings) (extend.Backend, error) {
	tlsConfig, err := extend.ClientTLS(s.Config.TLS)
	if err != nil {
		return nil, err
	}
	keys, shared := config.PartOf[HTTPUpstreamKeys](s.Config), HTTP2Upstream{}
	if keys.HTTP2 != nil {
		shared = *keys.HTTP2
	}
	u, err := httpproxy.NewUpstream(s.Config.Name, httpproxy.UpstreamOptions{
		Settings: s.Settings, ConnectTimeout: s.Config.ConnectTimeout, TLS: tlsConfig, Dial: s.Dial, Go: s.Start, Logger: s.Logger,
		Protocol: keys.Version, MaxConnStreams: shared.MaxStreams, PingAfter: shared.PingAfter,
	})
	if err != nil {
		return nil, err
	}
	return httpBackend{u}, nil
}

// Update implements extend.Backend.
func (b httpBackend) Update(s extend.Settings) error { return b.Upstream.Update(s.Settings) }

// Follow implements extend.Follower.
func (b httpBackend) Follow(next extend.Backend) bool {
	n, ok := next.(httpBackend)
	if ok {
		b.Upstream.Follow(n.Upstream)
	}
	return ok
}

// Runs implements extend.Backend.
func (b httpBackend) Runs() any { return b.Upstream }

func prepareHTTP(l extend.Listener) (extend.Server, error) {
	section := config.SectionOf[HTTPListener](l.Listener)
	cfg := httpproxy.Config{
		Listener: l.Common, TLS: l.TLS, ResetSecret: l.Secret, TrustedProxies: l.TrustedProxies,
		Announce: section.HTTP3.announcement(), PeekBytes: section.PeekBytes, RefuseBeyondPeek: section.PeekBeyond == BeyondRefuse,
		MaxBuffered: int64(section.MaxBuffered) << 20, MaxBufferedPerConn: int64(section.MaxPerConn) << 10, AccessLog: section.AccessLog.settings(l),
		ReadHeaderTimeout: section.ReadHeaderTimeout, ClientIdleTimeout: section.ClientIdleTimeout, MaxHeaderBytes: section.MaxHeader << 10, MaxStreams: section.MaxStreams,
	}
	for _, part := range l.Gateway.Parts() {
		if c, ok := part.(extend.Certifier); ok {
			cfg.KeyAuthorization = c.KeyAuthorization
		}
		if t, ok := part.(Tracer); ok {
			cfg.Tracer = t.Tracer()
		}
	}
	var err error
	if cfg.ErrorPages, err = pagesOf(section.ErrorPages); err != nil {
		return extend.Server{}, err
	}
	users, keys := usersOf{}, keysOf{}
	for _, r := range section.Routes {
		basic, err := users.settings(r.BasicAuth, l.Gateway)
		if err != nil {
			return extend.Server{}, err
		}
		tokens, err := keys.settings(r.BearerAuth, l.Gateway)
		if err != nil {
			return extend.Server{}, err
		}
		asks, err := r.ForwardAuth.settings(l)
		if err != nil {
			return extend.Server{}, err
		}
		canary, err := r.Canary.settings(l)
		if err != nil {
			return extend.Server{}, err
		}
		mirror, err := r.Mirror.settings(l)
		if err != nil {
			return extend.Server{}, err
		}
		pages, err := pagesOf(r.ErrorPages)
		if err != nil {
			return extend.Server{}, err
		}
		var runs *httpproxy.Upstream
		if !r.answersItself() {
			if runs, err = extend.Runs[*httpproxy.Upstream](l, r.Upstream); err != nil {
				return extend.Server{}, err
			}
		}
		cfg.Routes = append(cfg.Routes, httpproxy.Route{
			Host: r.Host, Path: r.Path, PathMatch: r.PathMatch.matchOf(), StripPrefix: r.StripPrefix, Upstream: runs,
			Methods: r.Methods, Headers: conditionsOf(r.Headers), Cookies: conditionsOf(r.Cookies), Query: conditionsOf(r.Query), Body: conditionsOf(r.Body), Groups: r.Groups,
			Allow: r.Allow, Deny: r.Deny, BasicAuth: basic, BearerAuth: tokens, ForwardAuth: asks, Compression: r.Compress.settings(), Canary: canary,
			ConnectTimeout: r.ConnectTimeout, ResponseTimeout: r.Timeout, IdleTimeout: r.IdleTimeout, Timeout: r.RequestTimeout, DeadlineHeader: r.DeadlineHeader,
			Rewrite: r.Rewrite, Redirect: r.Redirect.settings(), Respond: r.Respond.settings(),
			RequestHeaders: r.RequestHeaders.settings(), ResponseHeaders: r.ResponseHeaders.settings(), Locations: r.RewriteLocation.settings(), SetCookies: r.RewriteCookies.settings(),
			MaxBody: int64(r.MaxBody) << 10, StrictBackend: r.StrictBackend, NoAccessLog: r.AccessLog != nil && !r.AccessLog.Enabled, LogFilter: r.AccessLog.filter(), ErrorPages: pages, Mirror: mirror, Affinity: r.Affinity.settings(), RateLimit: r.RateLimit.settings(), LLM: r.LLM.settings(), CORS: r.CORS.settings(), Retries: cmp.Or(r.Retries, section.Retries).settings(),
		})
	}
	return extend.Serve(cfg, httpproxy.New)
}

// HTTPListener is the section of an http listener.
type HTTPListener struct {
	Routes      []Route     `conf:"routes" maxlen:"10000"`                                                // empty: everything goes to the listener's upstream
	PeekBytes   int         `conf:"peek_bytes" default:"65536" min:"256" max:"16777216"`                  // of a body that may be read for routes with Body
	PeekBeyond  Beyond      `conf:"peek_beyond" default:"default"`                                        // where that is not enough
	MaxBuffered int         `conf:"max_buffered_mib" default:"0" min:"0" max:"1048576"`                   // memory for requests; 0: only the process's bound
	MaxPerConn  int         `conf:"max_buffered_per_connection_kib" default:"0" min:"0" max:"1073741824"` // for the requests of one client's connection; 0: no separate bound
	Retries     *Retries    `conf:"retries"`                                                              // of routes without their own; never nil when read from a file
	ErrorPages  []ErrorPage `conf:"error_pages" maxlen:"64"`                                              // of routes without their own, and of requests without a route
	AccessLog   *AccessLog  `conf:"access_log"`                                                           // nil: none of its own
	HTTP3       *HTTP3      `conf:"http3" scalar:"Enabled"`                                               // nil: none

	ReadHeaderTimeout time.Duration `conf:"read_header_timeout" default:"10s" min:"1ms" max:"1h"` // for the head of a client's request, and for its TLS handshake
	ClientIdleTimeout time.Duration `conf:"client_idle_timeout" default:"2m" min:"1ms" max:"24h"` // of a client's connection without requests
	MaxHeader         int           `conf:"max_header_kib" default:"64" min:"16" max:"1024"`      // the head of a request
	MaxStreams        int           `conf:"max_streams" default:"250" min:"1" max:"10000"`        // requests at a time on a connection of HTTP/2 or HTTP/3
}

// Route sends requests to an upstream. The most specific route wins.
type Route struct {
	Host            string        `conf:"host"`             // empty: any
	Path            string        `conf:"path" default:"/"` // compared as PathMatch says, decoded
	PathMatch       PathMatch     `conf:"path_match" default:"prefix"`
	Methods         []string      `conf:"methods" maxlen:"32"`                                             // empty: all
	Headers         []Condition   `conf:"headers" key:"Name" scalar:"Value" maxlen:"32"`                   // all must be there
	Cookies         []Condition   `conf:"cookies" key:"Name" scalar:"Value" maxlen:"32"`                   // all must be there
	Query           []Condition   `conf:"query" key:"Name" scalar:"Value" maxlen:"32"`                     // all must be there
	Body            []Condition   `conf:"body" key:"Name" scalar:"Value" maxlen:"32"`                      // fields of a JSON object; all must be there
	Groups          []string      `conf:"groups" maxlen:"32"`                                              // groups that the upstream can answer: key=value, key=* or all
	StripPrefix     bool          `conf:"strip_prefix"`                                                    // forward without Path
	Upstream        string        `conf:"upstream"`                                                        // default: the listener's upstream
	ConnectTimeout  time.Duration `conf:"connect_timeout" default:"never" min:"1ms" max:"24h" never:"0s"`  // of each endpoint that is tried
	Timeout         time.Duration `conf:"timeout" default:"60s" min:"1ms" max:"168h" never:"-1ns"`         // from the request to the response's header
	IdleTimeout     time.Duration `conf:"idle_timeout" default:"10m" min:"1ms" max:"168h" never:"-1ns"`    // between two pieces of a body, or of an upgraded connection
	DeadlineHeader  string        `conf:"deadline_header"`                                                 // in which clients say how long a request may take
	RequestTimeout  time.Duration `conf:"request_timeout" default:"never" min:"1ms" max:"168h" never:"0s"` // of a request as a whole, with both bodies; not of upgraded connections
	Retries         *Retries      `conf:"retries"`                                                         // nil: the listener's
	MaxBody         int           `conf:"max_body_kib" default:"0" min:"0" max:"1073741824"`               // of requests; 0: no bound
	StrictBackend   bool          `conf:"strict_backend"`                                                  // refuse answers that frame their body twice
	Rewrite         string        `conf:"rewrite" groups:"true"`                                           // the path that the server gets
	Redirect        *Redirect     `conf:"redirect" scalar:"To"`                                            // nil: none
	Respond         *Respond      `conf:"respond"`                                                         // nil: none
	RequestHeaders  *HeaderRules  `conf:"request_headers"`                                                 // nil: unchanged
	ResponseHeaders *HeaderRules  `conf:"response_headers"`                                                // nil: unchanged
	Affinity        *Affinity     `conf:"affinity"`                                                        // nil: only the upstream's balance decides

	RewriteLocation *RewriteLocation `conf:"rewrite_location" scalar:"Own"` // nil: addresses in answers stay
	RewriteCookies  *RewriteCookies  `conf:"rewrite_cookies" scalar:"Own"`  // nil: cookies stay

	Allow       []netip.Prefix `conf:"allow" maxlen:"1000"`            // clients that may use the route; empty: all
	Deny        []netip.Prefix `conf:"deny" maxlen:"1000"`             // exceptions from Allow
	BasicAuth   *BasicAuth     `conf:"basic_auth" scalar:"File"`       // nil: no password is needed
	BearerAuth  *BearerAuth    `conf:"bearer_auth" scalar:"Keys"`      // nil: no key or token is needed
	ForwardAuth *ForwardAuth   `conf:"forward_auth" scalar:"Upstream"` // nil: no other server is asked
	RateLimit   *RateLimit     `conf:"rate_limit"`                     // nil: none
	LLM         *LLM           `conf:"llm" scalar:"Enabled"`           // nil: tokens are not counted
	Canary      *Canary        `conf:"canary"`                         // nil: none
	Mirror      *Mirror        `conf:"mirror" scalar:"Upstream"`       // nil: none
	CORS        *CORS          `conf:"cors"`                           // nil: the backend decides
	Compress    *Compress      `conf:"compress"`                       // nil: answers are not compressed
	ErrorPages  []ErrorPage    `conf:"error_pages" maxlen:"64"`        // in place of the listener's; nil: those, empty: none
	AccessLog   *RouteLog      `conf:"access_log" scalar:"Enabled"`    // which requests are in the listener's access logs; nil: all that its own conditions take
}

// The time-outs of the route a listener's "upstream" key stands for; Route's tags have them too.
const (
	defaultRouteTimeout     = 60 * time.Second
	defaultRouteIdleTimeout = 10 * time.Minute
)

func defaultHTTP(l *config.Listener) {
	config.SectionOf[HTTPListener](l).setRetries()
	routes := config.SectionOf[HTTPListener](l).Routes
	for i := range routes {
		if routes[i].Upstream == "" && !routes[i].answersItself() {
			routes[i].Upstream = l.Upstream
		}
	}
}

// setRetries gives the listener its policy for requests that fail, and fills in defaults that no tag can express. A
// route's policy replaces the listener's as a whole.
func (h *HTTPListener) setRetries() {
	if h.Retries == nil {
		h.Retries = &Retries{Attempts: httpproxy.DefaultAttempts, Budget: httpproxy.DefaultRetryBudget}
	}
	h.Retries.setLists()
	for i := range h.Routes {
		if r := h.Routes[i].Retries; r != nil {
			r.setLists()
		}
	}
}

func routedTo(l *config.Listener) (names []*string) {
	routes := config.SectionOf[HTTPListener](l).Routes
	for i := range routes {
		if !routes[i].answersItself() {
			names = append(names, &routes[i].Upstream)
		}
		if f := routes[i].ForwardAuth; f != nil {
			names = append(names, &f.Upstream)
		}
		if k := routes[i].Canary; k != nil {
			names = append(names, &k.Upstream)
		}
		if m := routes[i].Mirror; m != nil {
			names = append(names, &m.Upstream)
		}
	}
	return names
}

// finishHTTP adds the route that takes every request.
func finishHTTP(_ *config.Config, l *config.Listener) {
	h := config.SectionOf[HTTPListener](l)
	if !slices.ContainsFunc(h.Routes, func(r Route) bool { return r.unconditional() }) {
		h.Routes = append(h.Routes, Route{Path: "/", PathMatch: PathPrefix, Upstream: l.Upstream, Timeout: defaultRouteTimeout, IdleTimeout: defaultRouteIdleTimeout})
	}
}

func checkHTTP(c *config.Checker, l *config.Listener) {
	h := config.SectionOf[HTTPListener](l)
	if len(h.Routes) == 0 && l.Upstream == "" && !c.Written(&l.Upstream) && c.NoProblemAt(&h.Routes) {
		c.Report(c.Mark(l), "nothing to forward to; give it \"upstream\" or \"routes\" under \"http\"")
	}
	checkRetries(c, h.Retries)
	checkAccessLog(c, h.AccessLog)
	checkErrorPages(c, h.ErrorPages)
	checkHTTP3(c, l, h)
	if least := httpproxy.LeastBufferedPerConn(h.MaxHeader<<10, h.PeekBytes) >> 10; h.MaxPerConn != 0 && int64(h.MaxPerConn) < least && c.NoProblemAt(&h.MaxPerConn, &h.PeekBytes, &h.MaxHeader) {
		c.Report(c.Mark(&h.MaxPerConn), "max_buffered_per_connection_kib: %d: a single request may take %d KiB, with its head and peek_bytes; want that at least, or 0", h.MaxPerConn, least)
	}
	seen := map[string]config.Position{}
	for i := range h.Routes {
		r := &h.Routes[i]
		pos := c.Mark(r)
		checkAnswers(c, r)
		if r.Upstream == "" && !c.Written(&r.Upstream) && !r.answersItself() {
			c.Report(pos, "route %d: \"upstream\" is missing", i+1)
		}
		checkRoute(c, r)
		checkConditions(c, r)
		checkErrorPages(c, r.ErrorPages)
		checkRouteLog(c, r.AccessLog)
		checkRetries(c, r.Retries)
		checkPause(c, r, h.Retries)
		checkAffinity(c, r)
		checkAccess(c, l, r)
		checkRateLimit(c, r)
		checkLLM(c, r)
		checkCORS(c, r)
		checkCanary(c, r)
		checkBearer(c, l, r)
		checkMirror(c, r)
		checkForwardAuth(c, r)
		checkCompress(c, r)
		checkReverse(c, r)
		key := r.key()
		if before, ok := seen[key]; ok {
			c.Report(pos, "duplicate route for host %q and path %q; it is already at line %d", config.Clip(r.Host), config.Clip(r.Path), before.Line)
		}
		seen[key] = pos
	}
	checkBodies(c, h)
	checkShared(c, h)
}

func checkRoute(c *config.Checker, r *Route) {
	if r.PathMatch == PathRegex {
		if _, err := httpproxy.CompilePath(r.Path); err != nil {
			c.Report(c.Mark(&r.Path), "path: %q: %v; want a regular expression (RE2) for the whole path", config.Clip(r.Path), err)
		}
	} else {
		checkPath(c, r)
	}
	if r.StripPrefix && r.PathMatch != PathPrefix {
		c.Report(c.Mark(&r.StripPrefix), "strip_prefix: only a path that is a prefix can be stripped, this one is %s", r.PathMatch)
	}
	if r.DeadlineHeader != "" && c.NoProblemAt(&r.DeadlineHeader) && (!httpwire.ValidToken(r.DeadlineHeader) || len(r.DeadlineHeader) > 256) {
		c.Report(c.Mark(&r.DeadlineHeader), "deadline_header: %q: want the name of a header: up to 256 letters, digits and \"-\"", config.Clip(r.DeadlineHeader))
	}
	host := strings.TrimPrefix(r.Host, "*.")
	if strings.ContainsAny(host, "/*@?# \t") || strings.Contains(host, ":") && !strings.HasPrefix(host, "[") {
		c.Report(c.Mark(&r.Host), "host: %q: want a host name such as a.example or *.example, without scheme, port or path", config.Clip(r.Host))
	}
}

// checkPath checks a path that is compared literally.
func checkPath(c *config.Checker, r *Route) {
	hint := ""
	if strings.HasPrefix(r.Path, "^") || strings.Contains(r.Path, "*") {
		hint = "; an expression needs path_match: regex"
	}
	switch {
	case strings.ContainsAny(r.Path, "?#* ") || hint != "":
		c.Report(c.Mark(&r.Path), "path: %q: a path is plain text, without %q%s", config.Clip(r.Path), "?#* ", hint)
	case r.Path != "" && r.Path[0] != '/':
		c.Report(c.Mark(&r.Path), "path: %q: want a path that starts with \"/\"; did you mean %q?", config.Clip(r.Path), "/"+config.Clip(r.Path))
	}
	if strings.Contains(r.Path, "/./") || strings.Contains(r.Path+"/", "/../") || strings.HasSuffix(r.Path, "/.") {
		c.Report(c.Mark(&r.Path), "path: %q: a path has no \".\" or \"..\" segments", config.Clip(r.Path))
	}
}
