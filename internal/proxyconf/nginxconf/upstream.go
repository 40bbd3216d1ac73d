package nginxconf

import (
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headpond/headpond/internal/proxyconf"
	"github.com/headpond/headpond/internal/yamltext"
)

func quoteMeta(text string) string { return regexp.QuoteMeta(text) }

// serverAddress returns the address of an endpoint.
func serverAddress(text, port string) (string, bool) {
	if path, ok := strings.CutPrefix(text, "unix:"); ok {
		return text, strings.HasPrefix(path, "/") && plain(path) && len(path) <= 100
	}
	host := text
	if i := strings.LastIndexByte(text, ':'); i >= 0 && !strings.HasSuffix(text, "]") {
		host, port = text[:i], text[i+1:]
	}
	host = strings.Trim(host, "[]")
	n, err := strconv.ParseUint(port, 10, 16)
	return net.JoinHostPort(host, port), err == nil && n > 0 && (net.ParseIP(host) != nil || isHost(strings.ToLower(host)))
}

// endpoints sets the servers of an upstream, and how one is chosen.
func (c *converter) endpoints(u *proxyconf.Upstream, block *directive, port string) {
	fails, timeout := "1", 10*time.Second
	for i, d := range block.all("server") {
		address, ok := serverAddress(d.arg(1), port)
		if !ok {
			c.missing(d, "an endpoint has an address, or the name of a host, and one port")
			continue
		}
		e := proxyconf.Endpoint{Address: address, From: d.at}
		down := false
		for _, w := range d.words[2:] {
			name, value, _ := strings.Cut(w, "=")
			n, err := strconv.Atoi(value)
			switch {
			case name == "weight" && err == nil && n > 0 && n < 65536:
				e.Weight = n
			case name == "backup":
				e.Priority = 1
			case name == "down":
				down = true
			case name == "max_fails" && err == nil && n >= 0 && n <= 1_000_000:
				if i > 0 && value != fails {
					c.differs(d, "max_fails: all endpoints of an upstream have that of the last server")
				}
				fails = value
			case name == "fail_timeout":
				if t, ok := parseTime(value, time.Second); ok {
					timeout = t
				}
			case name == "max_conns" && err == nil && n > 0:
				u.Settings.Set("pool/max_size", strconv.Itoa(min(n, 1_000_000)), d.at)
			case name == "resolve":
				c.itself(d, "names are looked up again while the gateway runs, with discover: {dns: …}")
			case name == "slow_start":
				c.missing(d, "slow_start is a key of the upstream")
			default:
				c.missing(d, "%q: the gateway has no such option", w)
			}
		}
		if down {
			c.differs(d, "it is down, and left out; headpond ctl endpoint takes endpoints out and in")
			continue
		}
		if slices.ContainsFunc(u.Endpoints, func(o proxyconf.Endpoint) bool { return o.Address == e.Address }) {
			c.differs(d, "the endpoint is there already")
			continue
		}
		if u.Endpoints = append(u.Endpoints, e); len(u.Endpoints) == 1000 {
			break
		}
	}
	c.balance(u, block)
	timeout = min(max(timeout, time.Millisecond), time.Minute)
	u.Settings.Default("eject/failures", fails, "max_fails, by default 1")
	u.Settings.Default("eject/base", yamltext.Short(timeout), "fail_timeout, by default 10s")
}

// balance sets how an endpoint is chosen.
func (c *converter) balance(u *proxyconf.Upstream, block *directive) {
	u.Settings.Default("balance", "round_robin", "nginx's default")
	for _, d := range block.block {
		switch d.name() {
		case "least_conn", "random":
			u.Settings.Set("balance", "p2c", d.at)
		case "ip_hash":
			u.Settings.Set("balance", "ring_hash", d.at)
		case "hash":
			header, isHeader := strings.CutPrefix(d.arg(1), "$http_")
			cookie, isCookie := strings.CutPrefix(d.arg(1), "$cookie_")
			switch {
			case d.arg(1) == "$remote_addr" || d.arg(1) == "$binary_remote_addr":
				u.Settings.Set("balance", "ring_hash", d.at)
			case isHeader && isHost(header):
				u.Settings.Set("balance", "ring_hash", d.at)
				u.Settings.Set("-affinity", "{header: "+yamltext.Quote(strings.ReplaceAll(header, "_", "-"))+", max_load: 0}", d.at)
			case isCookie && isHost(strings.ToLower(cookie)):
				u.Settings.Set("balance", "ring_hash", d.at)
				u.Settings.Set("-affinity", "{cookie: "+yamltext.Quote(cookie)+"}", d.at)
			default:
				c.missing(d, "requests are spread evenly; affinity of a route goes by a header or cookie, and balance: ring_hash by the address")
			}
		case "keepalive", "keepalive_requests", "keepalive_timeout", "keepalive_time", "zone", "state":
			c.itself(d, "connections are shared and reused, always")
		case "server":
		default:
			c.missing(d, "an upstream of the gateway has no such option")
		}
	}
}

// parseTime reads a time, such as 1h30m.
func parseTime(text string, unit time.Duration) (sum time.Duration, ok bool) {
	units := map[string]time.Duration{"": unit, "ms": time.Millisecond, "s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour, "w": 7 * 24 * time.Hour, "M": 30 * 24 * time.Hour, "y": 365 * 24 * time.Hour}
	for text != "" {
		n := strings.IndexFunc(text, func(c rune) bool { return c < '0' || c > '9' })
		if n < 0 {
			n = len(text)
		}
		number, err := strconv.ParseUint(text[:n], 10, 31)
		text = text[n:]
		m := strings.IndexFunc(text, func(c rune) bool { return c >= '0' && c <= '9' })
		if m < 0 {
			m = len(text)
		}
		u, known := units[text[:m]]
		if err != nil || !known || number > 1_000_000_000 {
			return 0, false
		}
		sum += min(time.Duration(min(number, 10_000_000))*min(u, 24*time.Hour), 1000*24*time.Hour)
		text, ok = text[m:], true
	}
	return sum, ok
}

// duration returns a time of the gateway within its bounds.
func (c *converter) duration(d *directive, i int, atLeast, atMost time.Duration) (string, bool) {
	t, ok := parseTime(d.arg(i), time.Second)
	if !ok {
		c.missing(d, "%q is not a time", d.arg(i))
		return "", false
	}
	if bound := min(max(t, atLeast), atMost); bound != t {
		c.differs(d, "it is %s, from a range of %s to %s", yamltext.Short(bound), yamltext.Short(atLeast), yamltext.Short(atMost))
		t = bound
	}
	return yamltext.Short(t), true
}

// size reads a size, such as 10m.
func size(text string) (int64, bool) {
	shift := 0
	switch {
	case strings.HasSuffix(text, "k"), strings.HasSuffix(text, "K"):
		shift = 10
	case strings.HasSuffix(text, "m"), strings.HasSuffix(text, "M"):
		shift = 20
	case strings.HasSuffix(text, "g"), strings.HasSuffix(text, "G"):
		shift = 30
	}
	n, err := strconv.ParseInt(strings.TrimRight(text, "kKmMgG"), 10, 32)
	return n << shift, err == nil && n >= 0
}
