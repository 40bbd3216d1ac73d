package haproxycfg

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/headpond/headpond/internal/proxyconf"
	"github.com/headpond/headpond/internal/yamltext"
)

// bind is one address of a frontend.
type bind struct {
	at      proxyconf.Position
	address string // as the gateway writes it
	port    string // "" of a socket
	tls     bool
	set     proxyconf.Settings
}

// maxBinds bounds the addresses of a range of ports: each is a listener.
const maxBinds = 200

// binds returns the addresses of a frontend.
func (p *proxy) binds() (all []bind, err error) {
	for _, l := range p.lines {
		if l.words[0] != "bind" {
			continue
		}
		b := bind{at: l.at}
		p.bindOptions(l, &b)
		if b.tls && b.set.Get("tls/cert") == "" {
			p.c.out.Reports.Add(l.at, "bind ssl", proxyconf.Missing, "it is left out: there is no certificate that can be read; tls: {cert, key} of the listener names it")
			continue
		}
		for _, text := range strings.Split(l.arg(1), ",") {
			addresses, why := bindAddresses(text)
			if why != "" {
				p.c.out.Reports.Add(l.at, "bind "+text, proxyconf.Missing, "%s", why)
				continue
			}
			for _, a := range addresses {
				b.address = a
				if _, b.port, err = net.SplitHostPort(a); strings.HasPrefix(a, "unix:") || err != nil {
					b.port = ""
				}
				if len(all) >= maxBinds {
					return nil, Problem{l.at, fmt.Sprintf("more than %d addresses: each is a listener of the gateway", maxBinds)}
				}
				all = append(all, b)
			}
		}
	}
	if len(all) == 0 {
		p.c.out.Reports.Add(p.at, p.kind+" "+p.name, proxyconf.Missing, "it has no address that the gateway could listen at")
	}
	return all, nil
}

// bindAddresses returns the addresses of a text, with a range of ports.
func bindAddresses(text string) (addresses []string, why string) {
	for _, prefix := range []string{"ipv4@", "ipv6@", "tcp@", "tcp4@", "tcp6@"} {
		text = strings.TrimPrefix(text, prefix)
	}
	if path, ok := strings.CutPrefix(text, "unix@"); ok || strings.HasPrefix(text, "/") {
		if !ok {
			path = text
		}
		if !strings.HasPrefix(path, "/") || len(path) > 100 || !plain(path) {
			return nil, "a socket has an absolute path of up to 100 bytes"
		}
		return []string{"unix:" + path}, ""
	}
	if kind, _, ok := strings.Cut(text, "@"); ok {
		if strings.HasPrefix(kind, "quic") {
			return nil, "HTTP/3 is a key of the listener for HTTPS at the same port: http: {http3: true}"
		}
		return nil, "the gateway listens at host:port and unix:/path"
	}
	i := strings.LastIndexByte(text, ':')
	if i < 0 {
		return nil, "the port is missing"
	}
	host := strings.Trim(text[:i], "[]")
	switch host {
	case "", "*", "0.0.0.0", "::":
		host = "" // the gateway's sockets are for both families
	default:
		if _, err := netip.ParseAddr(host); err != nil && !isHost(strings.ToLower(host)) {
			return nil, "this is no address"
		}
	}
	first, last, ranged := strings.Cut(text[i+1:], "-")
	if !ranged {
		last = first
	}
	from, err := strconv.ParseUint(first, 10, 16)
	to, err2 := strconv.ParseUint(last, 10, 16)
	if err != nil || err2 != nil || from == 0 || to < from || to-from >= maxBinds {
		return nil, fmt.Sprintf("want a port, or a range of up to %d", maxBinds)
	}
	for n := from; n <= to; n++ {
		addresses = append(addresses, net.JoinHostPort(host, strconv.FormatUint(n, 10)))
	}
	return addresses, ""
}

// quiet are options of bind that the gateway does not need.
var quiet = map[string]string{
	"v4v6": "", "name": "", "id": "", "tfo": "clients connect without it", "transparent": "", "process": "loops", "thread": "loops", "shards": "loops", "defer-accept": "idle clients cost little",
	"user": "socket: {owner: …}", "group": "socket: {owner: …}", "uid": "", "gid": "", "level": "", "mss": "the system chooses it", "no-sslv3": "always", "no-tlsv10": "always", "no-tlsv11": "always",
	"strict-sni": "", "prefer-client-ciphers": "", "no-tls-tickets": "", "ssl-default-bind-options": "", "backlog": "the system's limit applies", "tcp-ut": "keep_alive: {tcp_user_timeout: …}",
}

// valued are the options of bind that have a value.
var valued = []string{"crt", "ca-file", "crl-file", "verify", "alpn", "npn", "ssl-min-ver", "ssl-max-ver", "ciphers", "ciphersuites", "curves", "ecdhe", "crt-list", "ca-verify-file", "mode", "name", "id", "process", "thread", "shards", "user", "group", "uid", "gid", "level", "mss", "maxconn", "backlog", "tcp-ut", "interface", "namespace", "nice", "proto", "quic-cc-algo", "expose-fd", "severity-output", "accept-netscaler-cip", "ca-sign-file", "ca-sign-pass", "sigalgs", "client-sigalgs"}

// bindOptions reads the options of a bind line.
func (p *proxy) bindOptions(l line, b *bind) {
	for i := 2; i < len(l.words); i++ {
		w, value := l.words[i], ""
		if slices.Contains(valued, w) && i+1 < len(l.words) {
			i++
			value = l.words[i]
		}
		p.bindOption(l, b, w, value)
	}
	if !b.tls {
		b.set = slices.DeleteFunc(b.set, func(s proxyconf.Setting) bool { return strings.HasPrefix(s.Key, "tls/") })
	}
}

func (p *proxy) bindOption(l line, b *bind, w, value string) {
	report := func(fate proxyconf.Fate, format string, args ...any) {
		p.c.out.Reports.Add(l.at, "bind "+w, fate, format, args...)
	}
	switch w {
	case "ssl":
		b.tls = true
	case "crt", "crt-list":
		p.certificates(l, b, w, value)
	case "ca-file":
		if p.http() {
			b.set.Set("tls/client_ca", yamltext.Quote(p.c.based("ca-base", value)), l.at)
		} else {
			report(proxyconf.Missing, "tcp listeners ask for no client certificates; CLIENTS WITHOUT ONE ARE LET IN")
		}
	case "crl-file":
		if p.http() {
			b.set.Set("tls/client_crl", yamltext.Quote(p.c.based("ca-base", value)), l.at)
		}
	case "verify":
		if value == "optional" && p.http() {
			b.set.Set("tls/client_auth", "request", l.at)
		} else if value == "none" {
			report(proxyconf.Itself, "without client_ca nobody is asked for a certificate")
		}
	case "alpn":
		for _, name := range strings.Split(value, ",") {
			if name != "h2" && name != "http/1.1" && name != "http/1.0" || !p.http() && name == "h2" {
				report(proxyconf.Missing, "the protocol %q: http listeners offer h2 and http/1.1, tcp listeners those of their routes", name)
			}
		}
		if p.http() && !slices.Contains(strings.Split(value, ","), "h2") {
			report(proxyconf.Differs, "the listener also offers HTTP/2")
		}
	case "accept-proxy":
		b.set.Set("accept_proxy", "true", l.at)
		b.set.Set("trusted_proxies", proxyconf.PrivateNetworks, l.at)
		report(proxyconf.Differs, "HAProxy trusts the PROXY header of every client, and the gateway that of trusted_proxies, and their X-Forwarded-For: name the load balancers in place of all private networks")
	case "mode":
		if n, err := strconv.ParseUint(value, 8, 9); err != nil || n&0o200 == 0 {
			report(proxyconf.Missing, "the mode of a socket is octal, and lets the owner write, such as 660")
			return
		}
		b.set.Set("socket/mode", yamltext.Quote(value), l.at)
	case "maxconn":
		if n, ok := number(value, 1, 10_000_000); ok {
			b.set.Set("max_conns", n, l.at)
		}
	case "ssl-min-ver", "ssl-max-ver":
		if w == "ssl-min-ver" && value == "TLSv1.2" {
			report(proxyconf.Itself, "the gateway has TLS 1.2 and 1.3")
		} else {
			report(proxyconf.Differs, "%s: the gateway has TLS 1.2 and 1.3, always", value)
		}
	case "ciphers", "ciphersuites", "curves", "ecdhe", "sigalgs", "client-sigalgs":
		report(proxyconf.Differs, "the gateway chooses among the safe ones of Go's crypto/tls")
	default:
		if note, ok := quiet[w]; ok {
			report(proxyconf.Itself, "%s", strings.TrimSpace("the gateway does not need it "+note))
			return
		}
		report(proxyconf.Missing, "the gateway has no such option")
	}
}

// certificates adds those of a file, a folder or a list.
func (p *proxy) certificates(l line, b *bind, kind, value string) {
	name := p.c.based("crt-base", value)
	files := []string{name}
	if kind == "crt-list" {
		entries, err := (&place{proxy: p}).patterns(value)
		if err != nil {
			p.c.out.Reports.Add(l.at, "bind "+kind, proxyconf.Missing, "%v", err)
			return
		}
		files = nil
		for _, e := range entries {
			file, rest, more := strings.Cut(e, " ")
			if files = append(files, p.c.based("crt-base", strings.Fields(file)[0])); more && strings.TrimSpace(rest) != "" {
				p.c.out.Reports.Add(l.at, "bind crt-list", proxyconf.Differs, "%s: clients get the certificate that is for the name they ask for; options of the list are left out", file)
			}
		}
	} else if names, err := p.c.opt.List(name); err == nil {
		files = nil
		for _, n := range names {
			if !slices.ContainsFunc([]string{".key", ".ocsp", ".sctl", ".issuer", ".dh"}, func(end string) bool { return strings.HasSuffix(n, end) }) && !strings.HasPrefix(n, ".") {
				files = append(files, name+"/"+n)
			}
		}
	}
	var further []string
	for _, file := range files {
		key := file // the file of a certificate has its key, too, or beside it
		for _, beside := range []string{file + ".key", strings.TrimSuffix(file, ".crt") + ".key"} {
			if _, err := p.c.opt.Read(beside); err == nil {
				key = beside
				break
			}
		}
		if b.set.Get("tls/cert") == "" {
			b.set.Set("tls/cert", yamltext.Quote(file), l.at)
			b.set.Set("tls/key", yamltext.Quote(key), l.at)
			continue
		}
		further = append(further, fmt.Sprintf("{cert: %s, key: %s}", yamltext.Quote(file), yamltext.Quote(key)))
	}
	if len(further) > 0 {
		before := strings.Trim(b.set.Get("tls/certificates"), "[]")
		if before != "" {
			further = append([]string{before}, further...)
		}
		b.set.Set("tls/certificates", "["+strings.Join(further, ", ")+"]", l.at)
	}
}

// settings adds the bind's settings to those of a listener.
func (b *bind) settings(s *proxyconf.Settings, _ bool) {
	for _, set := range b.set {
		if strings.HasPrefix(set.Key, "socket/") && b.port != "" {
			continue
		}
		*s = append(*s, set)
	}
}

// number returns a number in a range as text.
func number(text string, least, most int) (string, bool) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return "", false
	}
	return strconv.Itoa(min(max(n, least), most)), true
}
