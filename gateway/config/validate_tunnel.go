package config

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/headpond/headpond/tunnel"
)

const (
	upstreamPrefix = tunnel.UpstreamPrefix
	minPSK         = 16
)

// checkNeeds reports that there is nothing to do.
func (d *decoder) checkNeeds(cfg *Config) {
	if d.root.Line == 0 {
		return
	}
	if !d.written(&cfg.Listeners) && len(cfg.Tunnels) == 0 {
		d.report(d.root, "\"listeners\" is missing")
	}
	needed := len(cfg.Tunnels) == 0
	for i := range cfg.Listeners {
		needed = needed && cfg.Listeners[i].Protocol != TunnelProtocol
	}
	if needed && !d.written(&cfg.Upstreams) {
		d.report(d.root, "\"upstreams\" is missing")
	}
}

// checkRule checks a pattern of what may be dialled.
func checkRule(text string) error {
	_, err := tunnel.ParseRule(text)
	if err == nil {
		return nil
	}
	return errors.New(strings.TrimPrefix(err.Error(), fmt.Sprintf("%v: rule %q: ", tunnel.ErrConfig, text)))
}

// checkFarName checks the name in an endpoint "upstream:name".
func checkFarName(name string) error {
	if name == "" || strings.Trim(name, "0123456789") == "" {
		return errors.New("want the name of an upstream of the far side after \"upstream:\"")
	}
	return checkName(name)
}

func (d *decoder) checkTunnelListener(cfg *Config, l *Listener) {
	t := l.Tunnel
	if t == nil {
		return
	}
	if d.written(&l.Upstream) {
		d.report(d.mark(&l.Upstream), "upstream: a tunnel listener connects what its peers ask for; list what they may name in \"upstreams\" under \"tunnel\"")
	}
	certificates := l.TLS != nil && d.written(&l.TLS.ClientCA)
	if certificates {
		d.checkCA(&l.TLS.ClientCA, "client_ca")
	}
	d.checkPSK(&t.PSK, "psk")
	keyed := d.checkPeers(cfg, t, certificates)
	if t.PeerSessions > t.MaxSessions {
		d.report(d.mark(&t.PeerSessions), "max_sessions_per_peer: %d is more than max_sessions: %d, which is for all peers", t.PeerSessions, t.MaxSessions)
	}
	local := Loopback(l.Listen)
	switch {
	case l.Listen == "":
	case !certificates && !d.written(&t.PSK) && !keyed && !local:
		d.report(d.mark(&l.Listen), "listen: %q can be reached from other machines, and nothing authenticates peers; set \"client_ca\" under \"tls\", \"keys\" of each of \"peers\" (or one \"psk\" for all) under \"tunnel\", or both",
			l.Listen)
	case !certificates && !d.written(&t.PSK) && !keyed:
		d.warn(d.mark(&l.Listen), "listen: nothing authenticates peers; every program on this machine can use the tunnel")
	case l.TLS == nil && !local && keyed:
		d.warn(d.mark(&t.Peers), "keys: authenticate peers and encrypt nothing; without \"tls\" everybody on the way can read what goes through the tunnel")
	case l.TLS == nil && !local:
		d.warn(d.mark(&t.PSK), "psk: authenticates peers and encrypts nothing; without \"tls\" everybody on the way can read what goes through the tunnel")
	}
	d.checkOffered(cfg, t.Upstreams, t.Allow, t)
}

// checkOffered notes what the other side of a tunnel may name.
func (d *decoder) checkOffered(cfg *Config, upstreams, allow []string, section any) {
	self := &Listener{Protocol: TunnelProtocol}
	for i := range upstreams {
		d.reference(cfg, self, upstreams[i], &upstreams[i])
	}
	own := func(p TunnelPeer) bool { return len(p.Upstreams)+len(p.Allow) > 0 }
	if t, listens := section.(*TunnelListener); listens && len(upstreams)+len(allow) == 0 && !slices.ContainsFunc(t.Peers, own) && !d.served(cfg) {
		d.warn(d.mark(t), "peers may have nothing connected: list \"upstreams\", \"allow\", or both")
	}
}

// served reports whether some tunnel goes out through a listener's peers.
func (d *decoder) served(cfg *Config) bool {
	return slices.ContainsFunc(cfg.Tunnels, func(t Tunnel) bool { return t.Listener != "" })
}

func (d *decoder) checkPSK(psk *Secret, key string) {
	if v := psk.Reveal(); d.written(psk) && d.noProblemAt(psk) && len(v) < minPSK && v != redacted {
		d.report(d.mark(psk), "%s: too short: want at least %d bytes at random, got %d", key, minPSK, len(v))
	}
}

// checkPeers checks those that may connect to a listener. keyed: every one has keys of its own.
func (d *decoder) checkPeers(cfg *Config, t *TunnelListener, certificates bool) (keyed bool) {
	self := &Listener{Protocol: TunnelProtocol}
	seen, owner, bare := map[string]bool{}, map[string]string{}, -1
	if !t.PSK.IsZero() {
		owner[t.PSK.Reveal()] = "of \"psk\", for peers without keys of their own"
	}
	for i := range t.Peers {
		p := &t.Peers[i]
		switch err := checkName(p.Name); {
		case !d.noProblemAt(&p.Name):
		case err != nil:
			d.report(d.mark(&p.Name), "peers: %q: %v", clip(p.Name), err)
		case p.Name == "" || seen[p.Name]:
			d.report(d.mark(&p.Name), "peers: %q: want a name that is not there yet", clip(p.Name))
		}
		seen[p.Name] = true
		for j := range p.Keys {
			d.checkPSK(&p.Keys[j], "keys")
			value := p.Keys[j].Reveal()
			if other := owner[value]; other != "" && value != redacted && value != "" {
				d.report(d.mark(&p.Keys[j]), "keys: this key is also that %s; a key tells who has it, give each peer its own", other)
			}
			owner[value] = fmt.Sprintf("of peer %q", clip(p.Name))
		}
		if len(p.Keys) == 0 {
			bare = i
		}
		for j := range p.Upstreams {
			d.reference(cfg, self, p.Upstreams[j], &p.Upstreams[j])
		}
	}
	keyed = len(t.Peers) > 0 && bare < 0
	d.warnOfClaims(t, certificates)
	some := slices.ContainsFunc(t.Peers, func(p TunnelPeer) bool { return len(p.Keys) > 0 })
	if some && !keyed && t.PSK.IsZero() && !certificates {
		p := &t.Peers[bare]
		d.report(d.mark(&p.Name), "peers: %q has nothing to prove who it is; give it \"keys\", or set \"psk\" or \"client_ca\"", clip(p.Name))
	}
	return keyed
}

// warnOfClaims tells of peers that may have more than others, under names that the others can use.
func (d *decoder) warnOfClaims(t *TunnelListener, certificates bool) {
	if certificates || t.PSK.IsZero() || len(t.Peers) == 1 {
		return
	}
	for i := range t.Peers {
		if p := &t.Peers[i]; len(p.Keys) == 0 && len(p.Upstreams)+len(p.Allow) > 0 {
			d.warn(d.mark(&p.Name), "peers: whoever has the \"psk\" can connect as %q and have what only that peer may; give it \"keys\" of its own", clip(p.Name))
		}
	}
}

func (d *decoder) checkCA(ca *Path, key string) {
	if *ca == "" || !d.noProblemAt(ca) {
		return
	}
	pem, err := ca.Read()
	if err == nil && !x509.NewCertPool().AppendCertsFromPEM(pem) {
		d.report(d.mark(ca), "%s: %q has no PEM certificate in it", key, string(*ca))
	}
}

func (d *decoder) checkTunnel(cfg *Config, t *Tunnel) {
	if err := checkName(t.Name); err != nil || t.Name == "" {
		d.report(d.mark(&t.Name), "name: %q: want letters, digits, \"-\", \"_\" and \".\", at most %d", clip(t.Name), maxName)
	}
	switch connects, listens := d.written(&t.Connect), d.written(&t.Listener); {
	case connects == listens:
		d.report(d.mark(&t.Name), "want either \"connect\", the address of the other gateway, or \"listener\" and \"peer\", for one that connects to this gateway")
	case listens:
		d.checkReverse(cfg, t)
	default:
		d.checkConnect(cfg, t)
	}
}

// checkReverse checks a tunnel that a peer makes.
func (d *decoder) checkReverse(cfg *Config, t *Tunnel) {
	var names []string
	var at *Listener
	for i := range cfg.Listeners {
		if l := &cfg.Listeners[i]; l.Protocol == TunnelProtocol {
			names = append(names, l.Name)
			if l.Name == t.Listener {
				at = l
			}
		}
	}
	switch {
	case at != nil:
		d.checkReversePeer(t, at)
	case t.Listener != "":
		d.unknown(d.mark(&t.Listener), "tunnel listener", t.Listener, names)
	}
	if !d.written(&t.Peer) {
		d.report(d.mark(&t.Listener), "\"peer\" is missing: the name that the other gateway connects with (its \"as\", or what its certificate says)")
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
		if s.set && d.written(s.ptr) {
			d.report(d.mark(s.ptr), "%q: belongs to the listener %q, where the peer connects", s.key, clip(t.Listener))
		}
	}
}

// checkReversePeer checks who may take the place of a peer, and with it the connections that are opened through it.
func (d *decoder) checkReversePeer(t *Tunnel, l *Listener) {
	if l.Tunnel == nil || !d.written(&t.Peer) || len(l.Tunnel.Peers) == 0 && l.Tunnel.PSK.IsZero() {
		return
	}
	var names []string
	for _, p := range l.Tunnel.Peers {
		if names = append(names, p.Name); p.Name == t.Peer && len(p.Keys) > 0 {
			return
		}
	}
	certificates := l.TLS != nil && l.TLS.ClientCA != ""
	switch {
	case len(names) > 0 && !slices.Contains(names, t.Peer):
		slices.Sort(names)
		d.unknown(d.mark(&t.Peer), fmt.Sprintf("peer of listener %q", clip(l.Name)), t.Peer, names)
	case len(names) != 1 && !certificates && !l.Tunnel.PSK.IsZero():
		d.warn(d.mark(&t.Peer), "peer: whoever has the \"psk\" of listener %q can connect as %q and get these connections; give that peer \"keys\" of its own under \"peers\"",
			clip(l.Name), clip(t.Peer))
	}
}

// checkConnect checks a tunnel that this gateway makes.
func (d *decoder) checkConnect(cfg *Config, t *Tunnel) {
	if d.written(&t.Peer) {
		d.report(d.mark(&t.Peer), "peer: is for tunnels with \"listener\"; this gateway's own name is \"as\"")
	}
	local := true
	for i, address := range t.Connect {
		if host, port, err := net.SplitHostPort(address); err == nil && !strings.HasPrefix(address, "unix:") && (host == "" || port == "0") {
			d.report(d.mark(&t.Connect[i]), "connect: %q cannot be connected to", address)
		}
		if slices.Contains(t.Connect[:i], address) {
			d.report(d.mark(&t.Connect[i]), "connect: %q is there already", clip(address))
		}
		local = local && (address == "" || Loopback(address))
	}
	if len(t.Connect) == 0 {
		d.report(d.mark(&t.Connect), "connect: is empty; at least one address is needed")
	}
	d.checkPSK(&t.PSK, "psk")
	if t.TLS != nil {
		d.checkClientTLS(&Upstream{TLS: t.TLS})
	}
	certificate := t.TLS != nil && d.written(&t.TLS.Cert)
	switch {
	case local:
	case !certificate && !d.written(&t.PSK):
		d.report(d.mark(&t.Connect), "connect: %q is another machine, and nothing tells it who this gateway is; set \"cert\" and \"key\" under \"tls\", \"psk\", or both", strings.Join(t.Connect, ", "))
	case t.TLS == nil:
		d.warn(d.mark(&t.PSK), "psk: authenticates both sides and encrypts nothing; without \"tls\" everybody on the way can read what goes through the tunnel")
	}
	d.checkOffered(cfg, t.Upstreams, t.Allow, t)
}

// checkThrough checks an upstream's way through a tunnel.
func (d *decoder) checkThrough(cfg *Config, u *Upstream) {
	if u.Tunnel != "" && cfg.Tunnel(u.Tunnel) == nil {
		var names []string
		for i := range cfg.Tunnels {
			names = append(names, cfg.Tunnels[i].Name)
		}
		slices.Sort(names)
		d.unknown(d.mark(&u.Tunnel), "tunnel", u.Tunnel, names)
	}
	for i, e := range u.Endpoints {
		far := strings.HasPrefix(e, upstreamPrefix)
		switch _, sqlite := u.SQLite(); {
		case far && !d.written(&u.Tunnel):
			d.report(d.mark(&u.Endpoints[i]), "endpoint %q: is an upstream of another gateway; \"tunnel\" is missing, the way there", e)
		case far && u.TLS != nil && u.TLS.ServerName == "" && !u.TLS.InsecureSkipVerify && u.TLS.Verify != "ca":
			d.report(d.mark(&u.TLS), "tls: \"server_name\" is missing: the host of endpoint %q is not known here", e)
		case sqlite && d.written(&u.Tunnel):
			d.report(d.mark(&u.Tunnel), "tunnel: does not apply to a SQLite file")
		}
	}
	if u.Tunnel != "" && u.Protocol == TCP && u.Pool.MinIdle > 0 {
		d.report(d.mark(&u.Pool.MinIdle), "min_idle: nothing is gained by opening connections through a tunnel ahead of demand, it costs no round trip; set it at the far side's upstream")
	}
}
