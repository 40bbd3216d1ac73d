package httpproxy

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"log"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/httpwire"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pool/httppool"
	"github.com/headpond/headpond/traffic"
)

// Proxy accepts HTTP/1.1 and HTTP/2 and forwards requests over pooled HTTP/1.1 connections. All methods are safe for
// concurrent use.
type Proxy struct {
	srv      *listener.Server
	standard *standard
	tls      *tls.Config // nil = plain
	limits   atomic.Pointer[limits]
	table    atomic.Pointer[table]
	traffic  *traffic.Set
	unrouted *traffic.Cell // of requests that no route takes
}

var (
	_ http.Handler     = (*Proxy)(nil)
	_ listener.Handler = (*Proxy)(nil)
)

// limits are the parts of a Config that sessions look at.
type limits struct {
	readHeader, keepAlive time.Duration
	head, fields, streams int
}

// New checks cfg and makes a Proxy. Its errors wrap ErrConfig or listener.ErrConfig.
func New(cfg Config) (*Proxy, error) {
	if err := cfg.Verify(); err != nil {
		return nil, err
	}
	cfg.Listener.Protocol = "http"
	p := &Proxy{traffic: traffic.NewSet(routeTraffic)}
	p.unrouted = p.traffic.Cell("", "")
	var err error
	if p.srv, err = listener.New(cfg.Listener, p); err != nil {
		return nil, err
	}
	p.srv.Measure(p.traffic)
	t, err := p.newTable(cfg)
	if err != nil {
		return nil, err
	}
	p.table.Store(t)
	p.limits.Store(&limits{
		readHeader: cmp.Or(cfg.ReadHeaderTimeout, DefaultReadHeaderTimeout),
		keepAlive:  cmp.Or(cfg.KeepAlive, DefaultKeepAlive),
		streams:    cmp.Or(cfg.MaxStreams, DefaultMaxStreams),
		head:       cmp.Or(cfg.MaxHeaderBytes, DefaultMaxHeaderBytes),
		fields:     min(cmp.Or(cfg.MaxHeaderFields, DefaultMaxHeaderFields), httpwire.MaxFields),
	})
	p.standard = &standard{http: p.newServer(cfg), conns: make(chan net.Conn), done: make(chan struct{})}
	if cfg.TLS != nil {
		p.tls = cfg.TLS.Clone()
		p.tls.NextProtos = []string{"h2", "http/1.1"}
		if p.tls.MinVersion == 0 {
			p.tls.MinVersion = tls.VersionTLS12
		}
	}
	return p, nil
}

func (p *Proxy) newServer(cfg Config) *http.Server {
	watch := &refusals{note: p.noteRefused}
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	return &http.Server{
		Handler:                      p,
		Protocols:                    &protocols,
		ReadHeaderTimeout:            cmp.Or(cfg.ReadHeaderTimeout, DefaultReadHeaderTimeout),
		IdleTimeout:                  cmp.Or(cfg.KeepAlive, DefaultKeepAlive),
		MaxHeaderBytes:               cmp.Or(cfg.MaxHeaderBytes, DefaultMaxHeaderBytes),
		MaxHeaderValueCount:          cmp.Or(cfg.MaxHeaderFields, DefaultMaxHeaderFields),
		DisableGeneralOptionsHandler: true,
		ConnContext:                  watch.connContext,
		ConnState:                    watch.connState,
		ErrorLog:                     log.New(errorLog{p}, "", 0),
	}
}

// newTable makes the routes of cfg ready to serve.
func (p *Proxy) newTable(cfg Config) (*table, error) {
	return newTable(cfg.Routes, func(r Route) (*target, error) {
		idle := cmp.Or(r.IdleTimeout, DefaultIdleTimeout)
		t, err := httppool.NewTransport(httppool.Config{
			Source:  source(r.Upstream),
			Options: httppool.Options{ResponseHeaderTimeout: r.ResponseTimeout, IdleTimeout: max(idle, 0)},
		})
		if err != nil {
			return nil, err
		}
		strip := ""
		if r.StripPrefix {
			strip = r.Path
		}
		name := r.Upstream.Name()
		cell := p.traffic.Cell(r.Host+cmp.Or(r.Path, "/"), name)
		h, err := httppool.NewHandler(httppool.HandlerConfig{
			Transport:      t,
			Name:           name,
			StripPrefix:    strip,
			TrustedProxies: cfg.TrustedProxies,
			Forwarded:      !cfg.NoForwarded,
			Via:            cfg.Via,
			RequestID:      requestIDField,
			Timeout:        r.Timeout,
			IdleTimeout:    max(idle, 0),
			OnDone: func(req *http.Request, res httppool.Result) {
				countLong(cell, r.Upstream.TrafficOf(res.Endpoint), res)
				p.done(req, name, res)
			},
		})
		if err != nil {
			return nil, err
		}
		return &target{
			path: canonicalPath(r.Path), handler: h, route: r, name: name, traffic: cell, strip: len(strings.TrimSuffix(strip, "/")),
			trusted: cfg.TrustedProxies, forwarded: !cfg.NoForwarded, via: cfg.Via,
			idle: max(idle, 0), response: max(cmp.Or(r.ResponseTimeout, defaultResponseTimeout), 0),
		}, nil
	})
}

// defaultResponseTimeout is what Route says.
const defaultResponseTimeout = time.Minute

// Serve accepts on l until Drain or Close and then returns nil. It takes l over. It may be called for several
// listeners.
func (p *Proxy) Serve(l net.Listener) error {
	return p.srv.Serve(l)
}

// isDraining reports whether the proxy drains.
func (p *Proxy) isDraining() bool {
	select {
	case <-p.srv.Draining():
		return true
	default:
		return false
	}
}

// ServeHTTP routes and forwards one request; what sessions do not serve themselves comes here. It may also be mounted
// in another program's server.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer p.recoverRequest()
	handled(r)
	h, ours := r.Context().Value(connKey{}).(*handed)
	if ours && r.TLS == nil {
		r.TLS = h.tls
		if h.stream != nil {
			w.Header()["Connection"] = []string{"close"} // no other request comes
			asked := *r                                  // net/http's own stays in HTTP/1.1
			r = &asked
			r.Proto, r.ProtoMajor, r.ProtoMinor = "HTTP/2.0", 2, 0
		}
	}
	if r.ProtoMajor == 1 && (ours || len(r.TransferEncoding) > 0 || r.ProtoMinor == 0) {
		// net/http reads heads and chunks that others read differently, so that it reads one request of a connection and
		// no more: what follows would not have been through httpwire. In another program's server a request with
		// Content-Length beside Transfer-Encoding must end its connection, so that what somebody else took for its body is
		// not read as a request, and one of HTTP/1.0 with Transfer-Encoding too (RFC 9112, section 6.1). net/http tells
		// neither.
		w.Header()["Connection"] = []string{"close"}
	}
	if tg := p.route(w, r); tg != nil {
		if ours {
			h.note(r, tg.name)
		}
		tg.handler.ServeHTTP(w, r)
	}
}

// recoverRequest keeps a defect to the request it shows in.
func (p *Proxy) recoverRequest() {
	v := recover()
	if v == nil {
		return
	}
	if err, ok := v.(error); !ok || !errors.Is(err, http.ErrAbortHandler) {
		p.srv.CountError(listener.ReasonInternal)
		p.srv.Logger().Error("request handler panicked", "panic", v, "stack", string(debug.Stack()))
	}
	panic(http.ErrAbortHandler)
}

// errPanicked is why something ended that was in the middle of a panic.
var errPanicked = errors.New("a defect of the proxy")

// recovered is to be deferred by what runs beside a session; the listener does the same for sessions.
func (p *Proxy) recovered(lc *listener.Conn) {
	if v := recover(); v != nil {
		p.srv.Report(listener.ReasonInternal, slog.LevelError, "session panicked", "client", lc.RemoteAddr().String(),
			"panic", v, "stack", string(debug.Stack()))
	}
}

// Update takes cfg's routes and listener settings over. Requests under way finish under the old ones. On an error
// nothing has changed.
func (p *Proxy) Update(cfg Config) error {
	if err := cfg.Verify(); err != nil {
		return err
	}
	t, err := p.newTable(cfg)
	if err != nil {
		return err
	}
	cfg.Listener.Protocol = "http"
	if err := p.srv.Update(cfg.Listener); err != nil {
		return err
	}
	p.table.Store(t)
	return nil
}

// Drain stops accepting, closes idle connections and lets requests and upgraded connections finish; HTTP/2 clients
// are told to go elsewhere. When ctx ends first, what is left is cut off and the error wraps ctx's.
func (p *Proxy) Drain(ctx context.Context) error {
	interrupted := make(chan struct{})
	go func() {
		defer close(interrupted)
		<-p.srv.Draining()
		p.srv.Each(func(s listener.Session) { s.(interface{ interrupt() }).interrupt() }) //nolint:forcetypeassert // all are sessions or http2
	}()
	err := p.srv.Drain(ctx)
	<-interrupted
	_ = p.standard.Close() // not before: what sessions read until they end may be for it
	_ = p.standard.http.Close()
	return err
}

// Stats returns the listener's counters.
func (p *Proxy) Stats() listener.Stats { return p.srv.Stats() }

// errorLog brings net/http's own messages into the log, at debug level: they
// report what clients do and anybody can cause them.
type errorLog struct{ p *Proxy }

func (e errorLog) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("TLS handshake error")) {
		e.p.srv.CountError(listener.ReasonTLS)
	}
	e.p.srv.Logger().Log(context.Background(), slog.LevelDebug, string(bytes.TrimSpace(b)))
	return len(b), nil
}
