//go:build kube

package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

func dialTo(d *net.Dialer, address string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, _ string) (net.Conn, error) {
		return d.DialContext(ctx, network, address)
	}
}

// within runs a condition until it holds or patience is over.
func (c *kubeCluster) within(condition func() error) {
	deadline, tick := time.After(patience), time.NewTicker(100*time.Millisecond)
	defer tick.Stop()
	for condition() != nil {
		select {
		case <-deadline:
			return
		case <-tick.C:
		}
	}
}

// endpoints returns the endpoints of the gateway's first upstream, in order, and the error of its
// source.
func (g *gateway) endpoints() (addresses []string, failing string) {
	_, body := g.get("/api/v1/status")
	var s struct {
		Upstreams []struct {
			Source struct {
				LastError string `json:"last_error"`
			}
			Endpoints []struct {
				Address string
				Removed bool
			}
		}
	}
	if err := json.Unmarshal([]byte(body), &s); err != nil || len(s.Upstreams) == 0 {
		return nil, fmt.Sprint("no status: ", err, body)
	}
	for _, e := range s.Upstreams[0].Endpoints {
		if !e.Removed {
			addresses = append(addresses, e.Address)
		}
	}
	slices.Sort(addresses)
	return addresses, s.Upstreams[0].Source.LastError
}

func (g *gateway) awaitEndpoints(want ...string) {
	g.t.Helper()
	eventually(g.t, fmt.Sprintf("the endpoints are %v", want), func() error {
		if got, failing := g.endpoints(); !slices.Equal(got, want) {
			return fmt.Errorf("they are %v %s", got, failing)
		}
		return nil
	})
}

// throughItself is a gateway that requests its endpoints from the API through itself.
func (c *kubeCluster) throughItself(listen, more string) string {
	return fmt.Sprintf(`listeners:
  - {name: kube, protocol: tcp, listen: %[1]q, upstream: apiservers}
upstreams:
  apiservers:
    discover:
      kubernetes: {server: "https://%[1]s", ca: %[2]q, token_file: %[3]q, server_name: %[4]s, cache: %[5]q%[6]s}
    health: {https: /readyz, ca: %[2]q, expect: [200, 401], interval: 1s, fall: 2}
`, listen, c.file("ca"), c.file("token"), serviceName, c.file("kept.json"), more)
}

// TestKubeAPIServers follows the API servers of a cluster through the gateway itself, with the permissions in the
// manifest. A server that dies is removed and one that returns is added. A gateway that starts while no server answers
// still knows all of them.
func TestKubeAPIServers(t *testing.T) {
	c := startKube(t)
	admin := c.client(c.servers[0].address())
	defer admin.CloseIdleConnections()
	writeFile(t, c.file("token"), []byte(c.applyRBAC(admin)))
	listen := address(t)
	all := []string{c.servers[0].address(), c.servers[1].address(), c.servers[2].address()}
	g := startGateway(t, c.throughItself(listen, `, bootstrap: ["10.98.0.2:6443"]`))
	g.awaitEndpoints(all...)
	through := c.client(listen)
	defer through.CloseIdleConnections()
	if _, err := c.request(through, http.MethodGet, "/api/v1/namespaces/default", "", nil); err != nil {
		t.Errorf("through the gateway: %v", err)
	}
	c.servers[2].kill()
	g.awaitEndpoints(all[:2]...) // the lease of a dead server ends after 15 seconds
	writeFile(t, c.file("token"), []byte(c.newToken(admin)))
	c.servers[2].start()
	c.servers[2].awaitReady()
	g.awaitEndpoints(all...)
	if kept := readFile(t, c.file("kept.json")); !strings.Contains(kept, all[2]) {
		t.Errorf("kept %s", kept)
	}
	if info, err := os.Stat(c.file("kept.json")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
	through.CloseIdleConnections()
	g.signal(syscall.SIGTERM)
	<-g.Done
	if line := g.out.Line("sessions were cut off"); line != "" {
		t.Errorf("the gateway waited for its own session: %s", line)
	}
	for _, s := range c.servers {
		s.signal(syscall.SIGSTOP)
	}
	g = startGateway(t, c.throughItself(listen, ""))
	g.awaitEndpoints(all...)
	for _, s := range c.servers {
		s.signal(syscall.SIGCONT)
	}
	eventually(t, "the source works", func() error {
		if _, failing := g.endpoints(); failing != "" {
			return errors.New(failing)
		}
		_, err := c.request(through, http.MethodGet, "/readyz", "", nil)
		return err
	})
}

// TestKubeForbidden: the log names the missing permission.
func TestKubeForbidden(t *testing.T) {
	c := startKube(t)
	admin := c.client(c.servers[0].address())
	defer admin.CloseIdleConnections()
	token := c.applyRBAC(admin)
	if _, err := c.request(admin, http.MethodDelete, "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings/headpond-endpoints", "", nil); err != nil {
		t.Fatal(err)
	}
	writeFile(t, c.file("token"), []byte(token))
	g := startGateway(t, c.throughItself(address(t), `, bootstrap: ["10.98.0.1:6443"]`))
	g.awaitLog("source of endpoints fails", "403", "endpointslices.discovery.k8s.io is forbidden", "system:serviceaccount:kube-system:headpond")
	c.applyRBAC(admin)
	g.awaitEndpoints("10.98.0.1:6443", "10.98.0.2:6443", "10.98.0.3:6443")
}

// publish makes the EndpointSlice of a Service.
func (c *kubeCluster) publish(admin *http.Client, service string, port int, hosts ...string) {
	c.t.Helper()
	endpoints := ""
	for _, host := range hosts {
		endpoints += fmt.Sprintf("{addresses: [%s], conditions: {ready: true}},\n", host)
	}
	c.apply(admin, "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/"+service+"-1", fmt.Sprintf(`{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice,
metadata: {name: %s-1, labels: {kubernetes.io/service-name: %s}}, addressType: IPv4, ports: [{name: main, port: %d, protocol: TCP}], endpoints: [
%s]}`, service, service, port, endpoints))
}

// changes is how many times TestKubeChanges changes the EndpointSlice.
const changes = 60

// TestKubeChanges changes the EndpointSlice of a Service every second while clients send requests continuously. No
// request may fail.
func TestKubeChanges(t *testing.T) {
	c := startKube(t)
	admin := c.client(c.servers[0].address())
	defer admin.CloseIdleConnections()
	writeFile(t, c.file("token"), []byte(c.applyRBAC(admin)))
	hosts := []string{"10.98.0.1", "10.98.0.2", "10.98.0.3", "10.98.0.10"}
	for _, host := range hosts {
		s := &http.Server{Addr: host + ":8080", Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, host) })}
		l, err := net.Listen("tcp", s.Addr)
		if err != nil {
			t.Fatal(err)
		}
		go func() { _ = s.Serve(l) }()
		t.Cleanup(func() { _ = s.Close() })
	}
	set := func(hosts ...string) { c.publish(admin, "web", 8080, hosts...) }
	set(hosts...)
	tcp, web := address(t), address(t)
	upstream := fmt.Sprintf(`{discover: {kubernetes: {service: default/web, server: "https://10.98.0.1:6443", ca: %q, token_file: %q}}}`, c.file("ca"), c.file("token"))
	g := startGateway(t, fmt.Sprintf(`listeners:
  - {name: tcp, protocol: tcp, listen: %q, upstream: tcp}
  - {name: web, protocol: http, listen: %q, upstream: web}
upstreams:
  tcp: %s
  web: %s
`, tcp, web, upstream, upstream))
	stop := make(chan struct{})
	var clients sync.WaitGroup
	var served atomic.Int64
	for i := range 8 {
		clients.Go(func() { askAll(t, []string{tcp, web}[i%2], stop, &served) })
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for range changes {
		<-tick.C
		some := slices.Clone(hosts)
		rand.Shuffle(len(some), func(i, j int) { some[i], some[j] = some[j], some[i] })
		some = some[:1+rand.IntN(len(some))]
		set(some...)
		slices.Sort(some)
		for i := range some {
			some[i] += ":8080"
		}
		slices.Sort(some)
		g.awaitEndpoints(some...)
	}
	close(stop)
	clients.Wait()
	t.Logf("%d requests during %d changes", served.Load(), changes)
	if served.Load() == 0 {
		t.Error("nothing was served")
	}
}

// askAll sends requests until stop is closed, with a new connection every second.
func askAll(t *testing.T, address string, stop <-chan struct{}, served *atomic.Int64) {
	client := &http.Client{Timeout: patience, Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	for n := 0; ; n++ {
		select {
		case <-stop:
			return
		default:
		}
		if n%2 == 0 {
			client.CloseIdleConnections()
		}
		resp, err := client.Get("http://" + address)
		if err != nil {
			t.Errorf("request %d: %v", n, err)
			return
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Errorf("request %d: %s %q %v", n, resp.Status, body, err)
			return
		}
		served.Add(1)
	}
}
