//go:build netns

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/peers"
	"github.com/headpond/headpond/peers/extension"
)

// The network of the tests: ten milliseconds each way, and one packet in a hundred is lost.
const (
	oneWay = 10 * time.Millisecond
	lost   = 0.01
)

// site is a namespace in which the released program runs as a node, with its admin page and its listeners at 127.0.0.1.
type site struct {
	*namespace
	program string
	dir, id string
	client  *http.Client
	process *exec.Cmd
}

// built is the program, which is built for a test.
func built(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "headpond")
	run(t, "go", "build", "-o", program, ".")
	return program
}

// newSite makes the identity of a node that is to run in a namespace.
func newSite(t *testing.T, program string, ns *namespace) *site {
	t.Helper()
	s := &site{namespace: ns, program: program, dir: t.TempDir(), client: &http.Client{Transport: &http.Transport{DialContext: ns.dial}}}
	t.Cleanup(s.client.CloseIdleConnections)
	key, _, err := peers.LoadOrCreateKey(filepath.Join(s.dir, "node.key"))
	if err != nil {
		t.Fatal(err)
	}
	if s.id, err = peers.IDOf(key); err != nil {
		t.Fatal(err)
	}
	return s
}

// start runs the node until the end of the test, and waits until it is ready.
func (s *site) start(config string) {
	s.t.Helper()
	file, log := filepath.Join(s.dir, "gateway.yaml"), filepath.Join(s.dir, "log")
	if err := os.WriteFile(file, []byte("admin: 127.0.0.1:9090\n"+config), 0o600); err != nil {
		s.t.Fatal(err)
	}
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	defer out.Close()
	cmd := exec.Command("ip", "netns", "exec", s.name, s.program, "serve", file)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.process = cmd
	s.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if text, _ := os.ReadFile(log); s.t.Failed() {
			s.t.Logf("%s:\n%s", s.name, text)
		}
	})
	conntest.Eventually(s.t, s.name+" is ready", func() bool {
		resp, err := s.client.Get("http://127.0.0.1:9090/readyz")
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
}

// kill ends the node as a failure of power does.
func (s *site) kill() {
	_ = s.process.Process.Kill()
	_ = s.process.Wait()
	s.client.CloseIdleConnections()
}

// status is what the admin page tells of peers.
func (s *site) status() (all struct {
	Node   []extension.NodeStatus  `json:"node"`
	Peers  []extension.PeerStatus  `json:"peers"`
	Offers []extension.OfferStatus `json:"peer_services"`
}) {
	resp, err := s.client.Get("http://127.0.0.1:9090/api/v1/status")
	if err == nil {
		defer resp.Body.Close()
		_ = json.NewDecoder(resp.Body).Decode(&all) // what is missing is not there yet
	}
	return all
}

func (s *site) peer(id string) extension.PeerStatus {
	for _, p := range s.status().Peers {
		if p.ID == id {
			return p
		}
	}
	return extension.PeerStatus{}
}

// knows reports whether a node is in the table of services.
func (s *site) knows(id string) bool {
	for _, o := range s.status().Offers {
		if o.Peer == id {
			return true
		}
	}
	return false
}

// counter serves lines with numbers, one every few milliseconds, until the client leaves.
func counter(ns *namespace) {
	ns.t.Helper()
	l := ns.listen("127.0.0.1:8000")
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/count" {
			_, _ = io.WriteString(w, ns.name)
			return
		}
		tick := time.NewTicker(5 * time.Millisecond) // it is a stream: nothing waits for this
		defer tick.Stop()
		for i := 0; r.Context().Err() == nil; i++ {
			_, _ = fmt.Fprintln(w, i, strings.Repeat("x", 1000))
			_ = http.NewResponseController(w).Flush()
			<-tick.C
		}
	})}
	go func() { _ = server.Serve(l) }()
	ns.t.Cleanup(func() { _ = server.Close() })
}

// stream reads what counter serves.
type stream struct {
	t    *testing.T
	body io.ReadCloser
	in   *bufio.Reader
	next int
}

// open asks for a stream; nil: there is no answer.
func (s *site) open(url string) *stream {
	s.t.Helper()
	resp, err := s.client.Get(url)
	if err != nil {
		return nil
	}
	if resp.StatusCode != http.StatusOK {
		_ = resp.Body.Close()
		return nil
	}
	s.t.Cleanup(func() { _ = resp.Body.Close() })
	return &stream{s.t, resp.Body, bufio.NewReader(resp.Body), 0}
}

// read reads some lines, none of which may be missing.
func (r *stream) read(lines int) {
	r.t.Helper()
	for range lines {
		line, err := r.in.ReadString('\n')
		number, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if n, bad := strconv.Atoi(number); err != nil || bad != nil || n != r.next || len(rest) != 1000 {
			r.t.Fatalf("after %d lines: %.20q, %v", r.next, line, err)
		}
		r.next++
	}
}

const (
	nodeListens = "listen: [/ip4/0.0.0.0/udp/4001/quic-v1, /ip4/0.0.0.0/tcp/4001]"
	apiListens  = "listeners: [{name: api, protocol: peers, listen: \"127.0.0.1:8092\"}]\n"
)

// offering is the configuration of a service, whose server is a counter.
func offering(callers ...string) string {
	return "services: {web: {upstream: web, allow: [" + strings.Join(callers, ", ") + "]}}\nupstreams: {web: {endpoints: [\"127.0.0.1:8000\"]}}\n"
}

// at is the address of a node of the internet.
func at(address string, s *site) string {
	return fmt.Sprintf("[/ip4/%s/udp/4001/quic-v1/p2p/%s, /ip4/%s/tcp/4001/p2p/%s]", address, s.id, address, s.id)
}

// TestBehindNAT: two nodes behind NAT reach each other through a relay, and then through a hole in both NATs, where what is open goes on; then
// the relay may go. A partition of ten seconds is survived too.
func TestBehindNAT(t *testing.T) {
	const hubAt, farAt, nearAt = "11.0.0.1", "11.0.0.2", "11.0.0.3"
	world := newInternet(t, oneWay, lost)
	program := built(t)
	hub := newSite(t, program, newNamespace(t, "hub"))
	world.attach(hub.namespace, hubAt)
	far := newSite(t, program, behindNAT(t, world, "far", farAt, 1))
	near := newSite(t, program, behindNAT(t, world, "near", nearAt, 2))
	world.cut(farAt, nearAt, true) // holes cannot be punched yet
	counter(far.namespace)
	hub.start("peers: {key: node.key, relay_for: anyone, " + nodeListens + "}\n")
	far.start("peers: {key: node.key, " + nodeListens + ", bootstrap: " + at(hubAt, hub) + ", relays: " + at(hubAt, hub) + "}\n" + offering(near.id))
	near.start("peers: {key: node.key, " + nodeListens + ", bootstrap: " + at(hubAt, hub) + "}\n" + apiListens)
	conntest.Eventually(t, "near knows far", func() bool { return near.knows(far.id) })

	var s *stream
	conntest.Eventually(t, "far answers", func() bool {
		s = near.open("http://127.0.0.1:8092/v1/service/web/count")
		return s != nil
	})
	s.read(20)
	if p := near.peer(far.id); !p.Connected || !p.Relayed || !strings.Contains(p.Path, "/p2p-circuit") {
		t.Fatalf("it is not relayed: %+v", p)
	}
	world.cut(farAt, nearAt, false)
	conntest.Eventually(t, "it is direct", func() bool {
		s.read(1)
		return !near.peer(far.id).Relayed
	})
	if p := near.peer(far.id); !strings.Contains(p.Path, farAt) || p.Opened != 1 {
		t.Errorf("%+v", p)
	}
	t.Logf("relayed and then direct, by %s", near.peer(far.id).Path)
	s.read(100)
	hub.kill()
	s.read(200) // more than was under way
	world.cut(farAt, nearAt, true)
	healed := time.AfterFunc(10*time.Second, func() { world.cut(farAt, nearAt, false) })
	defer healed.Stop()
	s.read(3000) // more than was under way: some come after the partition
	if p := near.peer(far.id); p.Opened != 1 || !p.Connected {
		t.Errorf("%+v", p)
	}
}

// TestKilledUnderLoad: of two nodes that offer a service one loses its power while clients ask. It is out of the table, no request that may be
// sent again fails, and after a restart it has its old name and its share of the requests.
func TestKilledUnderLoad(t *testing.T) {
	addresses := []string{"11.0.0.1", "11.0.0.2", "11.0.0.3"}
	world := newInternet(t, oneWay, lost)
	program := built(t)
	var sites []*site
	for i, address := range addresses {
		s := newSite(t, program, newNamespace(t, []string{"near", "one", "two"}[i]))
		world.attach(s.namespace, address)
		sites = append(sites, s)
	}
	near, one, two := sites[0], sites[1], sites[2]
	near.start("peers: {key: node.key, " + nodeListens + "}\n" + apiListens)
	far := "peers: {key: node.key, " + nodeListens + ", bootstrap: " + at(addresses[0], near) + "}\n" + offering(near.id)
	for _, s := range []*site{one, two} {
		counter(s.namespace)
		s.start(far)
	}
	conntest.Eventually(t, "near knows both", func() bool { return near.knows(one.id) && near.knows(two.id) })

	load := newLoad(near, "http://127.0.0.1:8092/v1/service/web/who")
	defer load.end()
	load.more(t, one.id, 100)
	load.more(t, two.id, 100)
	one.kill()
	killed := time.Now()
	conntest.Eventually(t, "it is out of the table", func() bool { return !near.knows(one.id) })
	t.Logf("out of the table after %v", time.Since(killed).Round(10*time.Millisecond))
	load.more(t, two.id, 200)
	one.start(far)
	conntest.Eventually(t, "it is in the table again", func() bool { return near.knows(one.id) })
	load.more(t, one.id, 100)
	load.end()
	t.Logf("%d requests were answered, %d failed: %v", load.answered.Load(), len(load.failed), load.failed)
	if len(load.failed) > 0 {
		t.Errorf("%d requests failed", len(load.failed))
	}
}

// load are clients that ask one after the other.
type load struct {
	stop     context.CancelFunc
	work     sync.WaitGroup
	answered atomic.Int64

	mu     sync.Mutex
	by     map[string]int // answers, by the ID of the node
	failed []string
}

func newLoad(s *site, url string) *load {
	ctx, stop := context.WithCancel(context.Background())
	l := &load{stop: stop, by: map[string]int{}}
	for range 4 {
		l.work.Go(func() {
			for ctx.Err() == nil {
				l.ask(ctx, s.client, url)
			}
		})
	}
	return l
}

func (l *load) ask(ctx context.Context, client *http.Client, url string) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		panic(err)
	}
	resp, err := client.Do(r)
	why := ""
	if err != nil {
		why = err.Error()
	} else {
		text, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK {
			why = fmt.Sprint(resp.Status, " ", err, " ", string(text))
		}
	}
	if ctx.Err() != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if why != "" {
		l.failed = append(l.failed, why)
		return
	}
	l.answered.Add(1)
	l.by[resp.Header.Get("X-Computing-Node")]++
}

// more waits until a node has answered so many more.
func (l *load) more(t *testing.T, id string, answers int) {
	t.Helper()
	count := func() int {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.by[id]
	}
	want := count() + answers
	conntest.Eventually(t, "it answers", func() bool { return count() >= want })
}

// end ends the clients.
func (l *load) end() {
	l.stop()
	l.work.Wait()
}
