package acme

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/mholt/acmez/v3"
	"github.com/mholt/acmez/v3/acme"
	"github.com/miekg/dns"
)

// Limits of dns-01 challenges.
const (
	dnsTimeout     = 10 * time.Second // of each question and update
	commandTimeout = time.Minute      // of each run of a command
	propagation    = 2 * time.Minute  // after it the authority is asked even if the record is not seen
	propagationAsk = 2 * time.Second  // between two looks
	recordTTL      = 60               // of records, in seconds
	maxCNAMEs      = 8                // from the name of a challenge to that of the record
	maxSaid        = 500              // bytes of a command's output in an error; further ones are dropped
)

// dnsPort is the port of name servers, except in tests.
var dnsPort = "53"

// resolvConf names the servers that answer questions for this machine.
var resolvConf = "/etc/resolv.conf"

// records adds and removes TXT records.
type records interface {
	set(ctx context.Context, name, value string) error
	unset(ctx context.Context, name, value string) error
}

// dnsSolver answers dns-01 challenges (RFC 8555, section 8.4) by records of the DNS.
type dnsSolver struct {
	records   records
	resolvers []string // host:port; empty: the machine's
	log       *slog.Logger
	names     sync.Map // by value: the name of a record that is set, so that it is removed where it was set
}

var (
	_ acmez.Solver = (*dnsSolver)(nil)
	_ acmez.Waiter = (*dnsSolver)(nil)
)

func newDNSSolver(s *DNS, log *slog.Logger) *dnsSolver {
	d := &dnsSolver{log: log}
	for _, r := range s.Resolvers {
		d.resolvers = append(d.resolvers, withPort(string(r)))
	}
	if s.RFC2136 != nil {
		d.records = &updates{RFC2136: s.RFC2136, server: withPort(s.RFC2136.Server)}
	} else {
		d.records = command(s.Command)
	}
	return d
}

// withPort adds the port of name servers to an address without one.
func withPort(address string) string {
	if _, _, err := net.SplitHostPort(address); err == nil {
		return address
	}
	return net.JoinHostPort(address, dnsPort)
}

// Present implements acmez.Solver.
func (d *dnsSolver) Present(ctx context.Context, c acme.Challenge) error {
	name, err := d.recordOf(ctx, c)
	if err != nil {
		return recordError{fmt.Errorf("dns: where does %s lead to: %w", c.DNS01TXTRecordName(), err)}
	}
	value := c.DNS01KeyAuthorization()
	d.names.Store(value, name)
	if err := d.records.set(ctx, name, value); err != nil {
		return recordError{fmt.Errorf("dns: set the record %s: %w", name, err)}
	}
	return nil
}

// CleanUp implements acmez.Solver. It also removes a record that could not be set, as far as the gateway knows: the answer may
// have been lost.
func (d *dnsSolver) CleanUp(ctx context.Context, c acme.Challenge) error {
	value := c.DNS01KeyAuthorization()
	known, ok := d.names.LoadAndDelete(value)
	if !ok {
		return nil
	}
	name := known.(string) //nolint:forcetypeassert // of Present
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commandTimeout)
	defer cancel()
	if err := d.records.unset(ctx, name, value); err != nil {
		d.log.Warn("acme: the record of a challenge could not be removed", "record", name, "error", err)
	}
	return nil
}

// recordError is an error of what sets records.
type recordError struct{ error }

func (e recordError) Unwrap() error { return e.error }

// Wait implements acmez.Waiter: it waits until all servers of the zone have the record.
func (d *dnsSolver) Wait(ctx context.Context, c acme.Challenge) error {
	value := c.DNS01KeyAuthorization()
	known, ok := d.names.Load(value)
	if !ok {
		return nil
	}
	name := known.(string) //nolint:forcetypeassert // of Present
	until := time.Now().Add(propagation)
	for {
		err := d.seen(ctx, name, value)
		if err == nil {
			return nil
		}
		if time.Now().After(until) {
			d.log.Warn("acme: the record of a challenge is not seen; the authority is asked to check it nevertheless", "record", name, "error", err)
			return nil
		}
		select {
		case <-time.After(propagationAsk):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// recordOf returns the name of the record for a challenge: where CNAME records lead to from the name that the authority asks for. So
// another zone can have the record.
func (d *dnsSolver) recordOf(ctx context.Context, c acme.Challenge) (string, error) {
	name := dns.Fqdn(c.DNS01TXTRecordName())
	for range maxCNAMEs {
		answer, err := d.resolve(ctx, name, dns.TypeCNAME)
		if err != nil { // it may do without CNAME records; name servers ignore a record beside one, and say nothing
			d.log.Warn("acme: no resolver says where the name of a challenge leads to; it is taken as it is", "record", name, "error", err)
			return name, nil
		}
		next := ""
		for _, rr := range answer.Answer {
			if r, ok := rr.(*dns.CNAME); ok && strings.EqualFold(r.Hdr.Name, name) {
				next = dns.CanonicalName(r.Target)
			}
		}
		if next == "" {
			return name, nil
		}
		name = next
	}
	return "", fmt.Errorf("more than %d CNAME records, or a circle of them", maxCNAMEs)
}

// seen returns an error unless all servers of the record's zone have it.
func (d *dnsSolver) seen(ctx context.Context, name, value string) error {
	zone, err := d.zoneOf(ctx, name)
	if err != nil {
		return err
	}
	answer, err := d.resolve(ctx, zone, dns.TypeNS)
	if err != nil {
		return err
	}
	servers := 0
	for _, rr := range answer.Answer {
		ns, ok := rr.(*dns.NS)
		if !ok {
			continue
		}
		servers++
		if err := d.serverHas(ctx, ns.Ns, name, value); err != nil {
			return err
		}
	}
	if servers == 0 {
		return fmt.Errorf("the zone %s has no name servers", zone)
	}
	return nil
}

// serverHas returns an error unless a name server has the record at one of its addresses.
func (d *dnsSolver) serverHas(ctx context.Context, server, name, value string) error {
	var addresses []string
	for _, kind := range []uint16{dns.TypeA, dns.TypeAAAA} {
		answer, err := d.resolve(ctx, server, kind)
		if err != nil {
			continue
		}
		for _, rr := range answer.Answer {
			switch r := rr.(type) {
			case *dns.A:
				addresses = append(addresses, r.A.String())
			case *dns.AAAA:
				addresses = append(addresses, r.AAAA.String())
			}
		}
	}
	err := fmt.Errorf("the name server %s has no address", server)
	for _, a := range addresses {
		q := new(dns.Msg).SetQuestion(name, dns.TypeTXT)
		q.RecursionDesired = false
		answer, failed := exchange(ctx, net.JoinHostPort(a, dnsPort), q)
		if failed != nil {
			err = failed
			continue
		}
		for _, rr := range answer.Answer {
			if t, ok := rr.(*dns.TXT); ok && strings.Join(t.Txt, "") == value {
				return nil
			}
		}
		err = fmt.Errorf("the name server %s (%s) does not have the record yet", server, a)
	}
	return err
}

// zoneOf returns the zone that a name belongs to.
func (d *dnsSolver) zoneOf(ctx context.Context, name string) (string, error) {
	answer, err := d.resolve(ctx, name, dns.TypeSOA)
	if err != nil {
		return "", err
	}
	return zoneIn(answer, name)
}

// zoneIn returns the zone that an answer to a question for a SOA record is from.
func zoneIn(answer *dns.Msg, name string) (string, error) {
	for _, list := range [][]dns.RR{answer.Answer, answer.Ns} {
		for _, rr := range list {
			if soa, ok := rr.(*dns.SOA); ok && soa.Hdr.Name != "." && dns.IsSubDomain(soa.Hdr.Name, name) {
				return dns.CanonicalName(soa.Hdr.Name), nil
			}
		}
	}
	return "", fmt.Errorf("no zone has the name %s", name)
}

// resolve asks the resolvers, until one answers.
func (d *dnsSolver) resolve(ctx context.Context, name string, kind uint16) (*dns.Msg, error) {
	servers := d.resolvers
	if len(servers) == 0 {
		c, err := dns.ClientConfigFromFile(resolvConf)
		if err != nil {
			return nil, err
		}
		for _, s := range c.Servers {
			servers = append(servers, net.JoinHostPort(s, c.Port))
		}
	}
	err := errors.New("no resolvers")
	for _, s := range servers {
		answer, failed := exchange(ctx, s, new(dns.Msg).SetQuestion(dns.Fqdn(name), kind))
		if failed == nil && (answer.Rcode == dns.RcodeSuccess || answer.Rcode == dns.RcodeNameError) {
			return answer, nil
		}
		if err = failed; err == nil {
			err = fmt.Errorf("%s answers %s for %s", s, dns.RcodeToString[answer.Rcode], name)
		}
	}
	return nil, err
}

// exchange asks a server, by TCP if the answer by UDP is cut off.
func exchange(ctx context.Context, server string, q *dns.Msg) (answer *dns.Msg, err error) {
	for _, network := range []string{"udp", "tcp"} {
		client := dns.Client{Net: network, Timeout: dnsTimeout}
		if answer, _, err = client.ExchangeContext(ctx, q, server); err != nil || !answer.Truncated {
			break
		}
	}
	return answer, err
}

// updates sets records by dynamic updates.
type updates struct {
	*RFC2136
	server string
}

func (u *updates) set(ctx context.Context, name, value string) error {
	return u.update(ctx, name, value, (*dns.Msg).Insert)
}

func (u *updates) unset(ctx context.Context, name, value string) error {
	return u.update(ctx, name, value, (*dns.Msg).Remove)
}

// update sends an update (RFC 2136) that is signed with the key (RFC 8945), if there is one.
func (u *updates) update(ctx context.Context, name, value string, change func(*dns.Msg, []dns.RR)) error {
	q := new(dns.Msg).SetQuestion(name, dns.TypeSOA)
	q.RecursionDesired = false
	answer, err := exchange(ctx, u.server, q)
	if err != nil {
		return err
	}
	zone, err := zoneIn(answer, name)
	if err != nil {
		return fmt.Errorf("%s: %w (%s)", u.server, err, dns.RcodeToString[answer.Rcode])
	}
	m := new(dns.Msg).SetUpdate(zone)
	change(m, []dns.RR{&dns.TXT{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeTXT, Class: dns.ClassINET, Ttl: recordTTL}, Txt: []string{value}}})
	client := dns.Client{Net: "tcp", Timeout: dnsTimeout}
	if u.Key != "" {
		key := dns.CanonicalName(u.Key)
		client.TsigSecret = map[string]string{key: u.Secret.Reveal()}
		m.SetTsig(key, string(u.Algorithm)+".", 300, time.Now().Unix())
	}
	if answer, _, err = client.ExchangeContext(ctx, m, u.server); err != nil {
		return fmt.Errorf("update of %s: %w", zone, err)
	}
	if answer.Rcode != dns.RcodeSuccess {
		return fmt.Errorf("the server %s refuses the update of %s: %s", u.server, zone, dns.RcodeToString[answer.Rcode])
	}
	return nil
}

// command sets records by a program.
type command []string

func (c command) set(ctx context.Context, name, value string) error {
	return c.run(ctx, "set", name, value)
}

func (c command) unset(ctx context.Context, name, value string) error {
	return c.run(ctx, "unset", name, value)
}

// run runs the program with three arguments more: what to do, the name without a dot at its end, the value.
func (c command) run(ctx context.Context, do, name, value string) error {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	args := append(append([]string{}, c[1:]...), do, strings.TrimSuffix(name, "."), value)
	var out said
	cmd := exec.CommandContext(ctx, c[0], args...) //nolint:gosec // the configuration names it
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = time.Second // of a process that it has left behind
	alone(cmd)
	err := cmd.Run()
	switch {
	case err == nil, errors.Is(err, exec.ErrWaitDelay) && ctx.Err() == nil: // the latter: it has left a process behind
		return nil
	case ctx.Err() != nil:
		err = ctx.Err()
	}
	return fmt.Errorf("%s %s: %w: %s", c[0], do, err, strings.ToValidUTF8(strings.TrimSpace(string(out)), "…"))
}

// said is the beginning of what a program prints.
type said []byte

func (s *said) Write(p []byte) (int, error) {
	*s = append(*s, p[:min(len(p), maxSaid-len(*s))]...)
	return len(p), nil
}
