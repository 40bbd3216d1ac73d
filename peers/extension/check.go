package extension

import (
	"errors"
	"io/fs"
	"slices"
	"strings"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/peers"
)

// check checks the sections "peers" and "services".
func check(c *config.Checker) {
	p := nodeOf(c.Config)
	all := servicesOf(c.Config)
	if p == nil && len(all) > 0 {
		c.Report(c.Mark(&all[0].Name), "services are offered to other nodes, and this gateway is none: \"peers\" is missing")
	}
	if p != nil {
		checkNode(c, p)
	}
	config.Each(c, "service", all, func(s *Service) string { return s.Name }, func(s *Service) { checkService(c, s) })
}

func checkNode(c *config.Checker, p *Peers) {
	private := c.Written(&p.NetworkKey)
	if private && c.NoProblemAt(&p.NetworkKey) && !p.NetworkKey.Redacted() {
		if _, err := peers.ParseNetworkKey(p.NetworkKey.Reveal()); err != nil {
			c.Report(c.Mark(&p.NetworkKey), "network_key: %v", err)
		}
	}
	seen := map[string]bool{}
	for i := range p.Listen {
		at, text := &p.Listen[i], string(p.Listen[i])
		switch err := peers.CheckListen(text, private); {
		case text == "" || !c.NoProblemAt(at):
		case err != nil:
			c.Report(c.Mark(at), "listen: %q: %v", config.Clip(text), err)
		case seen[text] && !anyPort(text):
			c.Report(c.Mark(at), "listen: %q is there already", config.Clip(text))
		}
		seen[text] = true
	}
	if c.Written(&p.Listen) && len(p.Listen) == 0 && len(p.Bootstrap) == 0 && !p.MDNS {
		c.Warn(c.Mark(&p.Listen), "listen: no node can connect to this one, and it has no \"bootstrap\" to connect to")
	}
	if p.DHT && p.MaxConnections < peers.MinDHTConns && c.NoProblemAt(&p.MaxConnections) {
		c.Report(c.Mark(&p.MaxConnections, &p.DHT), "max_connections: %d is too few with \"dht\"; want at least %d", p.MaxConnections, peers.MinDHTConns)
	}
	if _, err := peers.LoadKey(keyFile(c.Config, p)); err != nil && !errors.Is(err, fs.ErrNotExist) && p.Key != "" {
		c.Report(c.Mark(&p.Key), "key: %s", strings.TrimPrefix(err.Error(), peers.ErrKey.Error()+" "))
	}
}

func checkService(c *config.Checker, s *Service) {
	if err := peers.CheckService(s.Name); err != nil {
		c.Report(c.Mark(&s.Name), "name: %q: %v", config.Clip(s.Name), err)
	}
	if s.Upstream != "" {
		c.Reference(bridge, &s.Upstream)
	}
	if len(s.Allow) == 0 {
		c.Warn(c.Mark(&s.Allow, &s.Name), "no peer may call it: list peer IDs under \"allow\", or write \"allow: %s\"", Anyone)
	}
	reportDoubles(c, "allow", s.Allow)
	if p := nodeOf(c.Config); p != nil && slices.Contains(s.Allow, Anyone) && p.NetworkKey.IsZero() {
		c.Warn(c.Mark(&s.Allow), "allow: %s: every program that can reach this node can call it; set \"network_key\" under \"peers\", or list peer IDs", Anyone)
	}
}

// checkUpstream checks endpoints that are services of other nodes.
func checkUpstream(c *config.Checker, u *config.Upstream) {
	checkProviders(c, u)
	for i := range u.Endpoints {
		e := &u.Endpoints[i]
		if !strings.HasPrefix(e.Address, EndpointPrefix) {
			continue
		}
		switch {
		case nodeOf(c.Config) == nil:
			c.Report(c.Mark(e), "endpoint %q: is a service of another node, and this gateway is none: \"peers\" is missing", e.Address)
		case u.TLS != nil && u.TLS.ServerName == "" && !u.TLS.InsecureSkipVerify && u.TLS.Verify != "ca":
			c.Report(c.Mark(&u.TLS), "tls: \"server_name\" is missing: the host behind endpoint %q is not known here", e.Address)
		}
	}
	if key, field := u.Pool.Warm(); carried(u) && u.Optimistic() && key != "" {
		c.Report(c.Mark(field), "%s: nothing is gained by opening connections to another node ahead of demand; set it at the upstream of its service", key)
	}
}

// checkProviders checks the providers of an upstream with services by name, which every node of the
// network can offer.
func checkProviders(c *config.Checker, u *config.Upstream) {
	own := config.PartOf[UpstreamKeys](u)
	var named *config.Endpoint
	for i := range u.Endpoints {
		if t, ok := targetOf(u.Endpoints[i].Address); ok && t.Peer == "" && t.Service != "" && named == nil {
			named = &u.Endpoints[i]
		}
	}
	reportDoubles(c, "providers", own.Providers)
	switch {
	case len(own.Providers) > 0 && named == nil:
		c.Report(c.Mark(&own.Providers), "providers: the upstream has no endpoint \"%sSERVICE\", whose connections they could get", EndpointPrefix)
	case len(own.Providers) == 0 && named != nil && u.Protocol != config.HTTP:
		c.Warn(c.Mark(named), "endpoint %q: every node of the network can offer a service by that name and gets these connections; list peer IDs under \"providers\"",
			named.Address)
	}
}

// reportDoubles reports IDs that are in a list twice.
func reportDoubles[T ~string](c *config.Checker, key string, list []T) {
	seen := map[T]bool{}
	for i, text := range list {
		if seen[text] && text != "" {
			c.Report(c.Mark(&list[i]), "%s: %q is there already", key, config.Clip(string(text)))
		}
		seen[text] = true
	}
}

// anyPort reports whether the system chooses the port of an address. Such an address can be listed
// twice.
func anyPort(addr string) bool {
	return strings.Contains(addr+"/", "/tcp/0/") || strings.Contains(addr+"/", "/udp/0/")
}
