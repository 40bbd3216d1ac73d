package sources

import (
	"strings"
	"time"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/upstream"
	"github.com/headpond/headpond/upstream/dns"
)

// DNS is the section "dns" of "discover".
type DNS struct {
	Name    string        `conf:"name" required:"true"` // host:port; with type srv the name of the record
	Type    DNSType       `conf:"type" default:"any"`
	Servers []string      `conf:"servers" maxlen:"16"`                       // empty: the servers of /etc/resolv.conf
	MinTTL  time.Duration `conf:"min_ttl" default:"5s" min:"10ms" max:"24h"` // least time between two questions
	MaxTTL  time.Duration `conf:"max_ttl" default:"5m" min:"10ms" max:"24h"` // longest time between two questions
	Timeout time.Duration `conf:"timeout" default:"2s" min:"10ms" max:"1m"`  // of a question to a server
}

// DNSType says which records are asked for.
type DNSType string

// Values lists what may be written.
func (DNSType) Values() []string { return []string{"any", "a", "aaaa", "srv"} }

func init() {
	config.RegisterSource(config.SourceKind{
		Name: "dns", Section: &DNS{}, Scalar: "Name", Default: defaultServerName, Check: checkDNS, Host: host,
		New: func(u *config.Upstream) (upstream.Source, error) {
			s := config.DiscoverAs[DNS](u)
			t, err := dns.ParseType(string(s.Type))
			if err != nil {
				return nil, err
			}
			return dns.New(dns.Config{Name: s.Name, Type: t, Servers: s.Servers, MinTTL: s.MinTTL, MaxTTL: s.MaxTTL, Timeout: s.Timeout})
		},
	})
}

// defaultServerName has certificates checked against the resolved name: they do not have the
// addresses.
func defaultServerName(u *config.Upstream) {
	if u.TLS != nil && u.TLS.ServerName == "" {
		u.TLS.ServerName = host(u)
	}
}

// host returns the resolved name. For a SRV record it is the domain, not the targets: only the DNS
// vouches for these.
func host(u *config.Upstream) string {
	s := config.DiscoverAs[DNS](u)
	t, err := dns.ParseType(string(s.Type))
	if err != nil {
		return "" // checkDNS reports it
	}
	name, _, err := dns.SplitName(s.Name, t)
	if err != nil {
		return ""
	}
	for t == dns.SRV && strings.HasPrefix(name, "_") {
		_, name, _ = strings.Cut(name, ".")
	}
	return strings.TrimSuffix(name, ".")
}

func checkDNS(c *config.Checker, u *config.Upstream) {
	s := config.DiscoverAs[DNS](u)
	t, err := dns.ParseType(string(s.Type))
	if err != nil || !c.NoProblemAt(&s.Type, &s.Name) {
		return // reported already
	}
	if _, _, err := dns.SplitName(s.Name, t); err != nil && c.Written(&s.Name) {
		c.Report(c.Mark(&s.Name), "name: %v", err)
	}
	for i := range s.Servers {
		if _, err := dns.ServerAddress(s.Servers[i]); err != nil {
			c.Report(c.Mark(&s.Servers[i]), "servers: %v", err)
		}
	}
	if s.MinTTL > s.MaxTTL {
		c.Report(c.Mark(&s.MinTTL, &s.MaxTTL), "min_ttl: %v is more than max_ttl: %v", s.MinTTL, s.MaxTTL)
	}
}
