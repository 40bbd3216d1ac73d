package protocols

import (
	"time"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/gateway/extend"
	"github.com/headpond/headpond/httpproxy"
)

// HTTPUpstreamKeys are the keys that the protocol http adds to upstreams.
type HTTPUpstreamKeys struct {
	Version httpproxy.Protocol `conf:"protocol"` // of HTTP that the servers speak; empty: h1
	HTTP2   *HTTP2Upstream     `conf:"http2"`    // nil: the defaults
}

// HTTP2Upstream has the settings of connections that several requests share.
type HTTP2Upstream struct {
	MaxStreams int           `conf:"max_streams" default:"100" min:"1" max:"10000"` // requests at a time on one connection; the server may allow fewer
	PingAfter  time.Duration `conf:"ping_after" default:"30s" min:"1s" max:"1h"`    // silence of a connection with requests under way
}

// httpKeys describes the protocol's keys in upstreams.
func httpKeys() *config.Extension {
	return &config.Extension{Upstream: &HTTPUpstreamKeys{}, CheckUpstream: checkHTTPUpstream}
}

// checkHTTPUpstream checks the keys of the protocol, in upstreams of any protocol.
func checkHTTPUpstream(c *config.Checker, u *config.Upstream) {
	keys := config.PartOf[HTTPUpstreamKeys](u)
	if u.Protocol != config.HTTP {
		checkNoAnswers(c, u)
		if c.Written(&keys.Version) {
			c.Report(c.Mark(&keys.Version), "\"protocol\" is the version of HTTP of an http listener's upstream; this one's listener is of protocol %q", u.Protocol)
		}
		if c.Written(&keys.HTTP2) {
			c.Report(c.Mark(&keys.HTTP2), "\"http2\" is for upstreams of http listeners; this one's listener is of protocol %q", u.Protocol)
		}
		return
	}
	if c.Written(&keys.HTTP2) && !keys.Version.Multiplexes() && c.NoProblemAt(&keys.Version) {
		c.Report(c.Mark(&keys.HTTP2), "\"http2\" has no effect without \"protocol\": want protocol: h2, h2c or auto beside it")
	}
	if !c.NoProblemAt(&keys.Version) {
		return
	}
	switch tls := c.Written(&u.TLS); {
	case tls && keys.Version == httpproxy.ProtocolH2C:
		c.Report(c.Mark(&keys.Version), "protocol: h2c is HTTP/2 without TLS, and this upstream has \"tls\"; did you mean \"h2\"?")
	case !tls && keys.Version == httpproxy.ProtocolH2:
		c.Report(c.Mark(&keys.Version), "protocol: h2 needs \"tls\": the server chooses it there by ALPN; without TLS did you mean \"h2c\"?")
	case !tls && keys.Version == httpproxy.ProtocolAuto:
		c.Report(c.Mark(&keys.Version), "protocol: auto needs \"tls\": the server chooses there by ALPN; without TLS write \"h2c\" or \"h1\"")
	}
}

// defaultMaxEjected is the default of Eject.MaxEjected.
const defaultMaxEjected = 50

// checkNoAnswers refuses settings that depend on answers, which only http upstreams have.
func checkNoAnswers(c *config.Checker, u *config.Upstream) {
	only := func(key string, field any) {
		c.Report(c.Mark(field), "%s: only http upstreams have answers to go by; this upstream's protocol is %q", key, u.Protocol)
	}
	if u.Balance == "peak_ewma" {
		only("balance: peak_ewma", &u.Balance)
	}
	if u.Eject.ServerErrors {
		only("server_errors", &u.Eject.ServerErrors)
	}
	if u.Eject.SlowerThan > 0 {
		only("slower_than", &u.Eject.SlowerThan)
	}
	if u.Eject.MaxEjected != defaultMaxEjected && c.NoProblemAt(&u.Eject.MaxEjected) {
		only("max_ejected", &u.Eject.MaxEjected)
	}
}

// httpRebuilds reports whether a changed upstream connects to its servers in another way.
func httpRebuilds(old, changed *config.Upstream, files bool) bool {
	// The other keys of HTTP/2 are compared as those of every extension. The lifetime is that of its connections, too.
	return extend.ConnectsOtherwise(old, changed, files) ||
		config.PartOf[HTTPUpstreamKeys](changed).Version.Multiplexes() && old.Pool.MaxLifetime != changed.Pool.MaxLifetime
}
