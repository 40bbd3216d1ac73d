package dns_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	wire "github.com/miekg/dns"

	"github.com/headpond/headpond/internal/leaktest"
	"github.com/headpond/headpond/internal/sourcetest"
	"github.com/headpond/headpond/upstream/dns"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// server is a DNS server on loopback, over UDP and TCP. Its behaviour may change while it runs.
type server struct {
	addr string

	mu      sync.Mutex
	records map[string][]wire.RR // by "name type", lower case
	names   map[string]bool
	reply   func(network string, req, resp *wire.Msg) *wire.Msg // nil: resp
	asked   []string                                            // "network name type"
}

func newServer(t *testing.T) *server {
	t.Helper()
	s := &server{}
	s.set()
	packets, streams := listen(t)
	s.addr = packets.LocalAddr().String()
	for _, srv := range []*wire.Server{{PacketConn: packets, Handler: s}, {Listener: streams, Handler: s}} {
		ready, over := make(chan struct{}), make(chan struct{})
		srv.NotifyStartedFunc = func() { close(ready) }
		go func() { defer close(over); _ = srv.ActivateAndServe() }()
		<-ready
		t.Cleanup(func() { _ = srv.Shutdown(); <-over })
	}
	return s
}

// listen binds one port for both networks.
func listen(t *testing.T) (net.PacketConn, net.Listener) {
	t.Helper()
	for {
		streams, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		packets, err := net.ListenPacket("udp", streams.Addr().String())
		if err == nil {
			return packets, streams
		}
		_ = streams.Close() // the port is in use for UDP
	}
}

// set replaces the zone; records are in the form of a zone file.
func (s *server) set(records ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.records, s.names = map[string][]wire.RR{}, map[string]bool{}
	for _, text := range records {
		rr, err := wire.NewRR(text)
		if err != nil {
			panic(err)
		}
		name := strings.ToLower(rr.Header().Name)
		key := name + " " + wire.TypeToString[rr.Header().Rrtype]
		s.records[key], s.names[name] = append(s.records[key], rr), true
	}
}

// behave makes f change answers; nil: answers are unchanged. The result of f is sent unless nil.
func (s *server) behave(f func(network string, req, resp *wire.Msg) *wire.Msg) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reply = f
}

// questions returns the questions since the last call.
func (s *server) questions() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	asked := s.asked
	s.asked = nil
	return asked
}

func (s *server) ServeDNS(w wire.ResponseWriter, req *wire.Msg) {
	network := w.RemoteAddr().Network()
	s.mu.Lock()
	q := req.Question[0]
	name, kind := strings.ToLower(q.Name), wire.TypeToString[q.Qtype]
	s.asked = append(s.asked, network+" "+name+" "+kind)
	resp := new(wire.Msg)
	resp.SetReply(req)
	resp.RecursionAvailable = true
	found := s.names[name]
	for range 8 {
		alias := s.records[name+" CNAME"]
		if len(alias) == 0 {
			break
		}
		resp.Answer = append(resp.Answer, alias...)
		name = strings.ToLower(alias[0].(*wire.CNAME).Target)
	}
	resp.Answer = append(resp.Answer, s.records[name+" "+kind]...)
	if !found {
		resp.Rcode = wire.RcodeNameError
	}
	reply := s.reply
	s.mu.Unlock()
	if reply != nil {
		resp = reply(network, req, resp)
	}
	if resp != nil {
		_ = w.WriteMsg(resp)
	}
}

// says answers every question with a code.
func says(code int) func(string, *wire.Msg, *wire.Msg) *wire.Msg {
	return func(_ string, req, _ *wire.Msg) *wire.Msg { return new(wire.Msg).SetRcode(req, code) }
}

func silent(string, *wire.Msg, *wire.Msg) *wire.Msg { return nil }

// files writes a hosts file and a resolv.conf.
func files(t *testing.T, cfg *dns.Config, hosts, resolv string) {
	t.Helper()
	dir := t.TempDir()
	cfg.Hosts, cfg.ResolvConf = filepath.Join(dir, "hosts"), filepath.Join(dir, "resolv.conf")
	for path, text := range map[string]string{cfg.Hosts: hosts, cfg.ResolvConf: resolv} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// watch runs a Source that asks the servers, with no other files of the system than cfg has.
func watch(t *testing.T, cfg dns.Config, servers ...*server) *sourcetest.Watched {
	t.Helper()
	for _, s := range servers {
		cfg.Servers = append(cfg.Servers, s.addr)
	}
	if cfg.Hosts == "" {
		files(t, &cfg, "", "")
	}
	if cfg.MinTTL == 0 {
		cfg.MinTTL = 20 * time.Millisecond
	}
	s, err := dns.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return sourcetest.Watch(t, s)
}
