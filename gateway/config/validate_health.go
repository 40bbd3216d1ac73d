package config

import (
	"errors"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

func (d *decoder) checkHealth(u *Upstream) {
	h := u.Health
	if h == nil {
		return
	}
	kinds := 0
	for _, set := range []bool{h.HTTP != "", h.HTTPS != "", h.TCP, h.GRPC, h.Postgres} {
		if set {
			kinds++
		}
	}
	if kinds != 1 && d.noProblemAt(&h.HTTP, &h.HTTPS, &h.TCP, &h.GRPC, &h.Postgres) {
		d.report(d.mark(&u.Health), "health: want exactly one of \"http: /path\", \"https: /path\", \"tcp: true\", \"grpc: true\" and \"postgres: true\", got %d", kinds)
	}
	d.checkHealthPath("http", &h.HTTP)
	d.checkHealthPath("https", &h.HTTPS)
	d.checkHealthKeys(u)
	d.checkClientFiles(&h.CA, &h.Cert, &h.Key)
	d.checkHealthPort(u)
	d.checkOnUnhealthy(u)
}

// endsSessions reports whether sessions of a protocol's upstreams can be closed by the gateway.
func endsSessions(name Protocol) bool {
	p := protocolOf(name)
	return p != nil && p.EndsSessions
}

// closingProtocols lists the protocols for which endsSessions holds.
func closingProtocols() string {
	var names []string
	for _, p := range protocols {
		if p.EndsSessions {
			names = append(names, string(p.Name))
		}
	}
	return strings.Join(names, " and ")
}

// checkOnUnhealthy sets the default, and refuses values for upstreams whose sessions cannot be closed.
func (d *decoder) checkOnUnhealthy(u *Upstream) {
	h := u.Health
	switch {
	case !endsSessions(u.Protocol) && d.written(&h.OnUnhealthy):
		d.report(d.mark(&h.OnUnhealthy), "on_unhealthy: only %s upstreams close sessions; this upstream's protocol is %q", closingProtocols(), u.Protocol)
	case endsSessions(u.Protocol) && h.OnUnhealthy == "":
		h.OnUnhealthy = CloseUnhealthy
	}
	if h.OnUnhealthy == DrainUnhealthy && u.RemovedTimeout == 0 && d.noProblemAt(&u.RemovedTimeout) {
		d.warn(d.mark(&h.OnUnhealthy), "on_unhealthy: drain closes nothing as long as the upstream's drain_timeout is never")
	}
}

// checkedHost matches what may stand in the request of a check.
var checkedHost = regexp.MustCompile(`^[A-Za-z0-9._-]*$`)

// checkHealthKeys refuses keys that the kind of check does not use.
func (d *decoder) checkHealthKeys(u *Upstream) {
	h := u.Health
	for _, k := range []struct {
		name string
		ptr  any
	}{{"ca", &h.CA}, {"cert", &h.Cert}, {"key", &h.Key}, {"server_name", &h.ServerName}, {"token_file", &h.TokenFile}} {
		if h.HTTPS == "" && d.written(k.ptr) {
			d.report(d.mark(k.ptr), "%q is for \"https\" checks", k.name)
		}
	}
	if h.HTTP == "" && h.HTTPS == "" && d.written(&h.Expect) {
		d.report(d.mark(&h.Expect), "\"expect\" is for \"http\" and \"https\" checks")
	}
	if h.HTTP == "" && h.HTTPS == "" && !h.GRPC && d.written(&h.Host) {
		d.report(d.mark(&h.Host), "\"host\" is for \"http\", \"https\" and \"grpc\" checks")
	} else if !checkedHost.MatchString(h.Host) {
		d.report(d.mark(&h.Host), "host: %q: want the name of a host, without a port", h.Host)
	}
	if !h.GRPC && d.written(&h.Service) {
		d.report(d.mark(&h.Service), "\"grpc_service\" is for \"grpc\" checks")
	}
	if h.Postgres && d.written(&h.Port) {
		d.report(d.mark(&h.Port), "\"port\" is not for \"postgres\" checks")
	}
}

// checkHealthPort refuses a port for endpoints without ports, and warns of a check that cannot
// succeed.
func (d *decoder) checkHealthPort(u *Upstream) {
	h := u.Health
	for i := range u.Endpoints {
		e := u.Endpoints[i].Address
		_, port, err := net.SplitHostPort(e)
		switch {
		case h.Port != 0 && (err != nil || strings.HasPrefix(e, "unix:")):
			d.report(d.mark(&h.Port), "port: the endpoint %q has no host", e)
			return
		case h.Port == 0 && (h.HTTP != "" || h.GRPC) && u.TLS == nil && slices.Contains(tlsPorts, port):
			d.warn(d.mark(&h.HTTP, &h.GRPC), "%s: servers speak TLS on port %s as a rule; %s", kindInClear(h), port, kindOverTLS(h))
			return
		}
	}
}

func kindInClear(h *Health) string {
	if h.GRPC {
		return "grpc"
	}
	return "http"
}

// kindOverTLS says what to write instead of a check in clear text.
func kindOverTLS(h *Health) string {
	if h.GRPC {
		return "give the upstream \"tls\""
	}
	return "write \"https\""
}

// tlsPorts are the ports of HTTPS and of Kubernetes API servers.
var tlsPorts = []string{"443", "6443"}

// checkHealthPath refuses paths that cannot be requested.
func (d *decoder) checkHealthPath(key string, path *string) {
	if *path == "" {
		return
	}
	_, err := url.ParseRequestURI(*path)
	switch {
	case (*path)[0] != '/':
		d.report(d.mark(path), "%s: %q: want a path that starts with \"/\"", key, clip(*path))
	case strings.ContainsAny(*path, " #"):
		d.report(d.mark(path), "%s: %q: want a path without spaces and \"#\"; write them as %%20 and %%23", key, clip(*path))
	case err != nil:
		d.report(d.mark(path), "%s: %q: %v", key, clip(*path), errors.Unwrap(err))
	}
}
