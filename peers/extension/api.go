package extension

import (
	"context"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/gateway/extend"
	"github.com/headpond/headpond/internal/identity"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/peers"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/pool/httppool"
	"github.com/headpond/headpond/tunnel"
)

// Protocol is the protocol of listeners with paths to services: /v1/service/…, /v1/p2p/… and /v1/_service/….
const Protocol config.Protocol = "peers"

// Limits of the clients of a peers listener. A head must arrive soon; a body may take longer.
const (
	headTimeout   = 10 * time.Second
	idleTimeout   = 2 * time.Minute
	maxHeadBytes  = 64 << 10
	maxTriedNodes = 4
	copyBuffer    = 32 << 10
	peekTimeout   = 30 * time.Second // for the part of a body that peek reads
	// dialTimeout bounds connecting to one node; then the next one is tried.
	dialTimeout = 5 * time.Second
)

func init() {
	extend.RegisterProtocol(extend.Protocol{
		Prepare: prepareAPI, OffLoop: func(*config.Config, *config.Listener) bool { return true }, // net/http uses goroutines
		Replaces: func(old, changed *config.Listener) bool { return (old.TLS == nil) != (changed.TLS == nil) },
		Config: config.ListenerProtocol{
			Name: Protocol, Section: &Listener{}, NoUpstream: "the path of a request says which service it is for",
			Check: func(c *config.Checker, l *config.Listener) {
				reportDoubles(c, "providers", config.SectionOf[Listener](l).Providers)
				if nodeOf(c.Config) == nil {
					c.Report(c.Mark(&l.Protocol), "protocol: %q has paths to services of other nodes, and this gateway is none: \"peers\" is missing", Protocol)
				}
			},
		},
	})
}

// Listener is the section of a peers listener.
type Listener struct {
	HeaderTimeout time.Duration `conf:"header_timeout" default:"10m" min:"1ms" max:"24h"` // the wait for the beginning of a response
	Timeout       time.Duration `conf:"timeout" default:"15m" min:"1ms" max:"24h"`        // the whole request
	Providers     []Provider    `conf:"providers" single:"true" maxlen:"1000"`            // nodes that may get requests to services by name; empty: all
	// ForwardAuthorization forwards the clients' "Authorization" to the service. By default it is
	// removed, because any node that offers a service of the same name could read the token.
	ForwardAuthorization bool `conf:"forward_authorization" default:"false"`
}

// apiConfig is the configuration of an api.
type apiConfig struct {
	listener.Config
	tls     *tls.Config
	own     Listener
	gateway extend.Gateway
}

// api forwards requests to services of nodes.
type api struct {
	*listener.Server
	cfg       atomic.Pointer[apiConfig]
	http      *http.Server
	transport *httppool.Transport
	proxy     *httputil.ReverseProxy
}

func prepareAPI(l extend.Listener) (extend.Server, error) {
	return extend.Serve(apiConfig{l.Common, l.TLS, *config.SectionOf[Listener](l.Listener), l.Gateway}, newAPI)
}

func newAPI(cfg apiConfig) (*api, error) {
	a := &api{}
	a.cfg.Store(&cfg)
	var err error
	if a.Server, err = listener.New(cfg.Config, nil); err != nil {
		return nil, err
	}
	a.transport, err = httppool.NewTransport(httppool.Config{
		Options: httppool.Options{ResponseHeaderTimeout: -1}, // the request's context bounds it
		Limits:  pool.Limits{MaxSize: 1024, AcquireTimeout: cfg.own.HeaderTimeout}, Dial: a.dial, DialTimeout: dialTimeout,
	})
	if err != nil {
		return nil, err
	}
	a.proxy = &httputil.ReverseProxy{
		Transport: a, FlushInterval: -1, BufferPool: &copyBuffers{}, ErrorHandler: a.fail, ErrorLog: slog.NewLogLogger(cfg.gateway.Logger().Handler(), slog.LevelDebug),
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetXForwarded()
			if !a.cfg.Load().own.ForwardAuthorization {
				r.Out.Header.Del("Authorization")
			}
		},
	}
	a.http = &http.Server{
		Handler: http.HandlerFunc(a.serve), ReadHeaderTimeout: headTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeadBytes, TLSConfig: cfg.tls,
		ErrorLog: slog.NewLogLogger(cfg.gateway.Logger().Handler(), slog.LevelDebug),
	}
	return a, nil
}

// Update implements extend.Proxy's Update.
func (a *api) Update(cfg apiConfig) error {
	if err := a.Server.Update(cfg.Config); err != nil {
		return err
	}
	a.cfg.Store(&cfg)
	return nil
}

// Serve implements extend.Proxy.
func (a *api) Serve(l net.Listener) error {
	l = a.Listener(l)
	if a.http.TLSConfig != nil {
		l = tls.NewListener(l, a.http.TLSConfig)
	}
	if err := a.http.Serve(l); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// Drain implements extend.Proxy.
func (a *api) Drain(ctx context.Context) error {
	defer a.transport.Close()
	if err := a.http.Shutdown(ctx); err != nil {
		_ = a.http.Close()
		return fmt.Errorf("listener %q: requests were cut off: %w", a.Stats().Name, err)
	}
	return a.Server.Drain(ctx)
}

// part returns the node of the listener's gateway.
func (a *api) part() *part {
	for _, p := range a.cfg.Load().gateway.Parts() {
		if p, ok := p.(*part); ok {
			return p
		}
	}
	return nil
}

// route is where a request goes: the nodes to try, or a service of this node.
type route struct {
	service string
	targets []peers.Target // none: this node
	path    string         // of the request there
	rawPath string         // encoded
}

// routeTo makes a route. path is encoded, and has no leading slash.
func routeTo(service, path string, targets []peers.Target) (*route, int, error) {
	plain, err := url.PathUnescape(path)
	if err != nil {
		return nil, http.StatusBadRequest, err
	}
	return &route{service, targets, "/" + plain, "/" + path}, 0, nil
}

type routeKey struct{}

// serve finds out where a request goes.
func (a *api) serve(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), a.cfg.Load().own.Timeout)
	defer cancel()
	conn := http.NewResponseController(w)
	end, _ := ctx.Deadline() // it does not end a read of a body that stalls, nor a write to a client that does not read
	_ = errors.Join(conn.SetReadDeadline(time.Now().Add(peekTimeout)), conn.SetWriteDeadline(end.Add(time.Second)))
	to, status, err := a.routeOf(r)
	if err == nil {
		_ = conn.SetReadDeadline(end)
	}
	if err != nil {
		httppool.WriteError(w, r, status, err.Error())
		return
	}
	a.proxy.ServeHTTP(w, r.WithContext(context.WithValue(ctx, routeKey{}, to)))
}

// routeOf reads the path of a request. On an error, status is the answer's.
func (a *api) routeOf(r *http.Request) (to *route, status int, err error) {
	node := a.part().now()
	if node == nil {
		return nil, http.StatusServiceUnavailable, errNoNode
	}
	kind, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.EscapedPath(), "/v1/"), "/")
	name, path, _ := strings.Cut(rest, "/")
	switch {
	case !strings.HasPrefix(r.URL.Path, "/v1/") || name == "":
		return nil, http.StatusNotFound, errBadRoute
	case kind == "service":
		targets, err := choose(node, name, a.cfg.Load().own.Providers, r)
		switch {
		case errors.Is(err, errNobody):
			return nil, http.StatusBadRequest, fmt.Errorf("%w %q", err, name)
		case errors.Is(err, errTwice):
			return nil, http.StatusBadRequest, err
		case err != nil:
			return nil, http.StatusServiceUnavailable, fmt.Errorf("%w %q: see its groups, and the header %s", err, name, identity.Fallback)
		}
		return routeTo(name, path, targets)
	case kind == "_service":
		if a.part().offered(name) == "" {
			return nil, http.StatusNotFound, fmt.Errorf("%w as %q", errNotHere, name)
		}
		return routeTo(name, path, nil)
	case kind == "p2p", kind == "p2p-service": // the latter is OpenTela's
		service, path, _ := strings.Cut(strings.TrimPrefix(path, "v1/_service/"), "/")
		target := peers.Target{Peer: name, Service: service}
		if _, err := peers.ParseTarget(target.String()); err != nil {
			return nil, http.StatusBadRequest, err
		}
		return routeTo(service, path, []peers.Target{target})
	}
	return nil, http.StatusNotFound, errBadRoute
}

// RoundTrip implements http.RoundTripper: it sends a request to the first node that it can connect
// to. It does not repeat a request of which some part may have been sent.
func (a *api) RoundTrip(r *http.Request) (*http.Response, error) {
	to := r.Context().Value(routeKey{}).(*route) //nolint:forcetypeassert // set by serve
	targets := to.targets[:min(len(to.targets), maxTriedNodes)]
	if len(targets) == 0 {
		targets = []peers.Target{{Service: to.service}}
	}
	var failed attempts
	for _, t := range targets {
		out := r.Clone(r.Context())
		if hasBody(r) {
			out.Body = io.NopCloser(r.Body) // so that another attempt can use the body
		}
		out.URL.Scheme, out.URL.Host = "http", hostOf(t)
		out.URL.Path, out.URL.RawPath = to.path, to.rawPath
		resp, err := a.within(out)
		if err == nil {
			id := t.Peer
			if n := a.part().now(); id == "" && n != nil { // a reload may have removed it
				id = n.ID()
			}
			resp.Header.Set(identity.Node, id)
			return resp, nil
		}
		failed = append(failed, attempt{t, err})
		if !errors.Is(err, pool.ErrOpen) || r.Context().Err() != nil {
			break // it may have been sent
		}
		if n := a.part().now(); n != nil && t.Peer != "" {
			n.Failed(t, err)
		}
	}
	return nil, failed
}

// attempt is a node that was tried for a request, and its error.
type attempt struct {
	target peers.Target
	err    error
}

// attempts is the error of a request.
type attempts []attempt

// Error has the error of each node.
func (a attempts) Error() string {
	var all []string
	for _, t := range a {
		if of, ok := errors.AsType[*peers.Error](t.err); ok {
			all = append(all, of.Error())
			continue
		}
		err := t.err
		if of, ok := errors.AsType[*httppool.Error](err); ok {
			err = of.Err
		}
		if t.target.Peer == "" {
			all = append(all, fmt.Sprintf("service %s of this node: %v", t.target.Service, err))
		} else {
			all = append(all, fmt.Sprintf("service %s of peer %s: %v", t.target.Service, t.target.Peer, err))
		}
	}
	return strings.Join(all, "; ")
}

// Unwrap returns the last error, which decides the status.
func (a attempts) Unwrap() error { return a[len(a)-1].err }

// within sends a request, and cancels it if the response does not begin within HeaderTimeout.
func (a *api) within(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	limit := a.cfg.Load().own.HeaderTimeout
	timer := time.AfterFunc(limit, func() { cancel(httppool.ErrResponseTimeout) })
	resp, err := a.transport.RoundTrip(r.WithContext(ctx))
	timer.Stop()
	if err != nil {
		if errors.Is(context.Cause(ctx), httppool.ErrResponseTimeout) {
			err = fmt.Errorf("%w: no answer within %v", httppool.ErrResponseTimeout, limit)
		}
		cancel(nil)
		return nil, err
	}
	context.AfterFunc(r.Context(), func() { cancel(nil) }) // the body is read until the request ends
	return resp, nil
}

// fail responds to a request that has failed.
func (a *api) fail(w http.ResponseWriter, r *http.Request, err error) {
	status := httppool.StatusOf(err)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		status = http.StatusGatewayTimeout
	case errors.Is(err, peers.ErrBusy):
		status = http.StatusServiceUnavailable
		w.Header().Set("Retry-After", "1")
	}
	if status == 499 { // the client has left
		return
	}
	httppool.WriteError(w, r, status, err.Error())
}

// hostOf returns the host under which the pool keeps connections to a target. It is hexadecimal,
// because hosts ignore case and peer IDs do not.
func hostOf(t peers.Target) string { return hex.EncodeToString([]byte(t.String())) + ":80" }

// dial connects to the target of such a host.
func (a *api) dial(ctx context.Context, address string) (net.Conn, error) {
	text, err := hex.DecodeString(strings.TrimSuffix(address, ":80"))
	if err != nil {
		return nil, err
	}
	target, err := peers.ParseTarget(string(text))
	if err != nil {
		return nil, err
	}
	p := a.part()
	if target.Peer == "" {
		upstream := p.offered(target.Service)
		if upstream == "" {
			return nil, errNotHere
		}
		return p.connect(ctx, upstream)
	}
	node := p.now()
	if node == nil {
		return nil, errNoNode
	}
	c, err := node.Dial(ctx, target)
	if err != nil {
		return nil, err
	}
	return tunnel.Pooled(c), nil
}

// copyBuffers are buffers for the bodies of responses.
type copyBuffers struct{ free sync.Pool }

// Get implements httputil.BufferPool.
func (b *copyBuffers) Get() []byte {
	if p, ok := b.free.Get().(*[]byte); ok {
		return *p
	}
	return make([]byte, copyBuffer)
}

// Put implements httputil.BufferPool.
func (b *copyBuffers) Put(p []byte) { b.free.Put(&p) }
