package nginxconf

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/headpond/headpond/internal/proxyconf"
	"github.com/headpond/headpond/internal/yamltext"
)

// stream adds the listeners of stream.
func (c *converter) stream(s scope) {
	block := s[len(s)-1]
	c.report(block, "stream")
	for _, m := range block.all("map") {
		c.maps[m.arg(2)] = m
	}
	order, by := c.addresses(s)
	for _, address := range order {
		h := by[address][0]
		if len(by[address]) > 1 {
			c.missing(by[address][1].listen, "another server listens at %s; a tcp listener chooses by the name that clients ask for", address)
		}
		if c.listening[address] {
			c.missing(h.listen, "a server of http listens at %s", address)
			continue
		}
		if h.has("udp") {
			c.missing(h.listen, "a udp listener forwards datagrams: docs/udp.md")
			continue
		}
		c.report(h.server, "stream server")
		l := &proxyconf.Listener{Of: "server", From: h.server.at}
		l.Settings.Set("protocol", "tcp", h.server.at)
		l.Settings.Set("listen", yamltext.Quote(address), h.listen.at)
		if !c.listenSettings(l, []host{h}, h, h.has("ssl")) {
			continue
		}
		if l.Settings.Under("tls/client_ca") {
			c.missing(h.find2("ssl_verify_client", h.server), "tcp listeners ask for no client certificates; CLIENTS WITHOUT ONE ARE LET IN")
		}
		l.Settings = slices.DeleteFunc(l.Settings, func(s proxyconf.Setting) bool {
			return strings.HasPrefix(s.Key, "http/") || strings.HasPrefix(s.Key, "tls/client_")
		})
		if taken := cmp.Or(proxyconf.Overlap(slices.Values(order), address), proxyconf.Overlap(maps.Keys(c.listening), address)); taken != "" && (!strings.HasPrefix(address, ":") || c.listening[taken]) {
			c.missing(h.listen, "the gateway listens at %s, and that is for this address, too: its clients get what the server there does", taken)
			continue
		}
		if c.forward(l, h) {
			c.clients(l, h)
			l.Name = c.out.Name("listener", "tcp-"+portOf(address))
			c.out.Listeners = append(c.out.Listeners, l)
			c.listening[address] = true
		}
	}
}

// clients sets who may connect.
func (c *converter) clients(l *proxyconf.Listener, h host) {
	var s proxyconf.State
	(&view{converter: c}).access(h.scope)(&s, nil)
	for _, list := range []struct {
		key string
		all []string
	}{{"allow", s.Allow}, {"deny", s.Deny}} {
		if len(list.all) > 0 {
			l.Settings.Set(list.key, yamltext.List(list.all), s.Guards[list.key])
		}
	}
}

// forward sets where the clients of a listener go; false if there is nowhere.
func (c *converter) forward(l *proxyconf.Listener, h host) bool {
	pass := h.find("proxy_pass")
	if pass == nil {
		c.missing(h.server, "it has no proxy_pass")
		return false
	}
	l.Settings.Default("tcp/idle_timeout", "10m", "nginx's default")
	if d := h.find("proxy_timeout"); d != nil {
		if text, ok := c.duration(d, 1, time.Millisecond, 8760*time.Hour); ok {
			l.Settings.Set("tcp/idle_timeout", text, d.at)
		}
	}
	if d := h.find("proxy_protocol"); d != nil && d.arg(1) == "on" {
		l.Settings.Set("tcp/send_proxy", "v1", d.at)
	}
	m, preread := c.maps[pass.arg(1)], h.find("ssl_preread")
	if m == nil {
		if strings.Contains(pass.arg(1), "$") {
			c.missing(pass, "the server is computed; a map of $ssl_preread_server_name becomes routes")
			return false
		}
		u := c.tcpUpstream(h, pass.arg(1))
		if u != nil {
			l.Settings.Set("upstream", yamltext.Quote(u.Name), pass.at)
		}
		return u != nil
	}
	if m.arg(1) != "$ssl_preread_server_name" || preread == nil || preread.arg(1) != "on" {
		c.missing(m, "routes of a tcp listener go by $ssl_preread_server_name")
		return false
	}
	return c.names(l, h, m)
}

// names adds the routes of a map of names.
func (c *converter) names(l *proxyconf.Listener, h host, m *directive) bool {
	for _, d := range m.block {
		if d.name() == "hostnames" || d.name() == "volatile" {
			continue
		}
		if strings.Contains(d.arg(1), "$") {
			c.missing(d, "the server is computed")
			continue
		}
		u := c.tcpUpstream(h, d.arg(1))
		if u == nil {
			c.missing(d, "%q is no server", d.arg(1))
			continue
		}
		if d.name() == "default" {
			l.Settings.Set("upstream", yamltext.Quote(u.Name), d.at)
			continue
		}
		for _, name := range (&view{converter: c}).hostNames(d, d.name(), d) {
			r := proxyconf.Route{From: d.at}
			r.When.Set("sni", yamltext.Quote(name), proxyconf.Position{})
			r.Settings.Set("upstream", yamltext.Quote(u.Name), d.at)
			l.Routes = append(l.Routes, r)
		}
	}
	return len(l.Routes) > 0 || l.Settings.Get("upstream") != ""
}

// tcpUpstream returns the upstream for a server of proxy_pass, nil if there is none.
func (c *converter) tcpUpstream(h host, server string) *proxyconf.Upstream {
	u := &proxyconf.Upstream{Of: "upstream " + server, From: h.server.at}
	for _, block := range h.list("upstream") {
		if block.arg(1) == server {
			u.From = block.at
			c.endpoints(u, block, "0")
		}
	}
	if u.From == h.server.at {
		address, ok := serverAddress(server, "0")
		if !ok {
			return nil
		}
		u.Endpoints = []proxyconf.Endpoint{{Address: address, From: h.server.at}}
	}
	if len(u.Endpoints) == 0 {
		return nil
	}
	u.Settings = slices.DeleteFunc(u.Settings, func(s proxyconf.Setting) bool { return s.Key == "-affinity" })
	u.Settings.Default("connect_timeout", "60s", "nginx's default")
	if d := h.find("proxy_connect_timeout"); d != nil {
		if text, ok := c.duration(d, 1, time.Millisecond, 10*time.Minute); ok {
			u.Settings.Set("connect_timeout", text, d.at)
		}
	}
	if d := h.find("proxy_ssl"); d != nil && d.arg(1) == "on" {
		(&view{converter: c}).serverTLS(u, h.scope, server)
	}
	key := "tcp " + server + u.Settings.Get("connect_timeout")
	for _, set := range u.Settings {
		if strings.HasPrefix(set.Key, "tls/") {
			key += " " + set.Key + "=" + set.Text
		}
	}
	if known := c.upstreams[key]; known != nil {
		return known
	}
	u.Name = c.out.Name("upstream", strings.TrimPrefix(server, "unix:"))
	c.upstreams[key] = u
	c.out.Upstreams = append(c.out.Upstreams, u)
	return u
}
