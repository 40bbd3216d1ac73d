//go:build kube

package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubewatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	toolswatch "k8s.io/client-go/tools/watch"
)

// kubeWatches is the number of watches of TestKubeWatches.
const kubeWatches = 200

// TestKubeWatches: 200 watches of client-go through the gateway, each on a connection of its own, hear of every change, in order and once, while a
// server hangs, and another one dies.
func TestKubeWatches(t *testing.T) {
	const changes = 200
	c := startKube(t)
	listen := address(t)
	c.hanging(listen)
	admin := c.client(c.servers[0].address())
	defer admin.CloseIdleConnections()
	change := func(n int) (version string) {
		t.Helper()
		data, err := c.request(admin, "PATCH", tickerPath+"?fieldManager=test&force=true", "application/apply-patch+yaml",
			[]byte(fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: ticker}\ndata: {\"n\": %q}\n", strconv.Itoa(n))))
		var object tickerObject
		if err == nil {
			err = json.Unmarshal(data, &object)
		}
		if err != nil {
			t.Fatal(err)
		}
		return object.Metadata.ResourceVersion
	}
	version := change(0)
	ctx, stop := context.WithTimeout(t.Context(), 2*patience)
	defer stop()
	var watches sync.WaitGroup
	for range kubeWatches {
		watches.Go(func() {
			if err := c.hearChanges(ctx, listen, version, changes); err != nil {
				t.Error(err)
			}
		})
	}
	for n := range changes {
		switch n {
		case changes / 4:
			c.servers[1].signal(syscall.SIGSTOP)
		case changes / 2:
			c.servers[2].kill()
		}
		change(n + 1)
		wait(tickEvery)
	}
	watches.Wait()
	c.servers[1].signal(syscall.SIGCONT)
}

// hanging starts a gateway before all servers of the cluster that notices one that hangs.
func (c *kubeCluster) hanging(listen string) *gateway {
	return startGateway(c.t, fmt.Sprintf(`listeners:
  - {name: kube, protocol: tcp, listen: %q, upstream: apiservers}
upstreams:
  apiservers:
    endpoints: [%q, %q, %q]
    health: {https: /readyz, ca: %q, server_name: %s, expect: [200, 401], interval: 1s, fall: 2}
`, listen, c.servers[0].address(), c.servers[1].address(), c.servers[2].address(), c.file("ca"), serviceName), plain)
}

// hearChanges follows the object through an address from a version on, with client-go, up to its nth change.
func (c *kubeCluster) hearChanges(ctx context.Context, address, version string, n int) error {
	var dialer net.Dialer
	client, err := kubernetes.NewForConfig(&rest.Config{
		Host: "https://" + serviceName, BearerToken: adminToken, TLSClientConfig: rest.TLSClientConfig{CAFile: c.file("ca")},
		Dial: dialTo(&dialer, address), // which also keeps client-go from sharing connections
		QPS:  -1,
	})
	if err != nil {
		return err
	}
	one := func(o metav1.ListOptions) metav1.ListOptions { o.FieldSelector = "metadata.name=ticker"; return o }
	w, err := toolswatch.NewRetryWatcher(version, &cache.ListWatch{WatchFunc: func(o metav1.ListOptions) (kubewatch.Interface, error) {
		return client.CoreV1().ConfigMaps("default").Watch(ctx, one(o))
	}})
	if err != nil {
		return err
	}
	defer w.Stop()
	for last := 0; last < n; {
		select {
		case <-ctx.Done():
			return fmt.Errorf("after change %d a watch heard nothing more", last)
		case event, ok := <-w.ResultChan():
			object, is := event.Object.(*corev1.ConfigMap)
			if !ok || !is {
				return fmt.Errorf("after change %d a watch got %v %v", last, event.Type, event.Object)
			}
			if got := object.Data["n"]; got != strconv.Itoa(last+1) {
				return fmt.Errorf("after change %d a watch heard of %s", last, got)
			}
			last++
		}
	}
	return nil
}

// TestKubeHangsAndLeaves: a server hangs and leaves the EndpointSlice before the gateway has closed its sessions, as it does when its lease
// ends. Its watches go to the other servers, long before their clients' own pings would end them. Then it returns.
func TestKubeHangsAndLeaves(t *testing.T) {
	c := startKube(t)
	admin := c.client(c.servers[0].address())
	defer admin.CloseIdleConnections()
	writeFile(t, c.file("token"), []byte(c.applyRBAC(admin)))
	all := []string{c.servers[0].address(), c.servers[1].address(), c.servers[2].address()}
	hung := c.servers[1]
	set := func(hosts ...string) { c.publish(admin, "apis", 6443, hosts...) }
	set(c.servers[0].host, hung.host, c.servers[2].host)
	listen := address(t)
	g := startGateway(t, fmt.Sprintf(`listeners:
  - {name: kube, protocol: tcp, listen: %q, upstream: apiservers}
upstreams:
  apiservers:
    discover: {kubernetes: {service: default/apis, server: "https://%[2]s", ca: %[3]q, token_file: %[4]q}}
    health: {https: /readyz, ca: %[3]q, server_name: %[5]s, expect: [200, 401], interval: 1s, fall: 2}
`, listen, all[0], c.file("ca"), c.file("token"), serviceName), plain)
	g.awaitEndpoints(all...)
	l := c.startLoad(listen, all[0], faultWatches)
	eventually(t, "all watches have begun", func() error {
		if n := l.begun.Load(); n < faultWatches {
			return fmt.Errorf("%d of %d", n, faultWatches)
		}
		return nil
	})
	hung.signal(syscall.SIGSTOP)
	set(c.servers[0].host, c.servers[2].host)
	g.awaitEndpoints(all[0], all[2])
	eventually(t, "no session is left at the hung server", func() error {
		if _, body := g.get("/api/v1/status"); strings.Contains(body, strconv.Quote(hung.address())) {
			return fmt.Errorf("there are some")
		}
		return nil
	})
	l.end()
	t.Logf("%d watches begun, the longest silence was %v", l.begun.Load(), l.silent)
	if l.silent >= faultPing {
		t.Errorf("a watch heard nothing for %v", l.silent)
	}
	l.check("a server that hangs and leaves")
	if g.scrape().errors("kube", "endpoint_out") == 0 {
		t.Error("the gateway closed no session")
	}
	hung.signal(syscall.SIGCONT)
	set(c.servers[0].host, hung.host, c.servers[2].host)
	g.awaitEndpoints(all...)
}
