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
	// DefaultReadHeaderTimeout bounds how long a client may take for a request's head and for the TLS handshake, so
	// that slow clients do not hold connections for nothing.
	DefaultReadHeaderTimeout = 10 * time.Second
	// DefaultClientIdleTimeout is how long a client's connection may be idle between requests. It is longer than the idle
	// time-out of most load balancers in front of the gateway (commonly 60s), so that they close first.
	DefaultClientIdleTimeout = 2 * time.Minute
	// DefaultMaxHeaderBytes bounds a request's head; 64 KiB is four times the limit of common
	// servers.
	DefaultMaxHeaderBytes = 64 << 10
	// DefaultMaxHeaderFields bounds the number of fields in a request's head.
	DefaultMaxHeaderFields = 256
	// DefaultMaxStreams bounds the concurrent requests of one HTTP/2 connection.
	DefaultMaxStreams = 250
	// DefaultIdleTimeout ends a body or an upgraded connection on which no byte has moved for this long.
	DefaultIdleTimeout = 10 * time.Minute
)

// requestIDField carries a request's id to the server and back in error answers.
const requestIDField = "X-Request-Id"

// ErrConfig is wrapped by every error about an invalid Config.
var ErrConfig = errors.New("httpproxy: invalid configuration")

// Upstream is the destination of a route: pooled connections to a set of endpoints. NewUpstream makes one.
type Upstream = upstream.Upstream[*httppool.Conn]

// Config describes a Proxy. Update may change Listener, Routes, TrustedProxies, Via, NoForwarded, PeekBytes,
// RefuseBeyondPeek, KeyAuthorization, AccessLog, ErrorPages, MaxBuffered, MaxBufferedPerConn, ReadHeaderTimeout,
// ClientIdleTimeout, MaxHeaderBytes, MaxHeaderFields, MaxStreams, and ClientAuth and ClientCAs of TLS; all other fields keep the
// values given to New. Connections of HTTP/2 keep their ReadHeaderTimeout,
// MaxHeaderBytes and MaxStreams.
type Config struct {
	// Listener configures admission, PROXY protocol, access log and logger.
	Listener listener.Config
	// Routes say where requests go; a request without a matching route is answered with 404.
	Routes []Route
	// TLS makes the listener speak TLS, with HTTP/2 and HTTP/1.1 by ALPN. Without it, clients may begin with HTTP/2
	// directly ("prior knowledge"). With ClientCAs, the server gets the verified certificate of the client in
	// X-Forwarded-Client-Cert.
	TLS *tls.Config
	// TrustedProxies are the peers whose X-Forwarded-* and Forwarded fields are trusted and extended. The fields of
	// other peers are replaced, and their X-Forwarded-Client-Cert is dropped. Empty = none.
	TrustedProxies []netip.Prefix
	// NoForwarded leaves the Forwarded field (RFC 7239) out; X-Forwarded-For, -Proto and -Host are always set.
	NoForwarded bool
	// Via is the name this proxy adds to Via fields; "" = none.
	Via string
	// PeekBytes bounds how many bytes of a body, framing included, are read to find a route by its conditions on the
	// body. 0 = DefaultPeekBytes, at most MaxPeekBytes. A request with a JSON body holds up to three times as much
	// memory; other bodies are not read.
	PeekBytes int
	// RefuseBeyondPeek answers 413 if a body field that routes look at is not found within PeekBytes. Otherwise such
	// routes do not match.
	RefuseBeyondPeek bool

	// KeyAuthorization returns the answer to a GET of /.well-known/acme-challenge/TOKEN, by which a certificate
	// authority checks whether a name belongs to this Proxy (RFC 8555, section 8.3). It is asked before any route. "" =
	// the request is routed as any other. The token may have any characters. KeyAuthorization runs on a goroutine and
	// may wait. nil = there are no challenges.
	KeyAuthorization func(token string) string

	// AccessLog is a log with one line for each request; nil = none. After an Update, requests under way are logged to
	// the new one.
	AccessLog *AccessLog
	// Announce tells clients that the Proxy also serves a CarrierListener.
	Announce Announcement
	// ResetSecret lets a Proxy tell the clients of Carriers that a Proxy before it, which was killed, has lost their
	// connections: both have the same secret, which nobody else knows. nil = another one in each process. Update does not
	// change it.
	ResetSecret []byte
	// Tracer gets the traces of requests; nil = no request is traced. Update does not change it.
	Tracer Tracer

	// ErrorPages are the pages of routes without their own, and of requests without a route.
	ErrorPages []ErrorPage

	// MaxBuffered is how many bytes the Proxy may hold for requests: their heads, and parts of bodies that the next
	// connection has not accepted yet. Beyond it, new requests are answered 503 with Retry-After, as when Memory is
	// used up. 0 = only Memory bounds them.
	MaxBuffered int64
	// MaxBufferedPerConn is how many of these bytes one client connection may hold, with all its HTTP/2 streams. What a
	// request may need is reserved when its head arrives. If there is no room for it, the request is answered 503 with
	// Retry-After, unless it is the only one on its connection. At least LeastBufferedPerConn; 0 = no limit of its own.
	MaxBufferedPerConn int64
	// Memory bounds all Proxies that share it. nil = SharedMemory. Update does not change it.
	Memory *Memory

	ReadHeaderTimeout time.Duration // 0 = DefaultReadHeaderTimeout
	ClientIdleTimeout time.Duration // 0 = DefaultClientIdleTimeout
	MaxHeaderBytes    int           // 0 = DefaultMaxHeaderBytes
	MaxHeaderFields   int           // 0 = DefaultMaxHeaderFields
	MaxStreams        int           // 0 = DefaultMaxStreams
}

// Route sends requests for a host and a path to an upstream.
//
// Of all matching routes, the one with the most specific host wins: an exact host before the longest "*.suffix" before
// any host. Among routes of the same host an exact path wins before expressions, in their order, and these before the
// longest prefix. Among paths of the same length the route with the most conditions wins: Methods are one condition,
// Groups are one, and so is each entry of Headers, Cookies, Query and Body. Between equals the order decides. If no route of a
// host matches, less specific hosts are tried.
type Route struct {
	// Host is "app.example", "*.example" (any name below example, at any depth, but not example itself), or "" for
	// every host. Case, a port and a trailing dot in the request do not matter.
	Host string
	// Path is a prefix in whole segments: "/api" matches "/api", "/api/" and "/api/x", never "/apix"; "/api/" matches
	// "/api/" and below. "" and "/" match everything. It is compared with the decoded path.
	Path string
	// PathMatch is how Path is compared: as a prefix, the whole path, or a regular expression.
	PathMatch PathMatch
	// Methods are the methods of the route; case matters, and GET is not HEAD. Empty = all.
	Methods []string
	// Headers must all be present, each with a field whose whole value is the given one, or fits as FieldMatch.Match says.
	// Values are case-sensitive, names are not.
	Headers []FieldMatch
	// Cookies must all be present, likewise. Their names are case-sensitive, too.
	Cookies []FieldMatch
	// Query are parameters that must all be present, each at least once with the given value. Names and values are
	// compared decoded.
	Query []FieldMatch
	// Body are fields of a JSON object that must all be present. A name is that of a field at the top level, or names
	// joined by dots for nested objects. A string is compared decoded; a number, true, false and null are compared as
	// written.
	Body []FieldMatch
	// Groups are the groups of requests that the upstream serves: "model=llama3" are requests whose body has that field (see
	// Body), "model=*" those that have the field with any value, and "all" every request. Routes that differ only in Groups
	// and Upstream form a set. A request goes to a route of the set with an exactly matching group; with a header
	// X-Headpond-Fallback (X-Otela-Fallback) of "1" also to one that serves any value, and with "2" to one that serves all.
	// Better matches win; among equals the upstream with the least load does. A request without a body may go to any. The
	// answer gets a header X-Computing-Node with the name of the upstream, unless it has one.
	Groups []string
	// StripPrefix removes Path from the forwarded path; only for prefixes.
	StripPrefix bool
	// Rewrite is the path that the server gets in place of the request's, with the variables {path} and {rest}, which
	// is the part after Path, and with PathRegexp the groups of the expression: $1, ${1}, $name or ${name}; "$$" stands for a
	// dollar. A group inserts what the client wrote, escapes included. A request gets 400 if its new path would have a "."
	// or ".." segment because of a group, and 414 if it would be longer than Config.MaxHeaderBytes. The query is kept. "" = the path is
	// not changed.
	Rewrite string
	// RequestHeaders changes the header of a request before it is sent, ResponseHeaders that of the final response.
	RequestHeaders, ResponseHeaders HeaderRules
	// Locations changes addresses in answers of the upstream, SetCookies the attributes of its cookies.
	Locations  LocationRewrite
	SetCookies CookieRewrite
	// Redirect and Respond answer requests without an upstream. At most one is set.
	Redirect Redirect
	Respond  Respond
	// Upstream is required unless Redirect or Respond is set. The Proxy does not close it.
	Upstream *Upstream

	// Timeout bounds a request as a whole, both bodies included. 0 = no limit. Not for upgraded connections.
	Timeout time.Duration
	// DeadlineHeader is a field in which clients say how long a request may take as a whole: a number of seconds, or of
	// milliseconds if the name of the field ends in "-ms", or a number with a unit, such as 1.5s or 200ms. Other values
	// are ignored. Timeout also applies. "" = none. The grpc-timeout of HTTP/2 clients always applies.
	DeadlineHeader string
	// ConnectTimeout bounds, for each endpoint tried, the wait for a connection, whether a new one is opened or another
	// becomes free. The upstream's own limits also apply. 0 = only those.
	ConnectTimeout time.Duration
	// ResponseTimeout bounds the wait for the response's head after the request has been sent; when it has passed, the
	// client gets 504. 0 = 60s, negative = no limit.
	ResponseTimeout time.Duration
	// IdleTimeout bounds each wait for the client or the server within a body or an upgraded connection. 0 =
	// DefaultIdleTimeout, negative = no limit.
	IdleTimeout time.Duration
	// MaxBody bounds the bodies of requests, in bytes without their framing: longer ones get 413. A request whose head tells
	// the length does not reach the server. One without a length is sent as it comes, and broken off when it is too long.
	// 0 = no limit.
	MaxBody int64
	// StrictBackend answers 502 if a response frames its body in two ways (see httpwire.Response.ParseLenient).
	StrictBackend bool
	// Retries are the rules for sending failed requests again.
	Retries Retries
	// Affinity sends requests with the same key to the same endpoint. With the zero value only the upstream's balance decides.
	Affinity Affinity
	// Allow lists the client addresses that may use the route, empty = all; Deny lists exceptions. Other clients get
	// 403. If the peer is one of Config.TrustedProxies, the client is the last address in X-Forwarded-For that is not a
	// trusted proxy; if that is not an address, the request is refused.
	Allow, Deny []netip.Prefix
	// BasicAuth asks clients for a name and a password; nil = none.
	BasicAuth *BasicAuth
	// BearerAuth asks clients for an API key or a token; nil = none. It excludes BasicAuth.
	BearerAuth *BearerAuth
	// ForwardAuth asks another server about each request; nil = none. It excludes BasicAuth and BearerAuth.
	ForwardAuth *ForwardAuth
	// RateLimit limits the requests of the route in a period.
	RateLimit RateLimit
	// Canary sends a share of the requests to another upstream.
	Canary Canary
	// Mirror sends copies of requests to another upstream.
	Mirror Mirror
	// Compression compresses answers; nil = answers pass unchanged.
	Compression *Compression
	// CORS lets pages of other origins use the route; nil = the server decides.
	CORS *CORS
	// ErrorPages replace Config.ErrorPages. nil = those of the Config; empty and not nil = none.
	ErrorPages []ErrorPage
	// LLM counts the tokens of language models; nil = they are not counted.
	LLM *LLM
	// NoAccessLog leaves requests of the route out of Config.AccessLog and of the access log of listener.Config.
	NoAccessLog bool
	// LogFilter says which requests have a line in these logs. nil = in Config.AccessLog its own filter decides, in the other
	// one all have one.
	LogFilter *LogFilter
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
	if c.ReadHeaderTimeout < 0 || c.ClientIdleTimeout < 0 || c.MaxHeaderBytes < 0 || c.MaxHeaderFields < 0 || c.MaxStreams < 0 || c.MaxBuffered < 0 || c.Announce.MaxAge < 0 || c.Announce.Port < 0 {
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
	if err := verifyShared(c.Routes); err != nil {
		errs = append(errs, fmt.Errorf("%w: %w", ErrConfig, err))
	}
	if err := verifyErrorPages(c.ErrorPages); err != nil {
		errs = append(errs, fmt.Errorf("%w: %w", ErrConfig, err))
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
	case r.Rewrite != "" && CheckRewrite(r.Rewrite, r.expression()) != nil:
		return fmt.Errorf("the new path: %w", CheckRewrite(r.Rewrite, r.expression()))
	case !validHostPattern(r.Host):
		return errors.New(`the host is not a name, "*.name" or empty (write no port)`)
	case r.Timeout < 0 || r.ConnectTimeout < 0 || r.MaxBody < 0:
		return errors.New("negative timeout, or limit of bodies")
	case r.DeadlineHeader != "" && (!httpwire.ValidToken(r.DeadlineHeader) || len(r.DeadlineHeader) > maxMatchBytes):
		return fmt.Errorf("the header %.40q for deadlines is not a token of up to %d bytes", r.DeadlineHeader, maxMatchBytes)
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
	if err := r.LLM.verify(r); err != nil {
		return err
	}
	if err := r.CORS.verify(); err != nil {
		return err
	}
	if err := r.RateLimit.verify(r); err != nil {
		return err
	}
	if _, err := newHeaderRules(r.RequestHeaders, true); err != nil {
		return fmt.Errorf("the headers of requests: %w", err)
	}
	if _, err := newHeaderRules(r.ResponseHeaders, false); err != nil {
		return fmt.Errorf("the headers of answers: %w", err)
	}
	if err := errors.Join(r.verifyAccess(), verifyErrorPages(r.ErrorPages), r.LogFilter.verify(), r.Mirror.verify(r), r.verifyReverse()); err != nil {
		return err
	}
	if err := r.Compression.verify(); err != nil {
		return err
	}
	return r.verifyMatch()
}
