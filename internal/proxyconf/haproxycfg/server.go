package haproxycfg

import (
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

// server is a line "server" with the options of default-server before its own.
type server struct {
	l       line
	address string
	options map[string]string // "" of those without a value
}

// serverValued are the options of servers that have a value.
var serverValued = []string{"addr", "agent-addr", "agent-inter", "agent-port", "agent-send", "alpn", "ca-file", "check-alpn", "check-proto", "check-sni", "ciphers", "ciphersuites", "cookie", "crl-file", "crt", "curves", "error-limit", "fall", "fastinter", "downinter", "id", "init-addr", "inter", "log-proto", "max-reuse", "maxconn", "maxqueue", "minconn", "namespace", "observe", "on-error", "on-marked-down", "on-marked-up", "pool-low-conn", "pool-max-conn", "pool-purge-delay", "port", "proto", "redir", "resolve-net", "resolve-opts", "resolve-prefer", "resolvers", "rise", "shard", "sigalgs", "slowstart", "sni", "socks4", "source", "ssl-max-ver", "ssl-min-ver", "tcp-ut", "track", "usesrc", "verify", "verifyhost", "weight", "ws", "interface", "proxy-v2-options", "guid", "hash-key"}

// servers returns the servers of a backend.
func (p *proxy) servers() (all []server) {
	defaults := map[string]string{}
	for _, l := range p.lines {
		if l.words[0] == "default-server" {
			serverOptions(l.words[1:], defaults)
		}
	}
	for _, l := range p.section.lines {
		if l.words[0] != "server" && l.words[0] != "server-template" {
			continue
		}
		s := server{l: l, address: l.arg(2), options: map[string]string{}}
		from := 3
		if l.words[0] == "server-template" {
			s.address, from = l.arg(3), 4
		}
		for k, v := range defaults {
			s.options[k] = v
		}
		serverOptions(l.words[min(from, len(l.words)):], s.options)
		all = append(all, s)
	}
	return all
}

// serverOptions reads options. Later ones replace those before.
func serverOptions(words []word, options map[string]string) {
	for i := 0; i < len(words); i++ {
		w := words[i]
		if off, ok := strings.CutPrefix(w, "no-"); ok {
			delete(options, off)
			continue
		}
		options[w] = ""
		if w == "enabled" {
			delete(options, "disabled")
		}
		if slices.Contains(serverValued, w) && i+1 < len(words) {
			i++
			options[w] = words[i]
		}
	}
}

func (s *server) has(name string) bool { _, ok := s.options[name]; return ok }

// upstream returns the upstream of a backend, nil if it has no server.
func (c *converter) upstream(p *proxy) *proxyconf.Upstream {
	if u, ok := c.upstreams[p]; ok {
		return u
	}
	u := &proxyconf.Upstream{Of: p.kind + " " + p.name, From: p.at}
	c.upstreams[p] = nil
	first, backups := server{}, 0
	if off, ok := p.last("disabled"); ok {
		c.out.Reports.Add(off.at, p.kind+" "+p.name, proxyconf.Itself, "it is disabled: its requests get 503")
		return nil
	}
	for _, s := range p.servers() {
		p.reportOptions(s)
		if why := p.unfit(s, first); why != "" {
			c.out.Reports.Add(s.l.at, s.l.name(), proxyconf.Missing, "%s", why)
			continue
		}
		if s.has("disabled") {
			c.out.Reports.Add(s.l.at, s.l.name(), proxyconf.Differs, "it is disabled, and left out; headpond ctl endpoint takes endpoints out and in")
			continue
		}
		if s.l.words[0] == "server-template" {
			u.Settings.Set("discover/dns", yamltext.Quote(s.address), s.l.at)
			first = s
			break
		}
		e := proxyconf.Endpoint{Address: s.address, From: s.l.at}
		address, why := p.serverAddress(s)
		if e.Address = address; why != "" {
			c.out.Reports.Add(s.l.at, s.l.name(), proxyconf.Missing, "%s", why)
			continue
		}
		if slices.ContainsFunc(u.Endpoints, func(o proxyconf.Endpoint) bool { return o.Address == e.Address }) {
			c.out.Reports.Add(s.l.at, s.l.name(), proxyconf.Differs, "the endpoint %s is there already", e.Address)
			continue
		}
		e.Weight, _ = strconv.Atoi(s.options["weight"])
		if s.has("backup") {
			backups++
			e.Priority = backups
			if _, all := p.last("option", "allbackups"); all {
				e.Priority = 1
			}
		}
		if len(u.Endpoints) == 0 {
			first = s
		}
		if u.Endpoints = append(u.Endpoints, e); len(u.Endpoints) == 1000 {
			break
		}
	}
	if len(u.Endpoints) == 0 && !u.Settings.Under("discover") {
		c.out.Reports.Add(p.at, p.kind+" "+p.name, proxyconf.Differs, "it has no server that is in use: its requests get 503")
		return nil
	}
	u.Name = c.out.Name("upstream", p.name)
	p.balance(u)
	p.serverSettings(u, first)
	p.health(u, first)
	c.upstreams[p] = u
	c.out.Upstreams = append(c.out.Upstreams, u)
	return u
}

// serverAddress returns the address of a server, or why it has none.
func (p *proxy) serverAddress(s server) (address, why string) {
	text := s.address
	for _, prefix := range []string{"ipv4@", "ipv6@", "tcp@"} {
		text = strings.TrimPrefix(text, prefix)
	}
	if path, ok := strings.CutPrefix(text, "unix@"); ok || strings.HasPrefix(text, "/") {
		if !ok {
			path = text
		}
		if !strings.HasPrefix(path, "/") || !plain(path) || len(path) > 100 {
			return "", "a socket has an absolute path"
		}
		return "unix:" + path, ""
	}
	i := strings.LastIndexByte(text, ':')
	host, port := text, ""
	if _, err := netip.ParseAddr(text); err != nil && i >= 0 {
		host, port = text[:i], text[i+1:]
	}
	host = strings.Trim(host, "[]")
	if port == "" {
		binds, _ := p.binds()
		if p.kind != "listen" || len(binds) != 1 || binds[0].port == "" {
			return "", "it has no port; HAProxy takes that of the client's connection, and an endpoint has a port of its own"
		}
		port = binds[0].port
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 || strings.HasPrefix(port, "+") {
		return "", "the port of an endpoint is a number"
	}
	if _, err := netip.ParseAddr(host); err != nil && !isHost(strings.ToLower(host)) {
		return "", "an endpoint has an address or the name of a host"
	}
	return net.JoinHostPort(host, port), ""
}

// unfit returns why a server cannot be an endpoint beside first.
func (p *proxy) unfit(s, first server) string {
	switch {
	case s.options["weight"] == "0":
		return "its weight is 0: it is left out; it got requests by cookies only"
	case first.options == nil:
	case s.has("ssl") != first.has("ssl"):
		return "an upstream uses TLS to all of its endpoints, or to none: this server is left out; give it an upstream of its own"
	case s.l.words[0] != first.l.words[0]:
		return "an upstream has endpoints, or discovers them: this server is left out"
	}
	if first.options != nil {
		for _, option := range []string{"sni", "ca-file", "verify", "maxconn", "port", "send-proxy", "send-proxy-v2", "slowstart", "proto", "alpn", "on-marked-down", "check", "inter", "rise", "fall", "crt"} {
			if s.options[option] != first.options[option] || s.has(option) != first.has(option) {
				p.c.out.Reports.Add(s.l.at, s.l.name(), proxyconf.Differs, "%s: all endpoints of an upstream have that of its first server", option)
			}
		}
	}
	return ""
}

// balance sets how an endpoint is chosen.
func (p *proxy) balance(u *proxyconf.Upstream) {
	l, ok := p.last("balance")
	name, _, _ := strings.Cut(l.arg(1), "(")
	balance := map[string]string{"roundrobin": "round_robin", "static-rr": "round_robin", "leastconn": "p2c", "first": "first", "random": "p2c", "source": "ring_hash", "hdr": "ring_hash"}[name]
	switch {
	case !ok && p.cookie() != "":
		l, _ = p.last("cookie")
	case !ok:
		balance = "round_robin"
	case name == "hdr" && !headerName(balanceHeader(l)):
		balance = ""
	}
	if balance == "" && ok {
		p.c.out.Reports.Add(l.at, l.name()+" "+l.arg(1), proxyconf.Missing, "requests are spread evenly; balance: ring_hash goes by the client's address, and with affinity by a header or cookie")
		balance = "round_robin"
	}
	if name == "leastconn" {
		p.c.out.Reports.Add(l.at, "balance leastconn", proxyconf.Differs, "balance: p2c takes the less busy of two endpoints, which comes close")
	}
	if kept := p.stick(); kept.words != nil && p.cookie() == "" {
		l, balance = kept, "ring_hash"
	}
	if p.cookie() != "" {
		balance = "ring_hash"
	} else if l, ok := p.last("cookie"); ok {
		p.c.out.Reports.Add(l.at, "cookie", proxyconf.Missing, "affinity of an http route goes by a cookie that the gateway or the server sets (cookie: NAME), and leaves it as it is")
	}
	if l.words == nil {
		u.Settings.Default("balance", balance, "HAProxy's default")
		return
	}
	u.Settings.Set("balance", balance, l.at)
}

// stick returns the line that keeps clients at a server by what a table has, if the gateway can do so without one.
func (p *proxy) stick() (kept line) {
	for _, l := range p.lines {
		if l.words[0] != "stick" {
			continue
		}
		kind, name := p.sticksTo(l)
		before, same := p.sticksTo(kept)
		switch {
		case l.arg(1) == "store-response" && kind == "cookie", kept.words != nil && kind == before && name == same: // halves of one
		case kind == "" || kept.words != nil:
			why := ""
			if strings.HasPrefix(l.arg(2), "dst") {
				why = "; when the first server works again, its clients return to it"
			}
			p.c.out.Reports.Add(l.at, l.name(), proxyconf.Missing, "clients stay at a server by their address (balance: ring_hash), a cookie or a header (affinity of a route)%s", why)
		default:
			kept = l
			p.c.out.Reports.Add(l.at, l.name(), proxyconf.Differs, "balance: ring_hash keeps clients at a server by %s, without a table", strings.TrimSpace(kind+" "+name))
		}
	}
	return kept
}

// sticksTo returns what a line "stick" looks at: source, cookie or header; "" if it is something else.
func (p *proxy) sticksTo(l line) (kind, name string) {
	what, arg, _ := strings.Cut(strings.TrimSuffix(l.arg(2), ")"), "(")
	if len(l.words) > 3 && l.arg(3) != "table" || len(l.words) > 5 { // with a condition
		return "", ""
	}
	switch what {
	case "src":
		return "source", ""
	case "cookie", "req.cook", "res.cook", "cook":
		if p.http() && headerName(arg) {
			return "cookie", arg
		}
	case "hdr", "req.hdr", "req.fhdr":
		if p.http() && headerName(arg) {
			return "header", arg
		}
	}
	return "", ""
}

// balanceHeader returns the header of balance hdr(NAME).
func balanceHeader(l line) string {
	_, arg, _ := strings.Cut(l.arg(1), "(")
	return strings.TrimSuffix(arg, ")")
}

// cookie returns the name of the cookie that HAProxy inserts, "" if it does not.
func (p *proxy) cookie() string {
	l, ok := p.last("cookie")
	if ok && p.http() && len(l.words) > 2 && slices.Contains(l.words[2:], "insert") && headerName(l.arg(1)) {
		return l.arg(1)
	}
	return ""
}

// serverSettings sets what the options of the servers say.
func (p *proxy) serverSettings(u *proxyconf.Upstream, s server) {
	c, at := p.c, s.l.at
	if l, ok := p.last("timeout", "connect"); ok {
		if text, ok := c.duration(l, l.arg(2), time.Millisecond, 10*time.Minute); ok {
			u.Settings.Set("connect_timeout", text, l.at)
		}
	}
	p.serverTLS(u, s)
	if s.has("slowstart") && slices.Contains([]string{"p2c", "round_robin"}, u.Settings.Get("balance")) {
		if text, ok := c.duration(s.l, s.options["slowstart"], 0, 24*time.Hour); ok {
			u.Settings.Set("slow_start", text, at)
		}
	}
	if n, ok := number(s.options["maxconn"], 1, 1_000_000); ok && s.options["maxconn"] != "0" {
		u.Settings.Set("pool/max_size", n, at)
	} else if p.http() {
		u.Settings.Default("pool/max_size", "10000", "HAProxy has no limit of its own")
	}
	queue, ok := p.last("timeout", "queue")
	if !ok {
		queue, ok = p.last("timeout", "connect")
	}
	if ok {
		if text, ok := c.duration(queue, queue.arg(2), time.Millisecond, 24*time.Hour); ok {
			u.Settings.Set("pool/acquire_timeout", text, queue.at)
		}
	}
	if !p.http() && s.has("source") {
		c.out.Reports.Add(at, "server source", proxyconf.Missing, "transparent: true of the upstream connects from the client's address; other addresses are not chosen")
	}
	if p.http() && (s.has("send-proxy") || s.has("send-proxy-v2")) {
		c.out.Reports.Add(at, "server send-proxy", proxyconf.Missing, "http upstreams get X-Forwarded-For, and no PROXY header")
	}
}

// reportOptions reports the options of a server that are not carried.
func (p *proxy) reportOptions(s server) {
	for _, name := range slices.Sorted(maps.Keys(s.options)) {
		if !slices.Contains(carriedOptions, name) {
			fate, note := proxyconf.Missing, "the gateway has no such option"
			if n, ok := quietOptions[name]; ok {
				fate, note = proxyconf.Itself, n
			}
			p.c.out.Reports.Add(s.l.at, "server "+name, fate, "%s", note)
		}
	}
}

// carriedOptions are those that become settings, or are reported where they do not.
var carriedOptions = []string{"check", "inter", "fall", "rise", "weight", "backup", "maxconn", "ssl", "verify", "ca-file", "sni", "alpn", "send-proxy", "send-proxy-v2", "cookie", "on-marked-down", "slowstart", "disabled", "port", "check-ssl", "check-sni", "proto", "crt", "source", "verifyhost", "enabled", "resolvers"}

// quietOptions are those that the gateway does not need.
var quietOptions = map[string]string{
	"fastinter": "checks follow sooner after one without an answer", "downinter": "the interval is always the same", "init-addr": "names are looked up while the gateway runs", "resolve-prefer": "all addresses of a name are tried",
	"id": "endpoints are known by their address", "guid": "endpoints are known by their address", "observe": "eject is on by default", "error-limit": "eject: {failures: …}", "on-error": "eject", "tfo": "connections are reused",
	"pool-purge-delay": "pool: {idle_timeout: …}", "pool-max-conn": "pool: {max_idle: …}", "pool-low-conn": "connections are shared by all loops", "max-reuse": "connections are closed by their age: pool: {max_lifetime: …}",
	"check-alpn": "checks use HTTP/1.1", "ssl-min-ver": "TLS 1.2 and 1.3, always", "ciphers": "those of Go", "ciphersuites": "those of Go", "curves": "those of Go", "ws": "WebSockets pass in every version", "force-tlsv12": "TLS 1.2 and 1.3, always", "resolve-opts": "each name is an endpoint once",
	"maxqueue": "pool: {max_waiters: …}", "minconn": "the limit is fixed: pool: {max_size: …}", "tcp-ut": "keep_alive: {tcp_user_timeout: …}", "log-proto": "", "sni-auto": "the name of the endpoint is sent", "non-stick": "",
}

// serverTLS sets how connections to the servers are encrypted.
func (p *proxy) serverTLS(u *proxyconf.Upstream, s server) {
	c, at := p.c, s.l.at
	if !s.has("ssl") {
		if s.options["proto"] == "h2" && p.http() {
			u.Settings.Set("protocol", "h2c", at)
		}
		return
	}
	switch verify := s.options["verify"]; {
	case verify == "none":
		u.Settings.Set("tls/insecure_skip_verify", "true", at)
	case s.has("ca-file") && s.options["ca-file"] != "@system-ca":
		u.Settings.Set("tls/ca", yamltext.Quote(c.based("ca-base", s.options["ca-file"])), at)
	}
	name, isText := strings.CutPrefix(s.options["sni"], "str(")
	switch name = strings.TrimSuffix(name, ")"); {
	case isText && isHost(strings.ToLower(name)):
		u.Settings.Set("tls/server_name", yamltext.Quote(name), at)
	case isHost(strings.ToLower(s.options["verifyhost"])):
		u.Settings.Set("tls/server_name", yamltext.Quote(s.options["verifyhost"]), at)
	case s.has("sni"):
		c.out.Reports.Add(at, "server sni", proxyconf.Missing, "%s: the name that servers are asked for is fixed: tls: {server_name: …} of the upstream", s.options["sni"])
	}
	if s.has("crt") {
		file := yamltext.Quote(c.based("crt-base", s.options["crt"]))
		u.Settings.Set("tls/cert", file, at)
		u.Settings.Set("tls/key", file, at)
	}
	if p.http() {
		switch alpn := strings.Split(s.options["alpn"], ","); {
		case slices.Contains(alpn, "h2") && len(alpn) > 1:
			u.Settings.Set("protocol", "auto", at)
		case slices.Contains(alpn, "h2"), s.options["proto"] == "h2":
			u.Settings.Set("protocol", "h2", at)
		}
	}
	if !u.Settings.Under("tls") { // by the system's authorities
		u.Settings.Set("tls/insecure_skip_verify", "false", at)
	}
}

// sendProxy returns the version of the PROXY header that the servers want, "" if none.
func (p *proxy) sendProxy() string {
	for _, s := range p.servers() {
		switch {
		case s.has("send-proxy-v2"), s.has("send-proxy-v2-ssl"), s.has("send-proxy-v2-ssl-cn"):
			return "v2"
		case s.has("send-proxy"):
			return "v1"
		}
	}
	return ""
}
