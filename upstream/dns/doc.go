// Package dns is a source of endpoints for package upstream: every address that a name has in the DNS, and every target
// of an SRV record.
//
//	source, err := dns.New(dns.Config{Name: "api.internal:6443"})
//	if err != nil {
//		return err
//	}
//	up, err := upstream.New(upstream.Config[net.Conn]{
//		Name:     "api",
//		Settings: upstream.Settings{Source: source},
//		Open:     open,
//		Close:    func(c net.Conn) { c.Close() },
//	})
//
// A name is resolved again when its time to live has passed, within bounds. The hosts file comes first, then the
// servers, search domains and ndots of /etc/resolv.conf; both files are read again before each round of questions. A
// truncated answer is requested again over TCP. If a server does not answer, or refuses, the next server is asked, and
// stays the first one to ask from then on.
//
// A temporary failure changes nothing. For a name with two kinds of addresses, or a service with several targets, the
// part that failed keeps its last result. If nothing can be resolved, that is an error, and upstream keeps the last
// set. Answers are used only as addresses of other hosts: 0.0.0.0, :: and multicast addresses are left out.
//
// Other sources of the system's name service (mDNS, LDAP, NIS) are not used.
//
// Unstable until 1.0.
package dns
