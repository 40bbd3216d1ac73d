//go:build kube

package integration

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// before starts a gateway before all servers of the cluster, with its health check. Its checks wait for long: no server is hung in the
// tests that use it, and servers that are only slow, on a busy machine, must keep their sessions.
func (c *kubeCluster) before(listen string) (g *gateway, config string) {
	return c.beforeWith(listen, "timeout: 30s")
}

// beforeWith is before with a part of the health check.
func (c *kubeCluster) beforeWith(listen, check string, options ...option) (g *gateway, config string) {
	var endpoints []string
	for _, s := range c.servers {
		endpoints = append(endpoints, s.address())
	}
	config = fmt.Sprintf(`listeners:
  - {name: kube, protocol: tcp, listen: %q, upstream: apiservers}
upstreams:
  apiservers:
    endpoints: [%s]
    health: {https: /readyz, ca: %q, server_name: %s, expect: [200, 401], interval: 1s, fall: 2, %s}
`, listen, strings.Join(endpoints, ", "), c.file("ca"), serviceName, check)
	return startGateway(c.t, config, options...), config
}

const configMaps = "/api/v1/namespaces/default/configmaps/"

// TestKubeObjects: 1,000 server-side applies and objects of almost 1 MiB, the most that API servers take, go through the gateway unharmed.
func TestKubeObjects(t *testing.T) {
	const workers, applies = 8, 1000
	c := startKube(t)
	listen := address(t)
	c.before(listen)
	var running sync.WaitGroup
	for w := range workers {
		running.Go(func() {
			client := c.client(listen)
			defer client.CloseIdleConnections()
			for n := w; n < applies; n += workers {
				if n%20 == w { // on another connection now and then
					client.CloseIdleConnections()
				}
				path := fmt.Sprintf("%sapply-%d", configMaps, n%100) // ten applies each
				object := fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: apply-%d}\ndata: {\"n\": %q}\n", n%100, fmt.Sprint(n))
				if _, err := c.request(client, http.MethodPatch, path+"?fieldManager=test&force=true", "application/apply-patch+yaml", []byte(object)); err != nil {
					t.Errorf("apply %d: %v", n, err)
					return
				}
			}
		})
	}
	running.Wait()
	client := c.client(listen)
	defer client.CloseIdleConnections()
	for n := range 4 {
		random := make([]byte, 500<<10)
		_, _ = rand.Read(random)
		text := hex.EncodeToString(random)
		object, err := json.Marshal(map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]string{"name": fmt.Sprint("large-", n)}, "data": map[string]string{"text": text},
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.request(client, http.MethodPost, strings.TrimSuffix(configMaps, "/"), "application/json", object); err != nil {
			t.Fatal(err)
		}
		data, err := c.request(client, http.MethodGet, fmt.Sprint(configMaps, "large-", n), "", nil)
		var back struct{ Data struct{ Text string } }
		if err == nil {
			err = json.Unmarshal(data, &back)
		}
		if err != nil || back.Data.Text != text {
			t.Errorf("object %d: %d bytes came back, or others: %v", n, len(back.Data.Text), err)
		}
	}
}

// startKubelet starts what API servers see of a kubelet: a server that takes the upgrade of exec and port-forward, and then sends back what comes.
func (c *kubeCluster) startKubelet(host string) {
	cert, err := tls.LoadX509KeyPair(c.file("cert"), c.file("key"))
	if err != nil {
		c.t.Fatal(err)
	}
	l, err := tls.Listen("tcp", host+":10250", &tls.Config{Certificates: []tls.Certificate{cert}})
	if err != nil {
		c.t.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			http.Error(w, "want an upgrade", http.StatusBadRequest)
			return
		}
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\nX-Path: %s\r\n\r\n", r.Header.Get("Upgrade"), r.URL.Path)
		_, _ = io.Copy(conn, rw)
	})}
	go func() { _ = s.Serve(l) }()
	c.t.Cleanup(func() { _ = s.Close() })
}

// startPod makes a node with that kubelet, and a pod on it.
func (c *kubeCluster) startPod(client *http.Client, host string) {
	c.apply(client, "/api/v1/namespaces/default/serviceaccounts/default", "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: default}\n")
	c.apply(client, "/api/v1/nodes/fake", "apiVersion: v1\nkind: Node\nmetadata: {name: fake}\n")
	c.apply(client, "/api/v1/nodes/fake/status", fmt.Sprintf(`apiVersion: v1
kind: Node
metadata: {name: fake}
status: {addresses: [{type: InternalIP, address: %s}], daemonEndpoints: {kubeletEndpoint: {Port: 10250}}}
`, host))
	c.apply(client, "/api/v1/namespaces/default/pods/p", `apiVersion: v1
kind: Pod
metadata: {name: p}
spec: {nodeName: fake, automountServiceAccountToken: false, containers: [{name: c, image: none}]}
`)
}

// upgrade asks for exec or the like through an address, and returns the connection once it is upgraded.
func (c *kubeCluster) upgrade(address, path string) (*tls.Conn, *bufio.Reader) {
	c.t.Helper()
	settings := c.tls.Clone()
	settings.NextProtos = []string{"http/1.1"}
	conn, err := tls.Dial("tcp", address, settings)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	_, err = fmt.Fprintf(conn, "POST /api/v1/namespaces/default/pods/p/%s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"+
		"X-Stream-Protocol-Version: v4.channel.k8s.io\r\nContent-Length: 0\r\n\r\n", path, serviceName, adminToken)
	if err != nil {
		c.t.Fatal(err)
	}
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		body, _ := io.ReadAll(resp.Body)
		c.t.Fatalf("%s: %s: %s", path, resp.Status, body)
	}
	return conn, r
}

// TestKubeUpgrades: exec, attach and port-forward go through the gateway and a real API server to a kubelet, in both directions at once, and
// stay when the gateway is reloaded.
func TestKubeUpgrades(t *testing.T) {
	const kubelet = "10.98.0.10"
	c := startKube(t)
	listen := address(t)
	g, config := c.before(listen)
	admin := c.client(listen)
	defer admin.CloseIdleConnections()
	c.startKubelet(kubelet)
	c.startPod(admin, kubelet)
	data := make([]byte, 4<<20)
	_, _ = rand.Read(data)
	for i, path := range []string{"exec?container=c&command=cat&stdin=true&stdout=true", "attach?container=c&stdin=true&stdout=true", "portforward?ports=80"} {
		conn, r := c.upgrade(listen, path)
		for round := range 2 {
			sent := make(chan error, 1)
			go func() {
				_, err := conn.Write(data)
				sent <- err
			}()
			back := make([]byte, len(data))
			_, err := io.ReadFull(r, back)
			if err != nil || !bytes.Equal(back, data) {
				t.Fatalf("%s, round %d: other bytes came back, or none: %v", path, round, err)
			}
			if err := <-sent; err != nil {
				t.Fatal(err)
			}
			if round == 0 {
				g.reload(config+fmt.Sprintf("    slow_start: %dms\n", i+1), "applied")
			}
		}
	}
}
