package httpproxy

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/headpond/headpond/httpwire"
	"github.com/headpond/headpond/internal/jsonfield"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pool/httppool"
	"github.com/headpond/headpond/upstream"
)

// Defaults of Config and Route, used where a field is zero.
const (
	// DefaultReadHeaderTimeout bounds how long a client may take for a request's head (and the TLS handshake), so
	// that slow ones cannot hold connections for nothing.
	DefaultReadHeaderTimeout = 10 * time.Second
	// DefaultKeepAlive is how long a client's connection may be idle between requests. It is longer than that of
	// balancers in front (commonly 60s), so that those close first.
	DefaultKeepAlive = 2 * time.Minute
	// DefaultMaxHeaderBytes bounds a request's head; 64 KiB is four times the limit of common
	// servers.
	DefaultMaxHeaderBytes = 64 << 10
	// DefaultMaxHeaderFields bounds the fields in it.
	DefaultMaxHeaderFields = 256
	// DefaultMaxStreams bounds the concurrent requests of one HTTP/2 connection.
	DefaultMaxStreams = 250
	// DefaultIdleTimeout ends a body or an upgraded connection that has not moved a byte for so long.
	DefaultIdleTimeout = 10 * time.Minute
)

// requestIDField carries a request's id to the server and back in error answers.
const requestIDField = "X-Request-Id"

// ErrConfig is wrapped by every error about an invalid Config.
var ErrConfig = errors.New("httpproxy: invalid configuration")

// Upstream is where a route leads: pooled connections to a set of endpoints. NewUpstream makes one.
type Upstream = upstream.Upstream[*httppool.Conn]

// Config describes a Proxy. Update may change Listener, Routes, TrustedProxies, Via, NoForwarded, PeekBytes,
// RefuseBeyondPeek, KeyAuthorization, AccessLog, MaxBuffered, MaxBufferedPerConn, and ClientAuth and ClientCAs of TLS; the rest stays as it
// was given to New.
type Config struct {
	// Listener is admission, PROXY protocol, access log and logger.
	Listener listener.Config
	// Routes say where requests go; a request that none matches is answered with 404.
	Routes []Route
	// TLS makes the listener speak TLS, with HTTP/2 and HTTP/1.1 by ALPN. Without it HTTP/2 is spoken to clients
	// that begin with it ("prior knowledge"). With ClientCAs the server gets the certificate that a client has proved to
	// have in X-Forwarded-Client-Cert.
	TLS *tls.Config
	// TrustedProxies are the peers whose X-Forwarded-* and Forwarded fields are trusted and extended; those of others
	// are replaced, X-Forwarded-Client-Cert is dropped. Empty = none.
	TrustedProxies []netip.Prefix
	// NoForwarded leaves the Forwarded field (RFC 7239) out; X-Forwarded-For, -Proto and -Host are always set.
	NoForwarded bool
	// Via is the name this proxy adds to Via fields; "" = none.
	Via string
	// PeekBytes bounds how much of a body is read, framing included, before it is sent, for routes with conditions about it.
	// 0 = DefaultPeekBytes, at most MaxPeekBytes. A request with a JSON body holds up to three times as much memory; others are not read.
	PeekBytes int
	// RefuseBeyondPeek answers 413 where a field that routes look at is not among these bytes. Otherwise such routes do not match.
	RefuseBeyondPeek bool

	// KeyAuthorization returns what a GET of /.well-known/acme-challenge/TOKEN is answered with, before and beside all Routes, so that a
	// certificate authority finds out whether a name is this Proxy's (RFC 8555, section 8.3). "" = the request is one like others. The
	// token may have any characters. It runs on a goroutine and may wait. nil = there are none.
	KeyAuthorization func(token string) string

	// AccessLog is a log with a line for each request; nil = none. Update may change it: requests under way are logged to the new one.
	AccessLog *AccessLog
	// Tracer takes the traces of requests; nil = none are traced. It cannot change later.
	Tracer Tracer

	// MaxBuffered is how many bytes the Proxy may hold for requests: their heads, and pieces of bodies that the next connection
	// has not taken. Beyond it new requests are answered 503 with Retry-After, as they are when Memory is used up. 0 = only Memory
	// bounds them.
	MaxBuffered int64
	// MaxBufferedPerConn is how many of these bytes a client's connection may hold, with all its streams of HTTP/2, for a new request on it
	// to be let in: with more, and what it needs at first, it is answered 503 with Retry-After. Streams that begin together can exceed it,
	// and so can those under way, as their bodies come. At least LeastBufferedPerConn; 0 = requests are let in whatever is held.
	MaxBufferedPerConn int64
	// Memory bounds all Proxies that have it together. nil = SharedMemory. It cannot change later.
	Memory *Memory

	ReadHeaderTimeout time.Duration // 0 = DefaultReadHeaderTimeout
	KeepAlive         time.Duration // 0 = DefaultKeepAlive
	MaxHeaderBytes    int           // 0 = DefaultMaxHeaderBytes
	MaxHeaderFields   int           // 0 = DefaultMaxHeaderFields
	MaxStreams        int           // 0 = DefaultMaxStreams
}

// Route sends requests for a host and a path to an upstream.
//
// Of all routes that match, the one with the most specific host is taken (exact before the longest "*.suffix" before
// any); among those an exact path before expressions, in their order, before the longest prefix; and among those with
// the same length of path the one with the most conditions: Methods are one, and so are Groups, and each of Headers,
// Query and Body. Between equals the order decides. If nothing matches for a host, less specific ones are tried.
type Route struct {
	// Host is "app.example", "*.example" (any name below example, at any depth, but not example itself), or "" for
	// every host. Case, a port and a trailing dot in the request do not matter.
	Host string
	// Path is a prefix in whole segments: "/api" matches "/api", "/api/" and "/api/x", never "/apix"; "/api/" matches
	// "/api/" and below. "" and "/" match everything. It is compared with the decoded path.
	Path string
	// PathMatch makes Path the whole path, or an expression that matches it; see there.
	PathMatch PathMatch
	// Methods are the methods of the route; case matters, and GET is not HEAD. Empty = all.
	Methods []string
	// Headers must all be there, each with a field of that value as a whole. Case matters in values only.
	Headers []FieldMatch
	// Query are parameters that must all be there, each once at least with that value, once both are decoded.
	Query []FieldMatch
	// Body are fields of a JSON object that must all be present. A name is that of a field at the top of the object, or
	// names with dots between them, of objects in each other. A string is compared decoded, a number as it is written,
	// and so are true, false and null.
	Body []FieldMatch
	// Groups are the requests that the upstream serves: "model=llama3" requests whose body has that as a field (see
	// Body), "model=*" those that have the field, "all" every one. Routes that differ in Groups and Upstream only are a
	// set; a request goes to one of it whose group is exact, or, as its header X-Headpond-Fallback (X-Otela-Fallback)
	// allows with "1" or "2", to one that takes any value, or all. Of several the upstream with the least load is
	// taken. A request without a body goes to any. Answers get a header X-Computing-Node with the name of the upstream,
	// unless they have one.
	Groups []string
	// StripPrefix takes Path off before forwarding; for a prefix only.
	StripPrefix bool
	// Rewrite is the path that the server gets instead, with the variables {path} and {rest}, which is the part behind Path.
	// The query stays. "" = the path as it came.
	Rewrite string
	// RequestHeaders and ResponseHeaders change the headers of requests before they are sent, and of final answers.
	RequestHeaders, ResponseHeaders HeaderRules
	// Redirect and Respond are answers of the route's own, without an upstream. At most one is set.
	Redirect Redirect
	Respond  Respond
	// Upstream is required, unless the route answers itself. The Proxy does not close it.
	Upstream *Upstream

	// Timeout bounds a request as a whole, both bodies included. 0 = no limit. Not for upgraded connections.
	Timeout time.Duration
	// ConnectTimeout bounds the wait for a connection of each endpoint that is tried, whether one is opened or must become free. The
	// upstream's own limits hold, too. 0 = only these.
	ConnectTimeout time.Duration
	// ResponseTimeout bounds the wait for the response's head after the request is sent; then the client gets 504.
	// 0 = 60s, negative = no limit.
	ResponseTimeout time.Duration
	// IdleTimeout bounds each wait for either side in the middle of a body or an upgraded connection.
	// 0 = DefaultIdleTimeout, negative = no limit.
	IdleTimeout time.Duration
	// StrictBackend refuses responses that frame their body twice (see httpwire.Response.ParseLenient) with 502.
	StrictBackend bool
	// Retries says which failed requests are sent again.
	Retries Retries
	// Affinity says which requests go to the same endpoint; the zero value: by the upstream's balance alone.
	Affinity Affinity
	// Allow are the addresses of clients that may use the route, empty = all; Deny are exceptions. Others get 403. If the peer is one of
	// Config.TrustedProxies, the client is the last address in X-Forwarded-For that is not; if that is no address, it is refused.
	Allow, Deny []netip.Prefix
	// BasicAuth asks clients for a name and a password; nil = it does not.
	BasicAuth *BasicAuth
	// ForwardAuth asks another server about each request; nil = none. It excludes BasicAuth.
	ForwardAuth *ForwardAuth
	// RateLimit is how many requests the route takes within a time.
	RateLimit RateLimit
	// Canary sends a share of the requests to another upstream.
	Canary Canary
	// Compression compresses answers; nil = they pass as they are.
	Compression *Compression
	// NoAccessLog leaves the requests of the route out of Config.AccessLog and of that of listener.Config.
	NoAccessLog bool
}

// Verify reports every problem of c, joined; each wraps ErrConfig or listener.ErrConfig. It does not change c.
func (c Config) Verify() error {
	errs := []error{c.Listener.Verify()}
	seen := make(map[string]bool, len(c.Routes))
	for i, r := range c.Routes {
		if err := r.verify(); err != nil {
			errs = append(errs, fmt.Errorf("%w: route %d (host %q, path %q): %w", ErrConfig, i, r.Host, r.Path, err))
			continue
		}
		key := r.key()
		if len(r.Groups) > 0 {
			key += " " + r.Upstream.Name()
		}
		if seen[key] {
			errs = append(errs, fmt.Errorf("%w: route %d repeats host %q and path %q, with the same conditions", ErrConfig, i, r.Host, r.Path))
		} else {
			seen[key] = true
		}
	}
	if c.ReadHeaderTimeout < 0 || c.KeepAlive < 0 || c.MaxHeaderBytes < 0 || c.MaxHeaderFields < 0 || c.MaxStreams < 0 || c.MaxBuffered < 0 {
		errs = append(errs, fmt.Errorf("%w: limits and time-outs must not be negative", ErrConfig))
	}
	if least := LeastBufferedPerConn(c.MaxHeaderBytes, c.PeekBytes); c.MaxBufferedPerConn != 0 && c.MaxBufferedPerConn < least {
		errs = append(errs, fmt.Errorf("%w: MaxBufferedPerConn must be 0, or %d at least: a single request may take that", ErrConfig, least))
	}
	if c.PeekBytes < 0 || c.PeekBytes > MaxPeekBytes {
		errs = append(errs, fmt.Errorf("%w: PeekBytes must be from 0 to %d", ErrConfig, MaxPeekBytes))
	}
	if _, err := jsonfield.NewPlan(bodyFields(c.Routes)); err != nil {
		errs = append(errs, fmt.Errorf("%w: the fields of bodies: %w", ErrConfig, err))
	}
	if err := c.AccessLog.Verify(); err != nil {
		errs = append(errs, fmt.Errorf("%w: the access log: %w", ErrConfig, err))
	}
	if c.Via != "" && !httpwire.ValidToken(c.Via) {
		errs = append(errs, fmt.Errorf("%w: the name for Via, %q, is not a token", ErrConfig, c.Via))
	}
	return errors.Join(errs...)
}

func (r Route) verify() error {
	switch {
	case r.answersItself():
		if err := r.verifyOwn(); err != nil {
			return err
		}
	case r.Upstream == nil:
		return errors.New("no upstream")
	}
	switch {
	case r.Rewrite != "" && r.StripPrefix:
		return errors.New("Rewrite and StripPrefix exclude each other")
	case r.Rewrite != "" && CheckRewrite(r.Rewrite) != nil:
		return fmt.Errorf("the new path: %w", CheckRewrite(r.Rewrite))
	case !validHostPattern(r.Host):
		return errors.New(`the host is not a name, "*.name" or empty (write no port)`)
	case r.Timeout < 0 || r.ConnectTimeout < 0:
		return errors.New("negative timeout")
	}
	if err := r.Retries.verify(); err != nil {
		return err
	}
	if err := r.Affinity.verify(); err != nil {
		return err
	}
	if err := r.Canary.verify(r); err != nil {
		return err
	}
	if err := r.RateLimit.verify(); err != nil {
		return err
	}
	if _, err := newHeaderRules(r.RequestHeaders, true); err != nil {
		return fmt.Errorf("the headers of requests: %w", err)
	}
	if _, err := newHeaderRules(r.ResponseHeaders, false); err != nil {
		return fmt.Errorf("the headers of answers: %w", err)
	}
	if err := r.verifyAccess(); err != nil {
		return err
	}
	if err := r.Compression.verify(); err != nil {
		return err
	}
	return r.verifyMatch()
}
