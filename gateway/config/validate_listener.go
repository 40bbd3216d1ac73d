package config

import (
	"crypto/x509"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headpond/headpond/internal/crl"
)

func quoteOr(name string, index int) string {
	if name == "" {
		return strconv.Itoa(index + 1)
	}
	return strconv.Quote(clip(name))
}

func (d *decoder) checkListener(cfg *Config, l *Listener) {
	d.checkSections(l)
	p := protocolOf(l.Protocol)
	if p == nil {
		p = &ListenerProtocol{}
	}
	if p.one && l.Upstream == "" {
		d.report(d.mark(l), "\"upstream\" is missing")
	}
	if p.NoUpstream == "" {
		d.reference(cfg, l.Protocol, &l.Upstream, l)
	} else if d.written(&l.Upstream) {
		d.report(d.mark(&l.Upstream), "upstream: %s", p.NoUpstream)
	}
	for _, field := range l.upstreamFields() {
		d.reference(cfg, l.Protocol, field, &l.Upstream, l)
	}
	if len(l.TrustedProxies) > 0 && !l.AcceptProxy && !p.ForwardHeaders {
		d.warn(d.mark(&l.TrustedProxies), "trusted_proxies: has no effect without accept_proxy: true")
	}
	d.checkSources(l)
	if l.Socket != nil && !strings.HasPrefix(l.Listen, "unix:") && l.Listen != "" {
		d.report(d.mark(&l.Socket), "socket: only a unix socket has a mode and an owner; this listener has the address %q", l.Listen)
	}
	if l.KeepAlive != nil && strings.HasPrefix(l.Listen, "unix:") {
		d.report(d.mark(&l.KeepAlive), "keep_alive: clients of a unix socket are on this machine and cannot vanish")
	}
	d.checkUserTimeout(l.KeepAlive)
	if p.Datagrams {
		d.checkDatagrams(l)
	}
	if l.TLS != nil {
		d.checkCertificates(l)
		d.checkACME(cfg, l)
	}
	if p.Check != nil {
		p.Check(&Checker{cfg, d}, l)
	}
	if l.TLS != nil {
		d.checkClientCerts(p, l.TLS)
	}
	d.checkLoop(cfg, l)
}

// checkCertificates checks the certificates of files.
func (d *decoder) checkCertificates(l *Listener) {
	t := l.TLS
	one := d.written(&t.Cert) || d.written(&t.Key)
	for _, f := range []struct {
		key  string
		path *Path
	}{{"cert", &t.Cert}, {"key", &t.Key}} {
		if !d.written(f.path) && (one || !d.written(&t.ACME)) {
			d.report(d.mark(&l.TLS), "%q is missing", f.key)
		}
	}
	d.checkPair(&t.Cert, &t.Key)
	for i := range t.Certificates {
		d.checkPair(&t.Certificates[i].Cert, &t.Certificates[i].Key)
	}
}

// checkACME checks the names whose certificates an extension obtains.
func (d *decoder) checkACME(cfg *Config, l *Listener) {
	names := &l.TLS.ACME
	if !d.written(names) {
		return
	}
	if len(*names) == 0 && d.noProblemAt(names) {
		d.report(d.mark(names), "acme: the list is empty; it has the names whose certificates the gateway obtains")
	}
	for i, name := range *names {
		if name != "" && slices.Contains((*names)[:i], name) {
			d.report(d.mark(&(*names)[i], names), "acme: %q is there already", clip(string(name)))
		}
	}
	certified := false
	for _, e := range extensions {
		if e.Certifies != nil {
			certified = true
			e.Certifies(&Checker{cfg, d}, l)
		}
	}
	if !certified {
		d.report(d.mark(names), "acme: this program cannot obtain certificates; the released one can (make build)")
	}
}

// checkClientCerts checks the settings of client certificates.
func (d *decoder) checkClientCerts(p *ListenerProtocol, t *ServerTLS) {
	switch {
	case !p.ClientCerts && d.written(&t.ClientCA):
		d.report(d.mark(&t.ClientCA), "client_ca: only listeners of these protocols ask for client certificates: %s", strings.Join(clientCertProtocols(), ", "))
	case t.ClientCA == "" && d.written(&t.ClientAuth) && !d.written(&t.ClientCA):
		d.report(d.mark(&t.ClientAuth), "client_auth: \"client_ca\" is missing, the authorities of the clients' certificates")
	case t.ClientCA != "" && d.noProblemAt(&t.ClientCA):
		pem, err := t.ClientCA.Read()
		switch {
		case err == nil && !x509.NewCertPool().AppendCertsFromPEM(pem):
			d.report(d.mark(&t.ClientCA), "client_ca: %q has no PEM certificate in it", string(t.ClientCA))
		case err == nil && t.ClientCRL != "" && d.noProblemAt(&t.ClientCRL):
			d.checkClientCRL(t, pem)
		}
	}
	if t.ClientCA == "" && d.written(&t.ClientCRL) && !d.written(&t.ClientCA) {
		d.report(d.mark(&t.ClientCRL), "client_crl: \"client_ca\" is missing, the authorities of the clients' certificates")
	}
}

// checkClientCRL checks the revocation lists of authorities.
func (d *decoder) checkClientCRL(t *ServerTLS, authorities []byte) {
	file, err := t.ClientCRL.Read()
	if err != nil {
		return // reported with all files
	}
	lists, err := crl.Parse(file, authorities)
	switch {
	case err != nil:
		d.report(d.mark(&t.ClientCRL), "client_crl: %q: %s", string(t.ClientCRL), err)
	case !lists.Expires().IsZero() && time.Now().After(lists.Expires()):
		d.warn(d.mark(&t.ClientCRL), "client_crl: %q has a list that expired at %s; clients with certificates of its authority are refused", string(t.ClientCRL), lists.Expires().Format(time.RFC3339))
	}
}

// checkDatagrams refuses settings that apply to connections only.
func (d *decoder) checkDatagrams(l *Listener) {
	if strings.HasPrefix(l.Listen, "unix:") {
		d.report(d.mark(&l.Listen), "listen: %q: a %s listener has an address host:port", l.Listen, l.Protocol)
	}
	if l.TLS != nil {
		d.report(d.mark(&l.TLS), "tls: datagrams have no TLS; those of QUIC and DTLS are passed on as they are")
	}
	if d.written(&l.AcceptProxy) && l.AcceptProxy {
		d.report(d.mark(&l.AcceptProxy), "accept_proxy: there are no PROXY headers in datagrams")
	}
	if l.KeepAlive != nil && !strings.HasPrefix(l.Listen, "unix:") {
		d.report(d.mark(&l.KeepAlive), "keep_alive: datagrams have no connection; sessions end by \"idle_timeout\"")
	}
}

// checkUserTimeout refuses a time-out that the system does not have.
func (d *decoder) checkUserTimeout(k *KeepAlive) {
	if k != nil && k.UserTimeout > 0 && runtime.GOOS != "linux" {
		d.report(d.mark(&k.UserTimeout), "tcp_user_timeout: only Linux has it; idle, interval and count are possible here")
	}
}

// checkSources checks "allow" and "deny".
func (d *decoder) checkSources(l *Listener) {
	if strings.HasPrefix(l.Listen, "unix:") && !l.AcceptProxy {
		for _, f := range []struct {
			key string
			ptr any
		}{{"allow", &l.Allow}, {"deny", &l.Deny}, {"max_connections_per_source", &l.MaxConnsPerSource}, {"connection_rate", &l.ConnectionRate}} {
			if d.written(f.ptr) {
				d.report(d.mark(f.ptr), "%s: clients of a unix socket have no address, unless a PROXY header (accept_proxy) has it; \"socket\" says who may connect", f.key)
			}
		}
	}
	d.checkAddresses(&l.Allow, &l.Deny, "connect")
}

// checkAddresses checks two lists of client addresses; may completes messages, see Checker.Addresses.
func (d *decoder) checkAddresses(allow, deny *[]netip.Prefix, may string) {
	if d.written(allow) && len(*allow) == 0 && d.noProblemAt(allow) {
		d.report(d.mark(allow), "allow: the list is empty; leave it out if everybody may %s", may)
	}
	for i, a := range *allow {
		for _, no := range *deny {
			if a.IsValid() && no.IsValid() && no.Bits() <= a.Bits() && no.Contains(a.Addr()) {
				d.warn(d.mark(&(*allow)[i], allow), "allow: nobody of %v may %s, because %v is under \"deny\"", a, may, no)
				break
			}
		}
	}
}

// clientCertProtocols lists the protocols whose listeners may ask for client certificates.
func clientCertProtocols() (names []string) {
	for _, p := range protocols {
		if p.ClientCerts {
			names = append(names, string(p.Name))
		}
	}
	return names
}

// noProblemAt reports whether none of the fields has a problem yet, so that one cause is not reported twice.
func (d *decoder) noProblemAt(ptrs ...any) bool {
	for _, ptr := range ptrs {
		pos := d.mark(ptr)
		for _, p := range d.problems {
			if pos.Line > 0 && p.Line == pos.Line && p.Column == pos.Column {
				return false
			}
		}
	}
	return true
}

// checkSections refuses settings of another protocol.
func (d *decoder) checkSections(l *Listener) {
	for _, k := range d.sections(l) {
		if !k.value.IsNil() && l.Protocol != "" && k.name != string(l.Protocol) {
			d.report(d.mark(k.value.Addr().Interface()), "%q: these settings are for another protocol; this listener's is %q", k.name, l.Protocol)
		}
	}
}

// reference checks that an upstream exists and is used by one protocol only, and records the protocol.
func (d *decoder) reference(cfg *Config, protocol Protocol, field *string, alternatives ...any) {
	if *field == "" {
		return
	}
	pos := d.mark(append([]any{field}, alternatives...)...)
	u := cfg.Upstream(*field)
	switch {
	case u == nil:
		d.unknown(pos, "upstream", *field, upstreamNames(cfg))
	case u.Protocol == "":
		u.Protocol = protocol
	case u.Protocol != protocol && protocol != "":
		d.report(pos, "upstream %q is already used by a listener of protocol %s, and this one is of protocol %s; an upstream belongs to one protocol, write a second one",
			clip(*field), u.Protocol, protocol)
	}
}

// unknown reports a name that no object has.
func (d *decoder) unknown(pos Position, kind, name string, known []string) {
	hint := didYouMean(name, known)
	if hint == "" && len(known) > 0 {
		hint = "; there are " + clip(strings.Join(known, ", "))
	}
	d.report(pos, "unknown %s %q%s", kind, clip(name), hint)
}

// checkLoop refuses a listener that forwards to itself.
func (d *decoder) checkLoop(cfg *Config, l *Listener) {
	names := append(l.Upstreams(), l.Upstream)
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		u := cfg.Upstream(name)
		if u == nil || u.Far() {
			continue
		}
		for j := range u.Endpoints {
			if e := u.Endpoints[j].Address; l.Listen != "" && (e == l.Listen || Loopback(e) && Overlap(e, l.Listen)) {
				d.report(d.mark(&u.Endpoints[j]), "%s", fmt.Sprintf("endpoint %q of upstream %q is this listener itself", e, clip(name)))
			}
		}
	}
}
