//go:build kube

package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// The load of TestKubeFaults.
const (
	faultWatches = 30
	faultWorkers = 4
	tickEvery    = 100 * time.Millisecond
	faultLasts   = 15 * time.Second
	faultPing    = 30 * time.Second // as client-go's
	tickerPath   = "/api/v1/namespaces/default/configmaps/ticker"
)

// faultLoad is watches and requests through a proxy while an object changes continuously.
type faultLoad struct {
	c       *kubeCluster
	proxy   string // address
	stop    chan struct{}
	ending  sync.Once
	running sync.WaitGroup

	requests, missing atomic.Int64
	begun             atomic.Int64         // watches, each time anew
	failed            [phases]atomic.Int64 // requests, by how far they had come
	mu                sync.Mutex
	worst, silent     time.Duration // longest request, longest silence of a watch
	errors            []string
}

// note records the longest time.
func (l *faultLoad) note(which *time.Duration, d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	*which = max(*which, d)
}

// noteError records the first errors.
func (l *faultLoad) noteError(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.errors) < 3 {
		l.errors = append(l.errors, err.Error())
	}
}

func (l *faultLoad) over() bool {
	select {
	case <-l.stop:
		return true
	default:
		return false
	}
}

// startLoad starts a load with so many watches. direct is a server without faults.
func (c *kubeCluster) startLoad(proxy, direct string, watches int) *faultLoad {
	l := &faultLoad{c: c, proxy: proxy, stop: make(chan struct{})}
	first := make(chan string)
	l.running.Go(func() { l.change(direct, first) })
	version := <-first
	for range watches {
		l.running.Go(func() { l.watch(version) })
	}
	for range faultWorkers {
		l.running.Go(l.ask)
	}
	c.t.Cleanup(l.end)
	return l
}

// end stops the load and waits for its end.
func (l *faultLoad) end() {
	l.ending.Do(func() { close(l.stop) })
	l.running.Wait()
}

// change increments the object at a server directly, and reports the object's first version.
func (l *faultLoad) change(direct string, first chan<- string) {
	client := l.c.client(direct)
	defer client.CloseIdleConnections()
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	for n := 0; !l.over(); n++ {
		body := fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: ticker}\ndata: {\"n\": %q}\n", strconv.Itoa(n))
		data, err := l.c.request(client, http.MethodPatch, tickerPath+"?fieldManager=test&force=true", "application/apply-patch+yaml", []byte(body))
		if err != nil {
			l.c.t.Errorf("changing the object: %v", err)
		}
		if n == 0 {
			var object tickerObject
			if err := json.Unmarshal(data, &object); err != nil {
				l.c.t.Error(err)
			}
			first <- object.Metadata.ResourceVersion
		}
		<-tick.C
	}
}

type tickerObject struct {
	Metadata struct {
		ResourceVersion string `json:"resourceVersion"`
	} `json:"metadata"`
	Data struct {
		N string `json:"n"`
	} `json:"data"`
}

// watch follows the object through the proxy like client-go: over HTTP/2 with pings, and after each end from the last
// version on. It records the longest time without an event, and missing events.
func (l *faultLoad) watch(version string) {
	last, heard := 0, time.Now()
	for !l.over() {
		client := l.c.client(l.proxy)
		client.Transport.(*http.Transport).HTTP2 = &http.HTTP2Config{SendPingTimeout: faultPing, PingTimeout: 15 * time.Second}
		ctx, cancel := context.WithCancel(context.Background())
		go func() {
			select {
			case <-l.stop:
				cancel()
			case <-ctx.Done():
			}
		}()
		err := l.events(ctx, client, version, func(object tickerObject) {
			now := time.Now()
			l.note(&l.silent, now.Sub(heard))
			heard, version = now, object.Metadata.ResourceVersion
			n, err := strconv.Atoi(object.Data.N)
			if err != nil {
				l.noteError(err)
				l.missing.Add(1)
			}
			if n > last+1 {
				l.missing.Add(int64(n - last - 1))
			}
			last = n
		})
		cancel()
		client.CloseIdleConnections()
		var gone *net.OpError
		if err != nil && !l.over() && !errors.As(err, &gone) && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			l.noteError(err)
		}
	}
	l.note(&l.silent, time.Since(heard))
}

// events calls heard for each event of one watch.
func (l *faultLoad) events(ctx context.Context, client *http.Client, version string, heard func(tickerObject)) error {
	url := "https://" + serviceName + "/api/v1/namespaces/default/configmaps?watch=true&fieldSelector=metadata.name%3Dticker&resourceVersion=" + version
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+adminToken)
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("watch: %s", resp.Status)
	}
	l.begun.Add(1)
	for decoder := json.NewDecoder(resp.Body); ; {
		var event struct {
			Type   string
			Object tickerObject
		}
		if err := decoder.Decode(&event); err != nil {
			return err
		}
		if event.Type == "ADDED" || event.Type == "MODIFIED" {
			heard(event.Object)
		}
	}
}

// ask sends requests, each on its own connection.
func (l *faultLoad) ask() {
	for !l.over() {
		began := time.Now()
		phase, err := l.c.ask(func() (net.Conn, error) { return net.Dial("tcp", l.proxy) })
		l.requests.Add(1)
		l.note(&l.worst, time.Since(began))
		if err != nil {
			l.failed[phase].Add(1)
			l.noteError(fmt.Errorf("%s: %w", phaseNames[phase], err))
		}
	}
}

// failures returns the number of failed requests, and the same by how far they had come.
func (l *faultLoad) failures() (all int64, text string) {
	for i := range l.failed {
		if n := l.failed[i].Load(); n > 0 {
			all += n
			text += fmt.Sprintf(", %d %s", n, phaseNames[i])
		}
	}
	return all, strings.TrimPrefix(text, ", ")
}

// check fails the test if the gateway has lost an event, or a request that it could have sent to another server.
func (l *faultLoad) check(fault string) {
	if n := l.missing.Load(); n > 0 {
		l.c.t.Errorf("%s: %d events are missing", fault, n)
	}
	all, text := l.failures()
	if l.requests.Load() <= all {
		l.c.t.Errorf("%s: no request succeeded", fault)
	}
	// Few, if any, may hear nothing; see TestKubeKill.
	if l.failed[toConnect].Load() > 0 || l.failed[toBeHeard].Load() > 1 {
		l.c.t.Errorf("%s: requests failed of which no server can have sent an answer: %s", fault, text)
	}
}

// fault is what happens to a server while there is load.
type fault struct {
	name string
	run  func(s *kubeServer)
}

// wait lets the load run for a while.
func wait(d time.Duration) { <-time.After(d) }

// nft runs a command of nftables in the test's network namespace.
func (c *kubeCluster) nft(command string) {
	c.t.Helper()
	if out, err := exec.Command("nft", command).CombinedOutput(); err != nil {
		c.t.Fatalf("nft %s: %v\n%s", command, err, out)
	}
}

var kubeFaults = []fault{
	{"SIGSTOP", func(s *kubeServer) {
		s.signal(syscall.SIGSTOP)
		wait(faultLasts)
		s.signal(syscall.SIGCONT)
	}},
	{"kill -9", func(s *kubeServer) {
		s.kill()
		wait(faultLasts)
		s.start()
		s.awaitReady()
	}},
	{"black hole", func(s *kubeServer) { // packets from and to it are dropped
		for _, line := range []string{
			"add table ip hole",
			"add chain ip hole in { type filter hook input priority 0; }",
			"add rule ip hole in ip saddr " + s.host + " drop",
			"add rule ip hole in ip daddr " + s.host + " drop",
		} {
			s.cluster.nft(line)
		}
		wait(faultLasts)
		s.cluster.nft("delete table ip hole")
		s.awaitReady()
	}},
	{"graceful stop", func(s *kubeServer) {
		s.signal(syscall.SIGTERM)
		wait(faultLasts)
		_ = s.Cmd.Process.Kill() // if it is still waiting for its watches
		<-s.Done
		s.start()
		s.awaitReady()
	}},
}

// haproxyProgram is HAProxy of PATH, or of the distribution.
func haproxyProgram() string {
	if path, err := exec.LookPath("haproxy"); err == nil {
		return path
	}
	return "/usr/sbin/haproxy"
}

func haproxyVersion() string {
	out, _ := exec.Command(haproxyProgram(), "-v").Output()
	line, _, _ := strings.Cut(string(out), "\n")
	return line
}

// startHAProxy starts HAProxy with the configuration of the first study, and returns its address.
func (c *kubeCluster) startHAProxy() string {
	listen := address(c.t)
	text := fmt.Sprintf(`global
  maxconn 5000
defaults
  mode tcp
  timeout connect 5s
  timeout client 1h
  timeout server 1h
frontend kube
  bind %s
  default_backend api
backend api
  balance leastconn
  option httpchk GET /readyz
  http-check expect rstatus (200|401)
  default-server check check-ssl check-sni %s verify required verifyhost %s ca-file %s inter 2s fall 2 rise 2 on-marked-down shutdown-sessions
`, listen, serviceName, serviceName, c.file("ca"))
	for i, s := range c.servers {
		text += fmt.Sprintf("  server s%d %s\n", i, s.address())
	}
	p := start(c.t, exec.Command(haproxyProgram(), "-db", "-f", writeFile(c.t, c.file("haproxy.cfg"), []byte(text))))
	c.t.Cleanup(func() {
		if c.t.Failed() {
			c.t.Logf("HAProxy says:\n%s", tail(p.out.String(), 20))
		}
	})
	return listen
}

// TestKubeFaults hangs, kills, cuts off and stops one of three servers, behind the gateway and behind HAProxy alternately. For
// each it logs the failed requests, the longest request and the longest silence of a watch. No event may be missing,
// and no watch may be silent at the end.
func TestKubeFaults(t *testing.T) {
	c := startKube(t)
	listen := address(t)
	endpoints := make([]string, len(c.servers))
	for i, s := range c.servers {
		endpoints[i] = strconv.Quote(s.address())
	}
	g := startGateway(t, fmt.Sprintf(`listeners:
  - {name: kube, protocol: tcp, listen: %q, upstream: apiservers}
upstreams:
  apiservers:
    endpoints: [%s]
    health: {https: /readyz, ca: %q, server_name: %s, expect: [200, 401], interval: 1s, fall: 2}
`, listen, strings.Join(endpoints, ", "), c.file("ca"), serviceName), plain)
	proxies := []struct{ name, address string }{{"headpond", listen}, {"haproxy", c.startHAProxy()}}
	rows := []string{"| fault | proxy | requests | failed | how far they had come | worst request | longest silent watch | missing events |", "|---|---|---|---|---|---|---|---|"}
	inject := func(f fault) {
		for _, p := range proxies {
			l := c.startLoad(p.address, c.servers[0].address(), faultWatches)
			wait(3 * time.Second)
			f.run(c.servers[1])
			wait(5 * time.Second)
			l.end()
			failed, phases := l.failures()
			rows = append(rows, fmt.Sprintf("| %s | %s | %d | %d | %s | %s | %s | %d |", f.name, p.name, l.requests.Load(), failed, phases,
				l.worst.Round(10*time.Millisecond), l.silent.Round(10*time.Millisecond), l.missing.Load()))
			for _, text := range slices.Compact(l.errors) {
				t.Logf("%s, %s: %s", f.name, p.name, text)
			}
			if p.name == "headpond" {
				l.check(f.name)
			}
		}
	}
	for _, f := range kubeFaults {
		t.Run(f.name, func(*testing.T) { inject(f) })
	}
	t.Logf("engine %s, %s, %d watches, %d workers:\n%s", os.Getenv("HEADPOND_ENGINE"), haproxyVersion(), faultWatches, faultWorkers, strings.Join(rows, "\n"))
	g.awaitLog("endpoint unhealthy", c.servers[1].address(), "no answer within")
}
