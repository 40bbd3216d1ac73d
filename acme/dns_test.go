package acme_test

import (
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/headpond/headpond/acme"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/freeport"
)

// secret is that of the key by which named accepts updates.
const secret = "c2VjcmV0IG9mIHRoZSB0ZXN0IG9mIGhlYWRwb25kISE="

// recordVariable makes this test's program one that sets records, for "command" under "dns": it has the address of named.
const recordVariable = "HEADPOND_TEST_RECORD"

// changeRecord sets or removes a record.
func changeRecord(server string, args []string) int {
	if len(args) != 4 || args[0] != "-first" {
		fmt.Fprintf(os.Stderr, "wrong arguments: %q\n", args)
		return 1
	}
	rr, err := dns.NewRR(fmt.Sprintf("%s. 60 IN TXT %q", args[2], args[3]))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	m := new(dns.Msg).SetUpdate("pond.test.")
	if args[1] == "set" {
		m.Insert([]dns.RR{rr})
	} else {
		m.Remove([]dns.RR{rr})
	}
	m.SetTsig("headpond.", dns.HmacSHA256, 300, time.Now().Unix())
	client := dns.Client{Net: "tcp", TsigSecret: map[string]string{"headpond.": secret}}
	if answer, _, err := client.Exchange(m, server); err != nil || answer.Rcode != dns.RcodeSuccess {
		fmt.Fprintln(os.Stderr, answer, err)
		return 1
	}
	return 0
}

// startNamed starts a name server for pond.test and other.test, which takes updates by the key headpond, and has the gateway ask
// it. It returns its address.
func startNamed(t *testing.T) string {
	t.Helper()
	named, err := exec.LookPath("named")
	if err != nil {
		if named = "/usr/sbin/named"; exec.Command(named, "-V").Run() != nil {
			t.Fatal("no named; run make test-deps")
		}
	}
	port, err := freeport.Get()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	const zone = "$TTL 60\n@ SOA ns h 1 60 60 60 60\n NS ns\nns A 127.0.0.1\n"
	for name, text := range map[string]string{
		"pond.test":   zone + "_acme-challenge.alias CNAME record.other.test.\n_acme-challenge.circle CNAME a.circle\na.circle CNAME _acme-challenge.circle\n",
		"other.test":  zone,
		"resolv.conf": "nameserver 127.0.0.1\n",
		"named.conf": fmt.Sprintf(`options { directory %q; listen-on port %d { 127.0.0.1; }; listen-on-v6 { none; }; recursion yes; pid-file none; session-keyfile none; dnssec-validation no; };
controls {};
key headpond { algorithm hmac-sha256; secret %q; };
zone "." { type primary; file "root"; };
zone pond.test { type primary; file "pond.test"; allow-update { key headpond; }; };
zone other.test { type primary; file "other.test"; allow-update { key headpond; }; };
`, dir, port, secret),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	said := &conntest.Log{}
	cmd := exec.Command(named, "-g", "-n", "1", "-c", filepath.Join(dir, "named.conf"))
	cmd.Stdout, cmd.Stderr = said, said
	conntest.Start(t, cmd)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("named:\n%s", said)
		}
	})
	t.Cleanup(acme.SetDNSPort(strconv.Itoa(port), filepath.Join(dir, "resolv.conf")))
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	conntest.Eventually(t, "named answers", func() bool { _, err := texts(address, "pond.test."); return err == nil })
	return address
}

// texts returns the TXT records of a name.
func texts(server, name string) (all []string, err error) {
	client := dns.Client{Net: "tcp"}
	answer, _, err := client.Exchange(new(dns.Msg).SetQuestion(name, dns.TypeTXT), server)
	if err != nil {
		return nil, err
	}
	for _, rr := range answer.Answer {
		if t, ok := rr.(*dns.TXT); ok {
			all = append(all, t.Txt...)
		}
	}
	return all, nil
}

// withDNS is the section "acme" with "dns", and one listener whom no authority reaches.
func (p *pebble) withDNS(folder, by, names string) string {
	return strings.TrimSuffix(p.section(folder), "}\n") + fmt.Sprintf(`, dns: %s}
listeners:
  - {name: t, protocol: tcp, listen: "127.0.0.1:0", upstream: db, tls: {acme: %s}}
upstreams:
  db: {endpoints: ["127.0.0.1:1"]}
`, by, names)
}

// byUpdates is "dns" with dynamic updates.
func byUpdates(server, key string) string {
	return fmt.Sprintf(`{rfc2136: {server: %q, key: headpond, secret: %q}, resolvers: [%q]}`, server, key, server)
}

// TestDNSChallenge: names and wildcards are checked by records in the zones of a name server, which are gone afterwards. A name's own
// certificate goes before that of a wildcard.
func TestDNSChallenge(t *testing.T) {
	server := startNamed(t)
	p := startPebble(t, pebbleConfig{Resolver: server})
	g := run(t, filepath.Join(t.TempDir(), "acme"), p.withDNS(filepath.Join(t.TempDir(), "acme"), byUpdates(server, secret),
		`[pond.test, "*.pond.test", www.pond.test, alias.pond.test]`))
	for _, name := range []string{"pond.test", "*.pond.test", "www.pond.test", "alias.pond.test"} {
		g.certified(name)
	}
	roots := p.roots(t)
	for name, want := range map[string]string{
		"pond.test": "pond.test", "www.pond.test": "www.pond.test", "x.pond.test": "*.pond.test", "X.Pond.Test": "*.pond.test", "alias.pond.test": "alias.pond.test",
	} {
		cert, err := shake(g.Addr("t"), name, roots)
		if err != nil || len(cert.DNSNames) != 1 || cert.DNSNames[0] != want {
			t.Errorf("%s: %v, want that of %s", name, namesIn(cert, err), want)
		}
	}
	for _, name := range []string{"x.y.pond.test", "pond.testx", "other.test"} {
		if cert, err := shake(g.Addr("t"), name, roots); err == nil {
			t.Errorf("%s: the certificate of %v", name, cert.DNSNames)
		}
	}
	for _, name := range []string{"_acme-challenge.pond.test.", "_acme-challenge.www.pond.test.", "record.other.test."} {
		if all, err := texts(server, name); err != nil || len(all) > 0 {
			t.Errorf("%s: %q, %v; want no record", name, all, err)
		}
	}
}

// TestWildcardMeanwhile: a wildcard serves a name that has no certificate of its own yet.
func TestWildcardMeanwhile(t *testing.T) {
	server := startNamed(t)
	p := startPebble(t, pebbleConfig{Resolver: server})
	g := run(t, filepath.Join(t.TempDir(), "acme"), p.withDNS(filepath.Join(t.TempDir(), "acme"), byUpdates(server, secret), `["*.pond.test", circle.pond.test]`))
	g.certified("*.pond.test")
	cert, err := shake(g.Addr("t"), "circle.pond.test", p.roots(t))
	if err != nil || cert.DNSNames[0] != "*.pond.test" {
		t.Errorf("%v, want that of *.pond.test", namesIn(cert, err))
	}
}

func namesIn(c *x509.Certificate, err error) any {
	if err != nil {
		return err
	}
	return c.DNSNames
}

// TestDNSCommand: a program sets the records, and what it says is in the log if it fails.
func TestDNSCommand(t *testing.T) {
	server := startNamed(t)
	p := startPebble(t, pebbleConfig{Resolver: server})
	t.Setenv(recordVariable, server)
	by := func(first string) string {
		return fmt.Sprintf(`{command: [%q, %q], resolvers: [%q]}`, os.Args[0], first, server)
	}
	bad := run(t, filepath.Join(t.TempDir(), "acme"), p.withDNS(filepath.Join(t.TempDir(), "bad"), by("-wrong"), "www.pond.test"))
	conntest.Eventually(t, "the failure is in the log", func() bool {
		return bad.log.Line("no certificate was obtained", "wrong arguments", "set", `look at \"dns\"`) != ""
	})
	g := run(t, filepath.Join(t.TempDir(), "acme"), p.withDNS(filepath.Join(t.TempDir(), "good"), by("-first"), "www.pond.test"))
	g.certified("www.pond.test")
	if all, err := texts(server, "_acme-challenge.www.pond.test."); err != nil || len(all) > 0 {
		t.Errorf("%q, %v; want no record", all, err)
	}
}

// TestDNSRefused: a name server does not take the key, or has no such zone.
func TestDNSRefused(t *testing.T) {
	server := startNamed(t)
	p := startPebble(t, pebbleConfig{Resolver: server})
	for name, want := range map[string]string{"www.pond.test": "dns: set the record _acme-challenge.www.pond.test.", "www.nowhere.test": "no zone has the name",
		"circle.pond.test": "or a circle of them"} {
		g := run(t, filepath.Join(t.TempDir(), "acme"), p.withDNS(filepath.Join(t.TempDir(), "acme"), byUpdates(server, strings.ToUpper(secret[:8])+secret[8:]), name))
		conntest.Eventually(t, "the failure is in the log", func() bool {
			return g.log.Line("no certificate was obtained", want, `look at \"dns\"`) != ""
		})
	}
}

// TestExternalAccount: an authority that serves its customers only.
func TestExternalAccount(t *testing.T) {
	p := startPebble(t, pebbleConfig{EAB: "c2VjcmV0IG9mIGEgY3VzdG9tZXIsIG9mIDMyIGJ5dGVzIQ"})
	listeners := twoListenersFor("a.test", "127.0.0.1:1")
	without := run(t, filepath.Join(t.TempDir(), "acme"), p.section(filepath.Join(t.TempDir(), "acme"))+listeners)
	conntest.Eventually(t, "the log says what is missing", func() bool { return without.log.Line("externalAccountRequired", `set \"eab\"`) != "" })
	with := strings.TrimSuffix(p.section(filepath.Join(t.TempDir(), "acme")), "}\n") + `, eab: {key_id: customer, hmac_key: c2VjcmV0IG9mIGEgY3VzdG9tZXIsIG9mIDMyIGJ5dGVzIQ==}}` + "\n"
	g := run(t, filepath.Join(t.TempDir(), "acme"), with+listeners)
	p.tls.to(g.Addr("h"))
	g.certified("a.test")
}
