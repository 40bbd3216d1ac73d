package tunnels

import (
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/tunnel"
)

const minPSK = 16

func checkListener(c *config.Checker, l *config.Listener) {
	t := config.SectionOf[Listener](l)
	certificates := l.TLS != nil && c.Written(&l.TLS.ClientCA)
	if l.TLS != nil && l.TLS.ClientAuth == config.ClientAuthRequest {
		c.Report(c.Mark(&l.TLS.ClientAuth), "client_auth: peers of a tunnel listener with \"client_ca\" must have a certificate; want require")
	}
	checkPSK(c, &t.PSK, "psk")
	keyed := checkPeers(c, t, certificates)
	if t.PeerSessions > t.MaxSessions {
		c.Report(c.Mark(&t.PeerSessions), "max_sessions_per_peer: %d is more than max_sessions: %d, which is for all peers", t.PeerSessions, t.MaxSessions)
	}
	local := config.Loopback(l.Listen)
	switch {
	case l.Listen == "":
	case !certificates && !c.Written(&t.PSK) && !keyed && !local:
		c.Report(c.Mark(&l.Listen), "listen: %q can be reached from other machines, and nothing authenticates peers; set \"client_ca\" under \"tls\", \"keys\" of each of \"peers\" (or one \"psk\" for all) under \"tunnel\", or both",
			l.Listen)
	case !certificates && !c.Written(&t.PSK) && !keyed:
		c.Warn(c.Mark(&l.Listen), "listen: nothing authenticates peers; every program on this machine can use the tunnel")
	case l.TLS == nil && !local && keyed:
		c.Warn(c.Mark(&t.Peers), "keys: authenticate peers and encrypt nothing; without \"tls\" everybody on the way can read what goes through the tunnel")
	case l.TLS == nil && !local:
		c.Warn(c.Mark(&t.PSK), "psk: authenticates peers and encrypts nothing; without \"tls\" everybody on the way can read what goes through the tunnel")
	}
	checkOffered(c, t.Upstreams, t.Allow, t)
}

// checkOffered records the upstreams that the other side of a tunnel may name.
func checkOffered(c *config.Checker, upstreams []string, allow []Rule, section any) {
	for i := range upstreams {
		c.Reference(Protocol, &upstreams[i])
	}
	own := func(p Peer) bool { return len(p.Upstreams)+len(p.Allow) > 0 }
	if t, listens := section.(*Listener); listens && len(upstreams)+len(allow) == 0 && !slices.ContainsFunc(t.Peers, own) && !served(c.Config) {
		c.Warn(c.Mark(t), "peers may connect to nothing: list \"upstreams\", \"allow\", or both")
	}
}

// served reports whether some tunnel goes out through a listener's peers.
func served(cfg *config.Config) bool {
	return slices.ContainsFunc(tunnelsOf(cfg), func(t Tunnel) bool { return t.Listener != "" })
}

func checkPSK(c *config.Checker, psk *config.Secret, key string) {
	if v := psk.Reveal(); c.Written(psk) && c.NoProblemAt(psk) && len(v) < minPSK && !psk.Redacted() {
		c.Report(c.Mark(psk), "%s: too short: want at least %d bytes at random, got %d", key, minPSK, len(v))
	}
}

// checkPeers checks the peers that may connect to a listener. keyed: every peer has its own keys.
func checkPeers(c *config.Checker, t *Listener, certificates bool) (keyed bool) {
	seen, owner, bare := map[string]bool{}, map[string]string{}, -1
	if !t.PSK.IsZero() {
		owner[t.PSK.Reveal()] = "of \"psk\", for peers without their own keys"
	}
	for i := range t.Peers {
		p := &t.Peers[i]
		switch err := config.CheckName(p.Name); {
		case !c.NoProblemAt(&p.Name):
		case err != nil:
			c.Report(c.Mark(&p.Name), "peers: %q: %v", config.Clip(p.Name), err)
		case p.Name == "" || seen[p.Name]:
			c.Report(c.Mark(&p.Name), "peers: %q: want a name that is not used yet", config.Clip(p.Name))
		}
		seen[p.Name] = true
		for j := range p.Keys {
			checkPSK(c, &p.Keys[j], "keys")
			value := p.Keys[j].Reveal()
			if other := owner[value]; other != "" && !p.Keys[j].Redacted() && value != "" {
				c.Report(c.Mark(&p.Keys[j]), "keys: this key is also that %s; a key identifies a peer, so give each peer its own", other)
			}
			owner[value] = fmt.Sprintf("of peer %q", config.Clip(p.Name))
		}
		if len(p.Keys) == 0 {
			bare = i
		}
		for j := range p.Upstreams {
			c.Reference(Protocol, &p.Upstreams[j])
		}
	}
	keyed = len(t.Peers) > 0 && bare < 0
	warnOfClaims(c, t, certificates)
	some := slices.ContainsFunc(t.Peers, func(p Peer) bool { return len(p.Keys) > 0 })
	if some && !keyed && t.PSK.IsZero() && !certificates {
		p := &t.Peers[bare]
		c.Report(c.Mark(&p.Name), "peers: %q has no way to authenticate; give it \"keys\", or set \"psk\" or \"client_ca\"", config.Clip(p.Name))
	}
	return keyed
}

// warnOfClaims warns of peers that may do more than others, under names that the others can use.
func warnOfClaims(c *config.Checker, t *Listener, certificates bool) {
	if certificates || t.PSK.IsZero() || len(t.Peers) == 1 {
		return
	}
	for i := range t.Peers {
		if p := &t.Peers[i]; len(p.Keys) == 0 && len(p.Upstreams)+len(p.Allow) > 0 {
			c.Warn(c.Mark(&p.Name), "peers: any holder of the \"psk\" can connect as %q and have what only that peer may; give it \"keys\" of its own", config.Clip(p.Name))
		}
	}
}

// checkTunnels checks the tunnels of a file.
func checkTunnels(c *config.Checker) {
	config.Each(c, "tunnel", tunnelsOf(c.Config), func(t *Tunnel) string { return t.Name }, func(t *Tunnel) { checkTunnel(c, t) })
}

func checkTunnel(c *config.Checker, t *Tunnel) {
	c.Name(&t.Name)
	switch connects, listens := c.Written(&t.Connect), c.Written(&t.Listener); {
	case connects == listens:
		c.Report(c.Mark(&t.Name), "want either \"connect\", the address of the other gateway, or \"listener\" and \"peer\", for one that connects to this gateway")
	case listens:
		checkReverse(c, t)
	default:
		checkConnect(c, t)
	}
}

// checkReverse checks a tunnel that a peer makes.
func checkReverse(c *config.Checker, t *Tunnel) {
	var names []string
	var at *config.Listener
	for i := range c.Config.Listeners {
		if l := &c.Config.Listeners[i]; l.Protocol == Protocol {
			names = append(names, l.Name)
			if l.Name == t.Listener {
				at = l
			}
		}
	}
	switch {
	case at != nil:
		checkReversePeer(c, t, at)
	case t.Listener != "":
		c.Unknown(c.Mark(&t.Listener), "tunnel listener", t.Listener, names)
	}
	if !c.Written(&t.Peer) {
		c.Report(c.Mark(&t.Listener), "\"peer\" is missing: the name that the other gateway connects with (its \"as\", or what its certificate says)")
	}
	for _, s := range []struct {
		key string
		ptr any
		set bool
	}{
		{"as", &t.As, t.As != ""}, {"tls", &t.TLS, t.TLS != nil}, {"psk", &t.PSK, !t.PSK.IsZero()},
		{"upstreams", &t.Upstreams, len(t.Upstreams) > 0}, {"allow", &t.Allow, len(t.Allow) > 0},
		// Those with a default may be written out, as Config.YAML does.
		{"sessions", &t.Sessions, t.Sessions != 1}, {"dial_timeout", &t.DialTimeout, t.DialTimeout != tunnel.DefaultDialTimeout},
		{"max_streams", &t.MaxStreams, t.MaxStreams != tunnel.DefaultMaxStreams},
		{"resume_window", &t.ResumeWindow, t.ResumeWindow != tunnel.DefaultResumeWindow},
		{"keep_alive", &t.KeepAlive, t.KeepAlive != tunnel.DefaultKeepAlive},
	} {
		if s.set && c.Written(s.ptr) {
			c.Report(c.Mark(s.ptr), "%q: belongs to the listener %q, where the peer connects", s.key, config.Clip(t.Listener))
		}
	}
}

// checkReversePeer checks which other clients could use a peer's name, and so get the connections that are opened
// through it.
func checkReversePeer(c *config.Checker, t *Tunnel, l *config.Listener) {
	to := config.SectionOf[Listener](l)
	if !c.Written(&t.Peer) || len(to.Peers) == 0 && to.PSK.IsZero() {
		return
	}
	var names []string
	for _, p := range to.Peers {
		if names = append(names, p.Name); p.Name == t.Peer && len(p.Keys) > 0 {
			return
		}
	}
	certificates := l.TLS != nil && l.TLS.ClientCA != ""
	switch {
	case len(names) > 0 && !slices.Contains(names, t.Peer):
		slices.Sort(names)
		c.Unknown(c.Mark(&t.Peer), fmt.Sprintf("peer of listener %q", config.Clip(l.Name)), t.Peer, names)
	case len(names) != 1 && !certificates && !to.PSK.IsZero():
		c.Warn(c.Mark(&t.Peer), "peer: any holder of the \"psk\" of listener %q can connect as %q and get these connections; give that peer \"keys\" of its own under \"peers\"",
			config.Clip(l.Name), config.Clip(t.Peer))
	}
}

// checkConnect checks a tunnel that this gateway makes.
func checkConnect(c *config.Checker, t *Tunnel) {
	if c.Written(&t.Peer) {
		c.Report(c.Mark(&t.Peer), "peer: is for tunnels with \"listener\"; this gateway's own name is \"as\"")
	}
	local := true
	for i, address := range t.Connect {
		if host, port, err := net.SplitHostPort(address); err == nil && !strings.HasPrefix(address, "unix:") && (host == "" || port == "0") {
			c.Report(c.Mark(&t.Connect[i]), "connect: %q cannot be connected to", address)
		}
		if slices.Contains(t.Connect[:i], address) {
			c.Report(c.Mark(&t.Connect[i]), "connect: %q is there already", config.Clip(address))
		}
		local = local && (address == "" || config.Loopback(address))
	}
	if len(t.Connect) == 0 {
		c.Report(c.Mark(&t.Connect), "connect: is empty; at least one address is needed")
	}
	checkPSK(c, &t.PSK, "psk")
	if t.TLS != nil {
		c.ClientTLS(t.TLS)
	}
	certificate := t.TLS != nil && c.Written(&t.TLS.Cert)
	switch {
	case local:
	case !certificate && !c.Written(&t.PSK):
		c.Report(c.Mark(&t.Connect), "connect: %q is another machine, and this gateway does not authenticate to it; set \"cert\" and \"key\" under \"tls\", \"psk\", or both", strings.Join(t.Connect, ", "))
	case t.TLS == nil:
		c.Warn(c.Mark(&t.PSK), "psk: authenticates both sides and encrypts nothing; without \"tls\" everybody on the way can read what goes through the tunnel")
	}
	checkOffered(c, t.Upstreams, t.Allow, t)
}

// checkThrough checks an upstream's way through a tunnel.
func checkThrough(c *config.Checker, u *config.Upstream) {
	by := config.PartOf[UpstreamKeys](u)
	if by.Tunnel != "" && tunnelOf(c.Config, by.Tunnel) == nil {
		var names []string
		for _, t := range tunnelsOf(c.Config) {
			names = append(names, t.Name)
		}
		slices.Sort(names)
		c.Unknown(c.Mark(&by.Tunnel), "tunnel", by.Tunnel, names)
	}
	for i := range u.Endpoints {
		e := u.Endpoints[i].Address
		far := strings.HasPrefix(e, tunnel.UpstreamPrefix)
		switch {
		case far && !c.Written(&by.Tunnel):
			c.Report(c.Mark(&u.Endpoints[i]), "endpoint %q: is an upstream of another gateway; \"tunnel\" is missing, the way there", e)
		case far && u.TLS != nil && u.TLS.ServerName == "" && !u.TLS.InsecureSkipVerify && u.TLS.Verify != "ca":
			c.Report(c.Mark(&u.TLS), "tls: \"server_name\" is missing: the host of endpoint %q is not known here", e)
		case config.IsFile(e) && c.Written(&by.Tunnel):
			c.Report(c.Mark(&by.Tunnel), "tunnel: does not apply to endpoint %q, a file of this machine", e)
		}
	}
	if key, field := u.Pool.Warm(); by.Tunnel != "" && u.Optimistic() && key != "" {
		c.Report(c.Mark(field), "%s: nothing is gained by opening connections through a tunnel ahead of demand, it costs no round trip; set it at the far side's upstream", key)
	}
}
