// Package nginxconf reads configurations of nginx, of its versions up to 1.31, for `headpond import`.
package nginxconf

import (
	"cmp"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headpond/headpond/internal/proxyconf"
	"github.com/headpond/headpond/internal/yamltext"
)

// Options say how a configuration is converted.
type Options struct {
	Dir  string                                 // absolute: where relative names of files start
	Read func(path string) ([]byte, error)      // reads the files that the configuration names
	Glob func(pattern string) ([]string, error) // lists those that match a pattern
}

// converter makes a configuration.
type converter struct {
	opt       Options
	out       *proxyconf.Gateway
	http      *directive
	upstreams map[string]*proxyconf.Upstream // by what they are made of
	maps      map[string]*directive          // by their variable
	listening map[string]bool
	caches    bool            // something is cached
	asks      map[string]bool // the paths of auth_request
}

// within reports whether a block has a directive that is not off, at any depth.
func within(block *directive, name string) bool {
	return slices.ContainsFunc(block.block, func(d *directive) bool {
		return d.name() == name && d.arg(1) != "off" || within(d, name)
	})
}

// sets reports whether a block, or one in it, sets a variable.
func sets(block *directive, name string) bool {
	return slices.ContainsFunc(block.block, func(d *directive) bool { return d.name() == "set" && d.arg(1) == name || sets(d, name) })
}

// asked returns the paths of auth_request.
func asked(block *directive) map[string]bool {
	all := map[string]bool{}
	for _, d := range block.block {
		if d.name() == "auth_request" {
			all[d.arg(1)] = true
		}
		maps.Copy(all, asked(d))
	}
	return all
}

// scope is a block, with those around it, the innermost last.
type scope []*directive

// find returns the directive of a name in the innermost block that has it.
func (s scope) find(name string) *directive {
	for _, block := range slices.Backward(s) {
		if all := block.all(name); len(all) > 0 {
			return all[len(all)-1]
		}
	}
	return nil
}

// list returns the directives of a name in the innermost block that has one.
func (s scope) list(name string) []*directive {
	for _, block := range slices.Backward(s) {
		if all := block.all(name); len(all) > 0 {
			return all
		}
	}
	return nil
}

// within returns the scope of a block in s.
func (s scope) within(d *directive) scope { return append(slices.Clone(s), d) }

func (c *converter) missing(d *directive, format string, args ...any) {
	c.out.Reports.Add(d.at, strings.Join(d.words[:min(2, len(d.words))], " "), proxyconf.Missing, format, args...)
}

func (c *converter) differs(d *directive, format string, args ...any) {
	c.out.Reports.Add(d.at, d.name(), proxyconf.Differs, format, args...)
}

func (c *converter) itself(d *directive, format string, args ...any) {
	c.out.Reports.Add(d.at, d.name(), proxyconf.Itself, format, args...)
}

// Convert makes a configuration of the gateway of the text of a file.
func Convert(path string, text []byte, opt Options) (*proxyconf.Gateway, error) {
	r := &reader{opt: opt, dir: opt.Dir}
	all, err := r.file(path, text, 0, 0)
	if err != nil {
		return nil, err
	}
	c := &converter{opt: opt, out: &proxyconf.Gateway{Program: "nginx"}, upstreams: map[string]*proxyconf.Upstream{}, maps: map[string]*directive{}, listening: map[string]bool{}}
	main := &directive{at: proxyconf.Position{File: path, Line: 1}, words: []string{"main"}, block: all}
	c.report(main, "main")
	for _, http := range main.all("http") {
		c.http = http
		for _, m := range http.all("map") {
			c.maps[m.arg(2)] = m
		}
		for _, geo := range http.all("geo") {
			c.maps[geo.words[len(geo.words)-1]] = geo
		}
		for _, name := range slices.Sorted(maps.Keys(c.maps)) {
			if sets(http, name) {
				delete(c.maps, name) // it has another value there
			}
		}
		c.caches = c.caches || within(http, "proxy_cache")
		c.asks = asked(http)
		c.web(scope{main, http})
	}
	for _, stream := range main.all("stream") {
		c.stream(scope{main, stream})
	}
	if len(c.out.Listeners) == 0 {
		return nil, Problem{main.at, c.out.Reports.Lost("no server that the gateway could serve; is this a configuration of nginx?")}
	}
	return c.out, nil
}

// host is a server with one listen directive.
type host struct {
	scope
	listen *directive
	server *directive
}

// has reports whether the listen directive has a word.
func (h host) has(word string) bool { return slices.Contains(h.listen.words[2:], word) }

// addresses returns the servers of a block by their addresses, in the order of the file.
func (c *converter) addresses(s scope) (order []string, by map[string][]host) {
	by = map[string][]host{}
	for _, server := range s[len(s)-1].all("server") {
		listens := server.all("listen")
		if len(listens) == 0 {
			listens = []*directive{{at: server.at, words: []string{"listen", "80"}}}
		}
		for _, l := range listens {
			address, why := listenAddress(l.arg(1))
			if why != "" {
				c.missing(l, "%s", why)
				continue
			}
			if len(l.words) < 2 {
				continue
			}
			if !slices.Contains(order, address) {
				order = append(order, address)
			}
			if !slices.ContainsFunc(by[address], func(h host) bool { return h.server == server }) {
				by[address] = append(by[address], host{s.within(server), l, server})
			}
		}
	}
	return order, by
}

// listenAddress returns the address of a listen directive, or why there is none.
func listenAddress(text string) (address, why string) {
	if path, ok := strings.CutPrefix(text, "unix:"); ok {
		if !strings.HasPrefix(path, "/") || len(path) > 100 || !plain(path) {
			return "", "a socket has an absolute path of up to 100 bytes"
		}
		return text, ""
	}
	host, port := text, "80"
	if i := strings.LastIndexByte(text, ':'); i >= 0 && !strings.HasSuffix(text, "]") {
		host, port = text[:i], text[i+1:]
	} else if _, err := strconv.Atoi(text); err == nil {
		host, port = "", text
	}
	host = strings.Trim(host, "[]")
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", "want a port; ranges of ports need a listener each"
	}
	if host == "*" || host == "0.0.0.0" || host == "::" {
		host = "" // the gateway's sockets are for both families
	}
	if host != "" && net.ParseIP(host) == nil && !isHost(strings.ToLower(host)) {
		return "", "this is no address"
	}
	return net.JoinHostPort(host, port), ""
}

func plain(text string) bool {
	return !strings.ContainsFunc(text, func(c rune) bool { return c < ' ' || c > '~' })
}

// isHost reports whether a text may be the name of a host in a route.
func isHost(text string) bool {
	last := text[strings.LastIndexByte(text, '.')+1:]
	if _, err := netip.ParseAddr(text); err != nil && strings.Trim(last, "0123456789") == "" { // neither an address nor a name
		return false
	}
	return text != "unix" && len(text) < 254 && !strings.HasPrefix(text, ".") && !strings.ContainsFunc(text, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '.' && c != '_'
	})
}

// web adds the listeners of http.
func (c *converter) web(s scope) {
	c.report(s[len(s)-1], "http")
	order, by := c.addresses(s)
	for _, address := range order {
		hosts := by[address]
		main := hosts[0]
		for _, h := range hosts {
			if h.has("default_server") || h.has("default") {
				main = h
			}
		}
		if taken := cmp.Or(proxyconf.Overlap(slices.Values(order), address), proxyconf.Overlap(maps.Keys(c.listening), address)); taken != "" && !strings.HasPrefix(address, ":") {
			c.missing(main.listen, "the gateway listens at %s, and that is for this address, too: its clients get what the servers there do", taken)
			continue
		}
		l := &proxyconf.Listener{Of: "server", From: main.server.at}
		l.Settings.Set("protocol", "http", main.server.at)
		l.Settings.Set("listen", yamltext.Quote(address), main.listen.at)
		v := &view{converter: c, tls: slices.ContainsFunc(hosts, host.encrypted), port: portOf(address)}
		if !c.listenSettings(l, hosts, main, v.tls) {
			continue
		}
		leaves, ok := proxyconf.Compile(v.servers(hosts, main), proxyconf.State{}, &c.out.Reports)
		if !ok {
			c.missing(main.listen, "its locations have too many combinations of conditions, and each is a route: the servers of %s are not in the result", address)
			continue
		}
		l.Routes = proxyconf.Routes(leaves)
		l.Name = c.out.Name("listener", "http-"+cmp.Or(v.port, "socket"))
		c.out.Listeners = append(c.out.Listeners, l)
		c.listening[address] = true
	}
}

// encrypted reports whether clients speak TLS to a server.
func (h host) encrypted() bool {
	on := h.find("ssl") // of old versions
	return h.has("ssl") || on != nil && on.arg(1) == "on"
}

func portOf(address string) string {
	_, port, err := net.SplitHostPort(address)
	if strings.HasPrefix(address, "unix:") || err != nil {
		return ""
	}
	return port
}

// listenSettings sets what the listen directives and the servers say of the connection; false if there can be no listener.
func (c *converter) listenSettings(l *proxyconf.Listener, hosts []host, main host, tls bool) bool {
	for _, h := range hosts {
		for _, w := range h.listen.words[2:] {
			c.listenWord(l, h, w)
		}
	}
	c.realIP(l, hosts)
	l.Settings.Default("http/retries", "{on: [connect, reset]}", "nginx's default: error, timeout")
	if log := main.find("access_log"); log != nil && log.arg(1) != "off" {
		l.Settings.Set("access_log", "true", log.at)
	}
	c.clientTimes(l, main)
	if !tls {
		return true
	}
	var further []string
	for i, h := range append([]host{main}, hosts...) {
		certs, keys := h.list("ssl_certificate"), h.list("ssl_certificate_key")
		if i > 0 && h.server == main.server {
			continue
		}
		for n, cert := range certs {
			if n >= len(keys) || strings.Contains(cert.arg(1)+keys[n].arg(1), "$") {
				c.missing(cert, "a certificate is a file, with a key")
				continue
			}
			if l.Settings.Get("tls/cert") == "" {
				l.Settings.Set("tls/cert", yamltext.Quote(c.path(cert.arg(1))), cert.at)
				l.Settings.Set("tls/key", yamltext.Quote(c.path(keys[n].arg(1))), keys[n].at)
				continue
			}
			if pair := "{cert: " + yamltext.Quote(c.path(cert.arg(1))) + ", key: " + yamltext.Quote(c.path(keys[n].arg(1))) + "}"; !slices.Contains(further, pair) && c.path(cert.arg(1)) != strings.Trim(l.Settings.Get("tls/cert"), `"`) {
				further = append(further, pair)
			}
		}
	}
	if l.Settings.Get("tls/cert") == "" {
		c.missing(main.listen, "it is left out: there is no certificate; tls: {cert, key} of a listener names it")
		return false
	}
	if further != nil {
		l.Settings.Set("tls/certificates", "["+strings.Join(further, ", ")+"]", main.server.at)
	}
	c.clientCerts(l, hosts, main)
	return true
}

// clientTimes sets how long a client may be idle, and how long a head may take. To nginx, too, the second is the default server's.
func (c *converter) clientTimes(l *proxyconf.Listener, main host) {
	if d := main.find("keepalive_timeout"); d != nil {
		if t, ok := parseTime(d.arg(1), time.Second); ok && t == 0 {
			c.differs(d, "clients may send further requests on a connection; client_idle_timeout of the listener bounds how long it is idle")
		} else if text, ok := c.duration(d, 1, time.Millisecond, 24*time.Hour); ok {
			l.Settings.Set("http/client_idle_timeout", text, d.at)
		}
	}
	if d := main.find("client_header_timeout"); d != nil {
		if text, ok := c.duration(d, 1, time.Millisecond, time.Hour); ok {
			l.Settings.Set("http/read_header_timeout", text, d.at)
		}
	}
}

// realIP sets whose X-Forwarded-For, or PROXY header, says who the client is.
func (c *converter) realIP(l *proxyconf.Listener, hosts []host) {
	var all []string
	var at *directive
	for _, h := range hosts {
		header := "X-Real-IP"
		d := h.find("real_ip_header")
		if d != nil {
			header = d.arg(1)
		}
		own := h.list("set_real_ip_from")
		if len(own) > 0 && !strings.EqualFold(header, "X-Forwarded-For") && header != "proxy_protocol" {
			c.missing(cmp.Or(d, own[0]), "the gateway finds the client in X-Forwarded-For or a PROXY header of trusted_proxies: in allow, deny and {client_ip} it is the other proxy")
			continue
		}
		for _, from := range own {
			p := proxyconf.ParsePrefix(from.arg(1))
			if p == nil {
				c.missing(from, "trusted_proxies has addresses")
				continue
			}
			if text := p.Prefixes[0].String(); !slices.Contains(all, text) {
				all, at = append(all, text), from
			}
		}
	}
	if at == nil {
		return
	}
	l.Settings.Set("trusted_proxies", yamltext.List(all), at.at)
	if slices.ContainsFunc(hosts, func(h host) bool { return len(h.list("set_real_ip_from")) == 0 }) {
		c.differs(at, "trusted_proxies is for all servers of the listener")
	}
}

// clientCerts sets whether clients need certificates.
func (c *converter) clientCerts(l *proxyconf.Listener, hosts []host, main host) {
	mode := func(h host) string {
		if v := h.find("ssl_verify_client"); v != nil {
			return v.arg(1)
		}
		return "off"
	}
	for _, h := range hosts {
		if mode(h) != mode(main) {
			c.missing(h.find2("ssl_verify_client", h.server), "a listener asks all clients for certificates, or none: give this server another address; CLIENTS WITHOUT ONE MAY BE LET IN")
			return
		}
	}
	verify := mode(main)
	ca := main.find("ssl_client_certificate")
	switch {
	case verify == "off":
		return
	case ca == nil || verify == "optional_no_ca":
		c.missing(main.find2("ssl_verify_client", main.server), "client_ca has the authorities of clients")
		return
	}
	l.Settings.Set("tls/client_ca", yamltext.Quote(c.path(ca.arg(1))), ca.at)
	if crl := main.find("ssl_crl"); crl != nil {
		l.Settings.Set("tls/client_crl", yamltext.Quote(c.path(crl.arg(1))), crl.at)
	}
	if verify == "optional" {
		l.Settings.Set("tls/client_auth", "request", main.find("ssl_verify_client").at)
	}
}

// find2 is find, with something in its place.
func (s scope) find2(name string, or *directive) *directive { return cmp.Or(s.find(name), or) }

// listenWord reads a word of a listen directive.
func (c *converter) listenWord(l *proxyconf.Listener, h host, w string) {
	name, _, _ := strings.Cut(w, "=")
	switch name {
	case "ssl", "default_server", "default", "http2", "spdy":
	case "proxy_protocol":
		l.Settings.Set("accept_proxy", "true", h.listen.at)
		l.Settings.Set("trusted_proxies", proxyconf.PrivateNetworks, h.listen.at)
		c.out.Reports.Add(h.listen.at, "listen proxy_protocol", proxyconf.Differs, "nginx takes the header of every client, and the gateway that of trusted_proxies, and their X-Forwarded-For: name the load balancers in place of all private networks")
	case "quic":
		c.out.Reports.Add(h.listen.at, "listen quic", proxyconf.Missing, "HTTP/3 is a key of the listener: http: {http3: true}")
	case "reuseport", "backlog", "rcvbuf", "sndbuf", "fastopen", "deferred", "bind", "ipv6only", "so_keepalive", "setfib", "accept_filter", "multipath":
		c.out.Reports.Add(h.listen.at, "listen "+name, proxyconf.Itself, "the system and the engine choose it; sockets are for IPv4 and IPv6")
	case "udp":
		c.out.Reports.Add(h.listen.at, "listen udp", proxyconf.Missing, "a udp listener forwards datagrams: docs/udp.md")
	default:
		c.out.Reports.Add(h.listen.at, "listen "+name, proxyconf.Missing, "the gateway has no such option")
	}
}
