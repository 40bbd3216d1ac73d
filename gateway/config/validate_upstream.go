package config

import (
	"crypto/x509"
	"strings"
	"time"
)

func (d *decoder) checkUpstream(u *Upstream) {
	if err := checkName(u.Name); err != nil || u.Name == "" {
		d.report(d.mark(&u.Name), "name: %q: want letters, digits, \"-\", \"_\" and \".\", at most %d", clip(u.Name), maxName)
	}
	if u.Protocol == "" {
		d.warn(d.mark(&u.Name), "no listener uses it")
		u.Protocol = TCP
		for _, p := range protocols {
			if p.Uses != nil && p.Uses(u) {
				u.Protocol = p.Name
			}
		}
	}
	d.fillPool(u)
	d.checkEndpoints(u)
	d.checkClientTLS(u)
	d.checkHealth(u)
	d.checkPool(&u.Pool)
	d.checkWarm(u)
	d.checkRebalance(u)
	d.checkUserTimeout(u.KeepAlive)
	if u.Balance == "nearest" && u.Health == nil {
		d.report(d.mark(&u.Balance), "balance: nearest goes by how long health checks take; there is no \"health\"")
	}
	d.checkEject(&u.Eject)
	if u.Eject.Base > u.Eject.Max {
		d.report(d.mark(&u.Eject.Base, &u.Eject.Max), "base: %v is more than max: %v", u.Eject.Base, u.Eject.Max)
	}
}

// checkEject refuses settings without effect.
func (d *decoder) checkEject(e *Eject) {
	if e.Failures > 0 || !d.noProblemAt(&e.Failures) {
		return
	}
	const off = "%s: has no effect, as failures: 0 turns the ejection of endpoints off"
	if e.ServerErrors {
		d.report(d.mark(&e.ServerErrors), off, "server_errors")
	}
	if e.SlowerThan > 0 {
		d.report(d.mark(&e.SlowerThan), off, "slower_than")
	}
}

// checkRebalance refuses rebalancing where sessions cannot move, or could not move anywhere.
func (d *decoder) checkRebalance(u *Upstream) {
	switch {
	case u.Rebalance == nil:
	case !endsSessions(u.Protocol):
		d.report(d.mark(&u.Rebalance), "rebalance: only %s upstreams close sessions; this upstream's protocol is %q", closingProtocols(), u.Protocol)
	case u.Balance == "first" || u.Balance == "ring_hash":
		d.report(d.mark(&u.Rebalance), "rebalance: with \"balance: %s\" a session that is closed comes back to the same endpoint", u.Balance)
	}
}

// checkEndpoints refuses duplicates.
func (d *decoder) checkEndpoints(u *Upstream) {
	first := map[string]Position{}
	for i := range u.Endpoints {
		e := u.Endpoints[i].Address
		pos := d.mark(&u.Endpoints[i])
		if before, ok := first[e]; ok {
			d.report(pos, "duplicate endpoint %q; it is already at line %d", e, before.Line)
			continue
		}
		first[e] = pos
	}
}

func (d *decoder) checkClientTLS(u *Upstream) {
	t := u.TLS
	if t == nil {
		return
	}
	d.checkClientFiles(&t.CA, &t.Cert, &t.Key)
	switch {
	case t.Verify == "ca" && t.InsecureSkipVerify:
		d.report(d.mark(&t.InsecureSkipVerify), "insecure_skip_verify: true contradicts \"verify\"")
	case t.Verify == "ca" && t.CA == "" && d.noProblemAt(&t.CA):
		d.report(d.mark(&t.Verify), "verify: ca needs \"ca\": the system's authorities sign for anybody")
	}
	if t.InsecureSkipVerify {
		d.warn(d.mark(&t.InsecureSkipVerify), "insecure_skip_verify: true accepts any certificate; anyone in between can read and change everything")
	}
}

// checkClientFiles checks the files of a TLS client: the trusted authority, and its own certificate.
func (d *decoder) checkClientFiles(ca, cert, key *Path) {
	if (*cert == "") != (*key == "") && d.written(cert) != d.written(key) {
		d.report(d.mark(cert, key), "\"cert\" and \"key\" belong together; one is missing")
	}
	d.checkPair(cert, key)
	if *ca != "" && d.noProblemAt(ca) {
		pem, err := ca.Read()
		if err == nil && !x509.NewCertPool().AppendCertsFromPEM(pem) {
			d.report(d.mark(ca), "ca: %q has no PEM certificate in it", string(*ca))
		}
	}
}

// checkPair checks a certificate with its key, if both are there.
func (d *decoder) checkPair(cert, key *Path) {
	if *cert == "" || *key == "" || !d.noProblemAt(cert, key) {
		return
	}
	pair, err := KeyPair(*cert, *key)
	if err != nil {
		d.report(d.mark(cert), "tls: %q with %q: %s", *cert, *key, strings.TrimPrefix(err.Error(), "tls: "))
		return
	}
	if pair.Leaf == nil {
		return // GODEBUG may permit it
	}
	const form = "2006-01-02 15:04 MST"
	switch from, to, now := pair.Leaf.NotBefore, pair.Leaf.NotAfter, time.Now(); {
	case now.After(to):
		d.warn(d.mark(cert), "cert: %q has expired on %s: the other side will refuse it; replace the file and reload", *cert, to.Format(form))
	case now.Before(from):
		d.warn(d.mark(cert), "cert: %q is not valid before %s: the other side will refuse it; is the clock of this machine right?", *cert, from.Format(form))
	case to.Sub(now) < expiryNotice:
		d.warn(d.mark(cert), "cert: %q expires on %s; replace the file and reload", *cert, to.Format(form))
	}
}

// expiryNotice is how long before its expiry the gateway warns of a certificate: it should have been
// renewed by then.
const expiryNotice = 7 * 24 * time.Hour

func (d *decoder) checkPool(p *Pool) {
	if !d.noProblemAt(&p.MinIdle, &p.MaxSize, &p.MaxIdle) {
		return // an invalid number cannot be compared
	}
	if p.MinIdle > p.MaxSize {
		d.report(d.mark(&p.MinIdle, &p.MaxSize), "min_idle: %d is more than max_size: %d", p.MinIdle, p.MaxSize)
	}
	if p.MaxIdle > p.MaxSize {
		d.report(d.mark(&p.MaxIdle, &p.MaxSize), "max_idle: %d is more than max_size: %d", p.MaxIdle, p.MaxSize)
	}
	if p.MinIdle > p.MaxIdle && p.MinIdle <= p.MaxSize {
		d.report(d.mark(&p.MinIdle, &p.MaxIdle), "min_idle: %d is more than max_idle: %d", p.MinIdle, p.MaxIdle)
	}
}

// checkWarm checks how many connections may be kept ready. Except for tcp, connections are reused, and
// the number is fixed.
func (d *decoder) checkWarm(u *Upstream) {
	p, of := &u.Pool, protocolOf(u.Protocol)
	if !d.written(&p.MaxWarm) || !d.noProblemAt(&p.MaxWarm, &p.MinIdle, &p.MaxIdle, &p.MaxSize) {
		return
	}
	switch {
	case p.MaxWarm < p.MinIdle:
		d.report(d.mark(&p.MaxWarm, &p.MinIdle), "max_warm: %d is less than min_idle: %d", p.MaxWarm, p.MinIdle)
	case p.MaxWarm > p.MaxIdle:
		d.report(d.mark(&p.MaxWarm, &p.MaxIdle), "max_warm: %d is more than max_idle: %d", p.MaxWarm, p.MaxIdle)
	case of != nil && of.MaxWarm == nil && p.MaxWarm != p.MinIdle:
		d.report(d.mark(&p.MaxWarm), "max_warm: connections of %q are used again, so their number does not follow the arrivals; set min_idle", u.Protocol)
	}
}
