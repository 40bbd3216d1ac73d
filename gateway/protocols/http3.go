package protocols

import (
	"context"
	"net"
	"strings"
	"time"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/httpproxy"
)

// HTTP3 is the key "http3" of an http listener: it also serves HTTP/3, at the UDP port of its address.
type HTTP3 struct {
	Enabled      bool          `conf:"enabled" default:"true"`
	Announce     time.Duration `conf:"announce" default:"24h" min:"1s" max:"8760h" never:"0s"` // how long clients that come by TCP may remember it (Alt-Svc)
	AnnouncePort int           `conf:"announce_port" default:"0" min:"0" max:"65535"`          // that they are told; 0: the listener's
}

// listenHTTP3 opens the UDP socket of a listener; nil: the program has no HTTP/3.
var listenHTTP3 func(ctx context.Context, address string) (net.Listener, error)

// RegisterHTTP3 adds HTTP/3 to http listeners. Call it from an init function. listen binds the UDP socket at "host:port" and returns a
// httpproxy.CarrierListener with the methods of extend.Handover.
func RegisterHTTP3(listen func(ctx context.Context, address string) (net.Listener, error)) {
	listenHTTP3 = listen
}

// servesHTTP3 reports whether a listener serves HTTP/3.
func servesHTTP3(l *config.Listener) bool {
	h, ok := l.Section.(*HTTPListener)
	return ok && h.HTTP3 != nil && h.HTTP3.Enabled
}

// besideHTTP is Protocol.Beside.
func besideHTTP(l *config.Listener) func(ctx context.Context, address string) (net.Listener, error) {
	if !servesHTTP3(l) {
		return nil
	}
	return listenHTTP3
}

// announcement returns what clients that come by TCP are told.
func (h *HTTP3) announcement() httpproxy.Announcement {
	if h == nil || !h.Enabled {
		return httpproxy.Announcement{}
	}
	return httpproxy.Announcement{MaxAge: h.Announce, Port: h.AnnouncePort}
}

func checkHTTP3(c *config.Checker, l *config.Listener, h *HTTPListener) {
	if h.HTTP3 == nil || !h.HTTP3.Enabled {
		return
	}
	at := c.Mark(&h.HTTP3)
	switch {
	case listenHTTP3 == nil:
		c.Report(at, "http3: this program has no HTTP/3; the released one has it (make build)")
	case strings.HasPrefix(l.Listen, "unix:"):
		c.Report(at, "http3: clients reach it at a UDP port; give the listener an address host:port")
	case l.TLS == nil:
		c.Report(at, "http3: the listener has no \"tls\", and there is no HTTP/3 without it")
	case l.AcceptProxy:
		c.Report(at, "http3: there are no PROXY headers in QUIC; use a listener without \"accept_proxy\"")
	}
}
