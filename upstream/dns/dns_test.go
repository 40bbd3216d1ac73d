package dns_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	wire "github.com/miekg/dns"

	"github.com/headpond/headpond/internal/sourcetest"
	"github.com/headpond/headpond/upstream/dns"
)

func itoa(n int) string { return strconv.Itoa(n) }

// TestAddresses follows a name through changes: every address is an endpoint, in an order of our own.
func TestAddresses(t *testing.T) {
	s := newServer(t)
	s.set("api.test. 0 A 127.0.0.3", "api.test. 0 A 127.0.0.2", "api.test. 0 AAAA ::1", "api.test. 0 A 0.0.0.0", "api.test. 0 A 224.0.0.1")
	w := watch(t, dns.Config{Name: "api.test:6443"}, s)
	r := w.Until("127.0.0.2:6443 127.0.0.3:6443 [::1]:6443")
	if r.Set[0].Metadata["name"] != "api.test" {
		t.Errorf("metadata: %v", r.Set[0].Metadata)
	}
	s.set("api.test. 0 CNAME alias.test.", "alias.test. 0 CNAME ALIAS2.test.", "alias2.test. 0 A 127.0.0.9", "other.test. 0 A 127.0.0.8")
	w.Until("127.0.0.9:6443")
	s.set("api.test. 0 TXT hello")
	if r := w.Until("!"); !strings.Contains(r.Err.Error(), "no such host") {
		t.Errorf("a name without addresses: %v", r.Err)
	}
	s.set()
	w.Until("!")
	s.set("api.test. 0 A 127.0.0.7")
	w.Until("127.0.0.7:6443")
	s.set("api.test. 0 CNAME a.test.", "a.test. 0 CNAME api.test.")
	w.Until("!")
}

func TestTypes(t *testing.T) {
	s := newServer(t)
	s.set("api.test. 0 A 127.0.0.2", "api.test. 0 AAAA ::1", "api.test. 0 AAAA ::", "api.test. 0 AAAA ::ffff:127.0.0.4")
	watch(t, dns.Config{Name: "api.test:1", Type: dns.A}, s).Until("127.0.0.2:1")
	watch(t, dns.Config{Name: "api.test.:1", Type: dns.AAAA}, s).Until("127.0.0.4:1 [::1]:1")
	for _, q := range s.questions() {
		if !strings.HasPrefix(q, "udp api.test. A") {
			t.Errorf("asked for %s", q)
		}
	}
}

// TestNoRoute: a machine without a route leaves an address out, unless there is no other.
func TestNoRoute(t *testing.T) {
	s := newServer(t)
	// An address within loopback's network on another interface's scope has no route anywhere.
	s.set("api.test. 0 A 127.0.0.2", "api.test. 0 AAAA fe80::1", "only.test. 0 AAAA fe80::1")
	watch(t, dns.Config{Name: "api.test:1"}, s).Until("127.0.0.2:1")
	watch(t, dns.Config{Name: "only.test:1"}, s).Until("[fe80::1]:1")
}

func TestService(t *testing.T) {
	s := newServer(t)
	s.set("_pg._tcp.test. 0 SRV 0 60 5432 a.test.", "_pg._tcp.test. 0 SRV 0 40 5433 b.test.", "_pg._tcp.test. 0 SRV 1 0 5432 c.test.",
		"a.test. 0 A 127.0.0.1", "a.test. 0 A 127.0.0.4", "b.test. 0 A 127.0.0.2", "c.test. 0 AAAA ::1")
	w := watch(t, dns.Config{Name: "_pg._tcp.test", Type: dns.SRV}, s)
	r := w.Until("127.0.0.1:5432*60 127.0.0.2:5433*40 127.0.0.4:5432*60 [::1]:5432@1")
	if name := r.Set[1].Metadata["name"]; name != "b.test" {
		t.Errorf("the target of %v is %q", r.Set[1], name)
	}
	// A target without an address is removed; one that cannot be resolved stays, and both are reported.
	s.set("_pg._tcp.test. 0 SRV 0 60 5432 a.test.", "_pg._tcp.test. 0 SRV 0 40 5433 b.test.", "_pg._tcp.test. 0 SRV 1 0 5432 c.test.",
		"a.test. 0 A 127.0.0.1", "b.test. 0 TXT gone")
	s.behave(func(_ string, req, resp *wire.Msg) *wire.Msg {
		if strings.HasPrefix(req.Question[0].Name, "c.") {
			resp.Rcode = wire.RcodeServerFailure
		}
		return resp
	})
	w.Until("127.0.0.1:5432*60 [::1]:5432@1 !")
	s.behave(nil)
	w.Until("127.0.0.1:5432*60 !")
	s.set("_pg._tcp.test. 0 SRV 0 0 0 .")
	w.Until("!")
	s.set()
	w.Until("!")
}

// TestPartOfAName: while one kind of addresses cannot be resolved it stays as it was, and the other follows.
func TestPartOfAName(t *testing.T) {
	s := newServer(t)
	broken := func(_ string, req, resp *wire.Msg) *wire.Msg {
		if req.Question[0].Qtype == wire.TypeAAAA {
			return new(wire.Msg).SetRcode(req, wire.RcodeServerFailure)
		}
		return resp
	}
	s.set("api.test. 0 A 127.0.0.2", "api.test. 0 AAAA ::1")
	s.behave(broken)
	w := watch(t, dns.Config{Name: "api.test:1"}, s)
	w.Until("127.0.0.2:1") // its AAAA was never known
	s.behave(nil)
	w.Until("127.0.0.2:1 [::1]:1")
	s.behave(broken)
	w.Until("127.0.0.2:1 [::1]:1 !")
	s.set("api.test. 0 A 127.0.0.3")
	w.Until("127.0.0.3:1 [::1]:1 !")
	s.behave(nil)
	w.Until("127.0.0.3:1")
}

// TestTimeToLive: a name is resolved again when its answer has expired, not sooner than MinTTL and not later than
// MaxTTL.
func TestTimeToLive(t *testing.T) {
	for _, test := range []struct {
		ttl, low, high int // milliseconds, but ttl in seconds
		least, most    time.Duration
	}{
		{0, 300, 5000, 300 * time.Millisecond, time.Minute},
		{3600, 100, 400, 400 * time.Millisecond, time.Minute},
		{1, 50, 60_000, time.Second, time.Minute},
	} {
		s := newServer(t)
		s.set("api.test. "+itoa(test.ttl)+" CNAME a.test.", "a.test. "+itoa(test.ttl+1)+" A 127.0.0.2")
		s.behave(func(_ string, _, resp *wire.Msg) *wire.Msg {
			time.Sleep(20 * time.Millisecond) // the server is far away: an answer's time to live begins when it is received
			return resp
		})
		w := watch(t, dns.Config{
			Name: "api.test:1", Type: dns.A,
			MinTTL: time.Duration(test.low) * time.Millisecond, MaxTTL: time.Duration(test.high) * time.Millisecond,
		}, s)
		w.Next()
		begin := time.Now()
		w.Next()
		least := test.least - 50*time.Millisecond
		if took := time.Since(begin); took < least {
			t.Errorf("ttl %ds within %d to %d ms: asked again after %v", test.ttl, test.low, test.high, took)
		}
		if q := s.questions(); len(q) > 1+int(time.Since(begin)/least) { // two, or more on a busy machine
			t.Errorf("asked %q within %v", q, time.Since(begin))
		}
	}
}

// TestFailOver: failures of a server are no answers; the next one is asked, and from then on first.
func TestFailOver(t *testing.T) {
	wrong := func(_ string, req, resp *wire.Msg) *wire.Msg {
		resp.Question[0].Name = "evil.test."
		resp.Answer = []wire.RR{&wire.A{Hdr: wire.RR_Header{Name: "api.test.", Rrtype: wire.TypeA, Class: wire.ClassINET}, A: []byte{127, 6, 6, 6}}}
		return resp
	}
	refer := func(_ string, req, resp *wire.Msg) *wire.Msg {
		resp.RecursionAvailable, resp.Rcode, resp.Answer = false, wire.RcodeSuccess, nil
		return resp
	}
	for name, behaviour := range map[string]func(string, *wire.Msg, *wire.Msg) *wire.Msg{
		"silent": silent, "fails": says(wire.RcodeServerFailure), "refuses": says(wire.RcodeRefused), "wrong": wrong, "refers": refer,
	} {
		t.Run(name, func(t *testing.T) {
			first, second := newServer(t), newServer(t)
			first.behave(behaviour)
			second.set("api.test. 0 A 127.0.0.2")
			timeout := sourcetest.Patience // of a server that works on a busy machine
			if name == "silent" {
				timeout = time.Second
			}
			w := watch(t, dns.Config{Name: "api.test:1", Type: dns.A, Timeout: timeout}, first, second)
			w.Until("127.0.0.2:1")
			w.Until("127.0.0.2:1")
			if n := len(first.questions()); n != 1 {
				t.Errorf("the server that fails was asked %d times", n)
			}
			second.behave(behaviour)
			if r := w.Until("127.0.0.2:1 !"); !strings.Contains(r.Err.Error(), second.addr) && !strings.Contains(r.Err.Error(), first.addr) {
				t.Errorf("%v names no server", r.Err)
			}
			first.set("api.test. 0 A 127.0.0.3")
			first.behave(nil)
			w.Until("127.0.0.3:1")
		})
	}
}

// TestClosedPort: the name server's port is closed.
func TestClosedPort(t *testing.T) {
	s := newServer(t)
	s.set("api.test. 0 A 127.0.0.2")
	w := watch(t, dns.Config{Name: "api.test:1", Servers: []string{"127.0.0.1:1"}, Timeout: time.Second}, s)
	w.Until("127.0.0.2:1")
}

// TestTruncated: an answer that does not fit is asked for again over TCP, and all of it counts.
func TestTruncated(t *testing.T) {
	s := newServer(t)
	var records []string
	for i := range 200 {
		records = append(records, fmt.Sprintf("api.test. 0 A 127.0.1.%d", i+1))
	}
	s.set(records...)
	s.behave(func(network string, req, resp *wire.Msg) *wire.Msg {
		if network == "udp" {
			size := uint16(wire.MinMsgSize)
			if opt := req.IsEdns0(); opt != nil {
				size = opt.UDPSize()
			}
			resp.Truncate(int(size))
		}
		return resp
	})
	w := watch(t, dns.Config{Name: "api.test:1", Type: dns.A}, s)
	if r := w.Next(); len(r.Set) != 200 {
		t.Errorf("%d endpoints, want 200: %v", len(r.Set), r.Err)
	}
	if q := s.questions(); !slices.Equal(q[:2], []string{"udp api.test. A", "tcp api.test. A"}) {
		t.Errorf("asked %q", q)
	}
}

// TestOldServer does not know EDNS.
func TestOldServer(t *testing.T) {
	s := newServer(t)
	s.set("api.test. 0 A 127.0.0.2")
	s.behave(func(_ string, req, resp *wire.Msg) *wire.Msg {
		if req.IsEdns0() != nil {
			return new(wire.Msg).SetRcodeFormatError(req)
		}
		return resp
	})
	watch(t, dns.Config{Name: "api.test:1"}, s).Until("127.0.0.2:1")
}

// TestSystem: hosts file, search domains and ndots, and that the files are read again.
func TestSystem(t *testing.T) {
	s := newServer(t)
	s.set("api.one.test. 0 A 127.0.0.1", "api.two.test. 0 A 127.0.0.2", "api.sub. 0 A 127.0.0.3", "api.sub.one.test. 0 A 127.0.0.4")
	cfg := dns.Config{Name: "api:1"}
	files(t, &cfg, "", "search zero.test one.test two.test\n")
	w := watch(t, cfg, s)
	w.Until("127.0.0.1:1")
	if err := os.WriteFile(cfg.ResolvConf, []byte("search two.test\noptions ndots:3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.Until("127.0.0.2:1")
	if err := os.WriteFile(cfg.Hosts, []byte("# here\n127.0.0.8 other API # comment\nnonsense api\n::1 api\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.Until("127.0.0.8:1 [::1]:1")
	if err := os.Remove(cfg.Hosts); err != nil {
		t.Fatal(err)
	}
	w.Until("127.0.0.2:1")

	dotted := dns.Config{Name: "api.sub:1"}
	files(t, &dotted, "", "search one.test\n")
	watch(t, dotted, s).Until("127.0.0.3:1")
	files(t, &dotted, "", "search one.test\noptions ndots:2\n")
	watch(t, dotted, s).Until("127.0.0.4:1")
	dotted.Name = "api.sub.:1"
	watch(t, dotted, s).Until("127.0.0.3:1")

	// A search domain that cannot be asked about is no reason to take the next one.
	s.behave(func(_ string, req, resp *wire.Msg) *wire.Msg {
		if strings.HasSuffix(req.Question[0].Name, ".one.test.") {
			return nil
		}
		return resp
	})
	files(t, &cfg, "", "search one.test two.test\n")
	cfg.Timeout = 50 * time.Millisecond
	watch(t, cfg, s).Until("!")
	cfg.Servers = nil
	if r := watch(t, cfg).Next(); r.Err == nil || !strings.Contains(r.Err.Error(), "no DNS server") {
		t.Errorf("without servers: %v", r.Err)
	}
}

func TestConfigErrors(t *testing.T) {
	for _, cfg := range []dns.Config{
		{}, {Name: "api"}, {Name: "api:0"}, {Name: "api:http"}, {Name: "10.0.0.1:80"}, {Name: "[::1]:80"}, {Name: "a..b:80"}, {Name: ".:80"},
		{Name: "a b:80"}, {Name: "http://api:80"}, {Name: "api:80", Type: 7}, {Name: "api:80", Type: dns.SRV}, {Name: "api:80", MinTTL: -1},
		{Name: "api:80", Timeout: -1}, {Name: "api:80", Servers: []string{"ns.test"}}, {Name: "api:80", Servers: []string{"10.0.0.1:0"}},
	} {
		if _, err := dns.New(cfg); !errors.Is(err, dns.ErrConfig) {
			t.Errorf("%+v: got %v, want ErrConfig", cfg, err)
		}
	}
	s, err := dns.New(dns.Config{Name: "_pg._tcp.db", Type: dns.SRV, Servers: []string{"10.0.0.1", "fe80::1%eth0", "[::1]:5353"}})
	if err != nil || s.String() != "dns srv _pg._tcp.db" {
		t.Errorf("%v %v", s, err)
	}
	for _, typ := range []dns.Type{dns.Any, dns.A, dns.AAAA, dns.SRV} {
		if got, err := dns.ParseType(typ.String()); got != typ || err != nil {
			t.Errorf("%v: %v %v", typ, got, err)
		}
	}
	if _, err := dns.ParseType("mx"); !errors.Is(err, dns.ErrConfig) {
		t.Errorf("mx: %v", err)
	}
}
