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
	d.checkPSK(&t.PSK)
	if t.PeerSessions > t.MaxSessions {
		d.report(d.mark(&t.PeerSessions), "max_sessions_per_peer: %d is more than max_sessions: %d, which is for all peers", t.PeerSessions, t.MaxSessions)
	}
	local := Loopback(l.Listen)
	switch {
	case l.Listen == "":
	case !certificates && !d.written(&t.PSK) && !local:
		d.report(d.mark(&l.Listen), "listen: %q can be reached from other machines, and nothing authenticates peers; set \"client_ca\" under \"tls\", \"psk\" under \"tunnel\", or both",
			l.Listen)
	case !certificates && !d.written(&t.PSK):
		d.warn(d.mark(&l.Listen), "listen: nothing authenticates peers; every program on this machine can use the tunnel")
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
	if t, listens := section.(*TunnelListener); listens && len(upstreams)+len(allow) == 0 && !d.served(cfg) {
		d.warn(d.mark(t), "peers may have nothing connected: list \"upstreams\", \"allow\", or both")
	}
}

// served reports whether some tunnel goes out through a listener's peers.
func (d *decoder) served(cfg *Config) bool {
	return slices.ContainsFunc(cfg.Tunnels, func(t Tunnel) bool { return t.Listener != "" })
}

func (d *decoder) checkPSK(psk *Secret) {
	if v := psk.Reveal(); d.written(psk) && d.noProblemAt(psk) && len(v) < minPSK && v != redacted {
		d.report(d.mark(psk), "psk: too short: want at least %[2]d bytes at random, got %[1]d", len(v), minPSK)
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
	found := false
	for i := range cfg.Listeners {
		if l := &cfg.Listeners[i]; l.Protocol == TunnelProtocol {
			names = append(names, l.Name)
			found = found || l.Name == t.Listener
		}
	}
	if !found && t.Listener != "" {
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

// checkConnect checks a tunnel that this gateway makes.
func (d *decoder) checkConnect(cfg *Config, t *Tunnel) {
	if d.written(&t.Peer) {
		d.report(d.mark(&t.Peer), "peer: is for tunnels with \"listener\"; this gateway's own name is \"as\"")
	}
	if host, port, err := net.SplitHostPort(t.Connect); err == nil && !strings.HasPrefix(t.Connect, "unix:") && (host == "" || port == "0") {
		d.report(d.mark(&t.Connect), "connect: %q cannot be connected to", t.Connect)
	}
	d.checkPSK(&t.PSK)
	if t.TLS != nil {
		d.checkClientTLS(&Upstream{TLS: t.TLS})
	}
	certificate := t.TLS != nil && d.written(&t.TLS.Cert)
	local := Loopback(t.Connect)
	switch {
	case t.Connect == "" || local:
	case !certificate && !d.written(&t.PSK):
		d.report(d.mark(&t.Connect), "connect: %q is another machine, and nothing tells it who this gateway is; set \"cert\" and \"key\" under \"tls\", \"psk\", or both", t.Connect)
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
