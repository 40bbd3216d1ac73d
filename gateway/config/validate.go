package config

import (
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
)

// validate makes the checks that involve more than one field.
func (d *decoder) validate(cfg *Config) {
	d.checkAdmin(cfg)
	d.checkNeeds(cfg)
	d.uniqueNames(cfg)
	for i := range cfg.Listeners {
		l := &cfg.Listeners[i]
		d.within("listener", l.Name, i, func() { d.checkListener(cfg, l) })
	}
	c := &Checker{cfg, d}
	for _, e := range extensions {
		if e.Check != nil {
			e.Check(c)
		}
	}
	for i := range cfg.Upstreams {
		u := &cfg.Upstreams[i]
		d.within("upstream", u.Name, i, func() {
			d.checkUpstream(u)
			d.checkSource(cfg, u)
			for _, e := range extensions {
				if e.CheckUpstream != nil {
					e.CheckUpstream(c, u)
				}
			}
		})
	}
	d.checkPorts(cfg)
	finish(cfg)
}

// checkNeeds reports missing "listeners" and "upstreams" where the configuration cannot do without.
func (d *decoder) checkNeeds(cfg *Config) {
	if d.root.Line == 0 || slices.ContainsFunc(extensions, func(e *Extension) bool { return e.Suffices != nil && e.Suffices(cfg) }) {
		return
	}
	if !d.written(&cfg.Listeners) {
		d.report(d.root, "\"listeners\" is missing")
	}
	named := func(name string) bool { return name != "" }
	none := func(l Listener) bool { // its protocol has none, or its routes answer by themselves
		p := protocolOf(l.Protocol)
		return p != nil && (p.NoUpstream != "" || !named(l.Upstream) && !slices.ContainsFunc(l.Upstreams(), named))
	}
	if !d.written(&cfg.Upstreams) && !slices.ContainsFunc(cfg.Listeners, none) {
		d.report(d.root, "\"upstreams\" is missing")
	}
}

// within runs check with the scope of one listener or upstream.
func (d *decoder) within(kind, name string, index int, check func()) {
	before := d.scope
	d.scope = kind + " " + quoteOr(name, index)
	check()
	d.scope = before
}

// mark returns where a field was written, or else the first of the alternatives that was.
func (d *decoder) mark(ptrs ...any) Position {
	for _, p := range ptrs {
		if pos, ok := d.marks[p]; ok {
			return pos
		}
	}
	return Position{}
}

// written reports whether the file has the field.
func (d *decoder) written(ptr any) bool {
	_, ok := d.marks[ptr]
	return ok
}

func (d *decoder) checkAdmin(cfg *Config) {
	if cfg.Admin != "" && !Loopback(cfg.Admin) && d.noProblemAt(&cfg.Admin) {
		d.warn(d.mark(&cfg.Admin), "admin: %q can be reached from other machines and has no password; it shows addresses and counts, changes nothing", cfg.Admin)
	}
}

// Loopback reports whether only this machine can reach an address: a loopback IP, localhost, or a unix socket.
func Loopback(address string) bool {
	if strings.HasPrefix(address, "unix:") {
		return true
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	return hostIP(host).IsLoopback()
}

// uniqueNames refuses listeners that share a name. Upstreams are keys of a mapping, which cannot repeat.
func (d *decoder) uniqueNames(cfg *Config) {
	first := map[string]Position{}
	for i := range cfg.Listeners {
		l := &cfg.Listeners[i]
		pos := d.mark(&l.Name, l)
		if before, ok := first[l.Name]; ok && l.Name != "" {
			d.report(pos, "duplicate listener name %q; it is already at line %d", l.Name, before.Line)
			continue
		}
		first[l.Name] = pos
	}
}

// checkPorts refuses two listeners, or a listener and the admin page, on one address.
func (d *decoder) checkPorts(cfg *Config) {
	type taken struct {
		address, by string
		datagrams   bool
	}
	var all []taken
	claim := func(address, by string, datagrams bool, ptr any) {
		if address == "" {
			return
		}
		for _, t := range all {
			if t.datagrams == datagrams && Overlap(t.address, address) {
				d.report(d.mark(ptr), "%s: %q is already the address of %s (%s)", by, address, t.by, t.address)
				return
			}
		}
		all = append(all, taken{address, by, datagrams})
	}
	claim(cfg.Admin, "admin", false, &cfg.Admin)
	for i := range cfg.Listeners {
		l := &cfg.Listeners[i]
		p := protocolOf(l.Protocol)
		claim(l.Listen, "listener "+quoteOr(l.Name, i), p != nil && p.Datagrams, &l.Listen)
		if p != nil && p.Beside != nil && p.Beside(l) {
			claim(l.Listen, "listener "+quoteOr(l.Name, i)+", by UDP", true, &l.Listen)
		}
	}
}

// Overlap reports whether two addresses to listen on cannot both be bound, as far as known without looking names up.
func Overlap(a, b string) bool {
	if strings.HasPrefix(a, "unix:") || strings.HasPrefix(b, "unix:") {
		return filepath.Clean(a) == filepath.Clean(b)
	}
	hostA, portA, errA := net.SplitHostPort(a)
	hostB, portB, errB := net.SplitHostPort(b)
	if errA != nil || errB != nil {
		return false
	}
	portA, portB = strings.TrimLeft(portA, "0"), strings.TrimLeft(portB, "0") // as 080 is 80; 0 is any
	return portA == portB && portA != "" && sameHost(hostA, hostB)
}

func sameHost(a, b string) bool {
	if strings.EqualFold(a, b) || a == "" || b == "" {
		return true
	}
	ipA, ipB := hostIP(a), hostIP(b)
	return ipA.IsUnspecified() || ipB.IsUnspecified() || ipA.IsValid() && ipA == ipB
}

// hostIP is the address that a host to listen on stands for; not valid if that is a name to look up.
func hostIP(host string) netip.Addr {
	if strings.EqualFold(host, "localhost") {
		host = "127.0.0.1"
	}
	ip, _ := netip.ParseAddr(host)
	return ip.Unmap()
}

// upstreamNames lists the upstreams, for suggestions.
func upstreamNames(cfg *Config) []string {
	names := make([]string, len(cfg.Upstreams))
	for i := range cfg.Upstreams {
		names[i] = cfg.Upstreams[i].Name
	}
	slices.Sort(names)
	return names
}
