package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/upstream"
)

// ReloadHeader must be in every request that changes or costs something: POST to /api/v1/reload, /api/v1/endpoints,
// /api/v1/pause, /api/v1/resume and /api/v1/profile, DELETE /api/v1/sessions/ID. A web page cannot send it to another
// origin without a preflight request, which is never permitted.
const ReloadHeader = "X-Headpond-Reload"

// ErrConfig is wrapped by New's errors.
var ErrConfig = errors.New("admin: invalid configuration")

// ErrUnknown is wrapped by the error of a Config function for a name that no object has.
var ErrUnknown = errors.New("not found")

// Config describes the admin pages. Snapshot is required.
type Config struct {
	// Snapshot returns the gateway's state; it is called for every request, by several goroutines at once.
	Snapshot func() Snapshot
	// Alive returns nil when the gateway's threads have answered, or an error once ctx ends; nil: /livez
	// is 200 as long as the process answers.
	Alive func(ctx context.Context) error
	// Reload reads the configuration again and applies it; its error is shown to the client. nil: /api/v1/reload does
	// not exist. It is only ever called for clients on this machine (loopback or a unix socket) that send ReloadHeader.
	Reload func(ctx context.Context) error
	// Sessions describes the gateway's sessions, as listener.Server does; nil: /api/v1/sessions does not exist.
	Sessions func() []listener.Info
	// Kill ends a session and reports whether there was one of that ID; nil: sessions cannot be killed. It is protected
	// as Reload is.
	Kill func(id string) bool
	// ChangeEndpoint changes one endpoint of an upstream. Its error, which wraps ErrUnknown if there is no such
	// upstream or endpoint, is shown to the client. nil: endpoints cannot be changed. It is protected as Reload is.
	ChangeEndpoint func(upstream string, c upstream.Change) error
	// Pause stops the use of an upstream's servers until Resume, but no longer than limit. Their errors, which wrap ErrUnknown if
	// there is no such upstream, are shown to the client. nil: there is no pause. They are protected as Reload is.
	Pause  func(upstream string, limit time.Duration) error
	Resume func(upstream string) error
	// Profile serves POST /api/v1/profile; see Profiles. It is protected as Reload is.
	Profile bool
	// LocalOnly says that the address is a loopback one: requests must then name a loopback host.
	LocalOnly bool
	// Logger gets scrape errors; nil = slog.Default().
	Logger *slog.Logger
}

// handler serves the admin pages.
type handler struct{ cfg Config }

// New returns the admin pages. The handler is safe for concurrent use and keeps nothing between requests.
func New(cfg Config) (http.Handler, error) {
	if cfg.Snapshot == nil {
		return nil, fmt.Errorf("%w: Snapshot is missing", ErrConfig)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	registry, err := newRegistry(cfg.Snapshot)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	h := &handler{cfg}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", h.dashboard)
	metrics := promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		ErrorLog:      slog.NewLogLogger(cfg.Logger.Handler(), slog.LevelWarn),
		ErrorHandling: promhttp.ContinueOnError, // one bad series must not hide the others
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) { metrics.ServeHTTP(errorless{w}, r) })
	mux.HandleFunc("GET /livez", h.livez)
	mux.HandleFunc("GET /healthz", h.livez)
	mux.HandleFunc("GET /readyz", h.readyz)
	mux.HandleFunc("GET /api/v1/status", h.status)
	mux.HandleFunc("GET /api/v1/pools", h.pools)
	mux.HandleFunc("GET /api/v1/{key}", h.rows)
	if cfg.Sessions != nil {
		mux.HandleFunc("GET /api/v1/sessions", h.sessions)
	}
	if cfg.Kill != nil {
		mux.HandleFunc("DELETE /api/v1/sessions/{id}", changes("a session can be ended", h.kill))
	}
	post := func(path, what string, next http.HandlerFunc) {
		mux.HandleFunc("POST "+path, changes(what, next))
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) { // or it would be taken for rows
			w.Header().Set("Allow", http.MethodPost)
			w.WriteHeader(http.StatusMethodNotAllowed)
		})
	}
	if cfg.ChangeEndpoint != nil {
		post("/api/v1/endpoints", "an endpoint can be changed", h.changeEndpoint)
	}
	if cfg.Pause != nil {
		post("/api/v1/pause", "an upstream can be paused", h.pause)
		post("/api/v1/resume", "an upstream can be resumed", h.resume)
	}
	if cfg.Reload != nil {
		post("/api/v1/reload", "reload is possible", h.reload)
	}
	if cfg.Profile {
		post("/api/v1/profile", "the program can be profiled", h.profile)
	}
	return h.guard(mux), nil
}

// errorless hides from promhttp that the client has disconnected: promhttp would log an error for each remaining
// metric.
type errorless struct{ http.ResponseWriter }

func (w errorless) Write(p []byte) (int, error) {
	_, _ = w.ResponseWriter.Write(p)
	return len(p), nil
}

// guard checks the host and sets the headers of every answer.
func (h *handler) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if h.cfg.LocalOnly && !localHost(r.Host) {
			http.Error(w, fmt.Sprintf("host %q is not this machine; use 127.0.0.1, [::1] or localhost", r.Host), http.StatusMisdirectedRequest)
			return
		}
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cross-Origin-Resource-Policy", "same-origin")
		w.Header().Set("Referrer-Policy", "no-referrer")
		w.Header().Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

// localHost reports whether a Host header names a loopback address.
func localHost(hostport string) bool {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.Trim(host, "[]"), ".")
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// livePatience is how long the gateway's threads may take to answer: a tick takes microseconds, and the machine may be
// busy.
const livePatience = 5 * time.Second

// livez answers 200 and "ok", or 503 and why the process should be restarted.
func (h *handler) livez(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if h.cfg.Alive != nil {
		ctx, cancel := context.WithTimeout(r.Context(), livePatience)
		defer cancel()
		if err := h.cfg.Alive(ctx); err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = fmt.Fprintln(w, err)
			return
		}
	}
	_, _ = fmt.Fprintln(w, "ok")
}

// readyz answers 200 and "ready", or 503 and why not. Upstreams without a usable endpoint are named,
// but do not change the status.
func (h *handler) readyz(w http.ResponseWriter, _ *http.Request) {
	s := h.cfg.Snapshot()
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if !ready(s) {
		w.WriteHeader(http.StatusServiceUnavailable)
		if s.Draining {
			_, _ = fmt.Fprintln(w, "draining")
		}
		for _, why := range s.NotReady {
			_, _ = fmt.Fprintln(w, why)
		}
		return
	}
	_, _ = fmt.Fprintln(w, "ready")
	for _, u := range s.Upstreams {
		if !u.PausedUntil.IsZero() {
			_, _ = fmt.Fprintf(w, "upstream %q: paused by an operator\n", u.Name)
		}
		if u.NoRole {
			_, _ = fmt.Fprintf(w, "upstream %q: no endpoint has the role that its target %s wants\n", u.Name, u.Target)
		}
		if u.FailOpen {
			_, _ = fmt.Fprintf(w, "upstream %q: every endpoint is out, all of them are tried\n", u.Name)
		} else if why := outOfUse(u); why != "" {
			_, _ = fmt.Fprintf(w, "upstream %q: %s\n", u.Name, why)
		}
	}
}

// outOfUse returns why an upstream has no usable endpoint although checks have taken none out, such as
// a SQLite file that is not open; "" if it has one.
func outOfUse(u Upstream) (why string) {
	for _, e := range u.Endpoints {
		if e.Healthy {
			return ""
		}
		why = cmp.Or(e.LastError, why)
	}
	return why
}

func (h *handler) status(w http.ResponseWriter, r *http.Request) {
	if histograms, ok := histogramsWanted(w, r); ok {
		writeJSON(w, http.StatusOK, status(h.cfg.Snapshot(), time.Now(), histograms))
	}
}

// histogramsWanted returns the parameter histograms. If that is not a truth value, it answers the request, and ok is
// false.
func histogramsWanted(w http.ResponseWriter, r *http.Request) (wanted, ok bool) {
	text := cmp.Or(r.URL.Query().Get("histograms"), "false")
	wanted, err := strconv.ParseBool(text)
	if err != nil {
		writeJSON(w, http.StatusBadRequest, result{Error: fmt.Sprintf("parameter histograms: %q: want true or false", text)})
	}
	return wanted, err == nil
}

func (h *handler) pools(w http.ResponseWriter, r *http.Request) {
	histograms, ok := histogramsWanted(w, r)
	if !ok {
		return
	}
	body := pools{Pools: []Pool{}}
	for _, u := range h.cfg.Snapshot().Upstreams {
		for _, e := range upstreamStatus(u, time.Now(), histograms).Endpoints {
			body.Pools = append(body.Pools, e.Pool)
		}
	}
	writeJSON(w, http.StatusOK, body)
}

// rows answers with the rows of one Addition.
func (h *handler) rows(w http.ResponseWriter, r *http.Request) {
	for _, a := range h.cfg.Snapshot().Additions {
		if a.Key == r.PathValue("key") {
			writeJSON(w, http.StatusOK, a.Rows)
			return
		}
	}
	http.NotFound(w, r)
}

// result is the body of the answer to a change.
type result struct {
	Applied bool   `json:"applied"`
	Error   string `json:"error"`
}

// changes passes only requests that may change something; what begins the answer to others.
func changes(what string, next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !localClient(r.RemoteAddr):
			writeJSON(w, http.StatusForbidden, result{Error: what + " from this machine only"})
		case r.Header.Get(ReloadHeader) == "":
			writeJSON(w, http.StatusForbidden, result{Error: "the header " + ReloadHeader + " is missing"})
		default:
			next(w, r)
		}
	}
}

func (h *handler) reload(w http.ResponseWriter, r *http.Request) {
	if err := h.cfg.Reload(r.Context()); err != nil {
		writeJSON(w, http.StatusUnprocessableEntity, result{Error: err.Error()})
		return
	}
	writeJSON(w, http.StatusOK, result{Applied: true})
}

// localClient reports whether a connection comes from this machine: loopback, or a unix socket, whose clients have no IP address.
func localClient(remote string) bool {
	ap, err := netip.ParseAddrPort(remote)
	return err != nil || ap.Addr().Unmap().IsLoopback()
}

func writeJSON(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(code)
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(body) // an error means that the client has left
}
