//go:build kube

package integration

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// TestPods runs the pods of `headpond kube`, of the base for kustomize and of the Helm chart on a node, one after the other: the node depends on
// the first.
func TestPods(t *testing.T) {
	n := startNode(t)
	n.staticPod()
	n.backend()
	n.base()
	n.chart()
}

const (
	nodeGateway = "pod/headpond-" + nodeName
	nodeListen  = "127.0.0.1:7443"
)

// staticPod: the kubelet starts the pod of `headpond kube` without an API server, and reaches the API servers through it alone. It restarts a gateway
// that has died or hangs, and replaces it when the manifest changes.
func (n *kubeNode) staticPod() {
	n.t.Helper()
	n.kubectl("apply", "-f", "../deploy/kubernetes/rbac.yaml")
	n.writeNodeFile("/etc/headpond/token", n.kubectl("create", "token", "headpond", "-n", "kube-system", "--duration", "24h"), 0o600)
	n.writeNodeFile("/etc/kubernetes/pki/ca.crt", readFile(n.t, n.file("ca")), 0o600)
	n.writeNodeFile("/etc/kubernetes/kubelet.conf", n.kubeCluster.kubeconfig("10.98.0.1:6443", nodeToken), 0o600)
	flags := []string{"kube", "-servers", "10.98.0.1,10.98.0.2,10.98.0.3", "-token-file", "/etc/headpond/token", "-out", "/", "-pod"}
	n.program("headpond", append(flags, "headpond:pods", "-rewrite", "/etc/kubernetes/kubelet.conf")...)
	n.startNodeKubelet("/etc/kubernetes/kubelet.conf")
	n.await("condition=Ready", "node/"+nodeName)
	n.await("condition=Ready", "-n", "kube-system", nodeGateway)
	g := &gateway{t: n.t, admin: "127.0.0.1:9090"}
	g.awaitEndpoints("10.98.0.1:6443", "10.98.0.2:6443", "10.98.0.3:6443")
	checkConfined(n.t, gateways(n.t)[0], "0")
	if out := n.kubectl("-n", "kube-system", "exec", nodeGateway, "--", "/headpond", "ctl", "status"); !strings.Contains(out, "10.98.0.3:6443") {
		n.t.Errorf("ctl status in the pod:\n%s", out)
	}

	n.end(syscall.SIGKILL, 1)
	n.end(syscall.SIGSTOP, 2) // the kubelet's probe fails
	if out := n.kubectl("-n", "kube-system", "get", "events"); strings.Contains(out, "NodeNotReady") {
		n.t.Errorf("the gateway came too late for the node:\n%s", out)
	}

	old := n.field(".metadata.uid", "-n", "kube-system", nodeGateway)
	n.program("ctr", "-n", "k8s.io", "images", "tag", "docker.io/library/headpond:pods", "docker.io/library/headpond:next")
	n.program("headpond", append(flags, "headpond:next", "-force")...)
	n.await("jsonpath={.spec.containers[0].image}=headpond:next", "-n", "kube-system", nodeGateway)
	n.await("condition=Ready", "-n", "kube-system", nodeGateway)
	if now := n.field(".metadata.uid", "-n", "kube-system", nodeGateway); now == old {
		n.t.Error("the pod is not another one")
	}
	n.await("condition=Ready", "node/"+nodeName)
}

// end ends the node's gateway by a signal and waits until the kubelet has started it as often again, and the node is in order.
func (n *kubeNode) end(sig syscall.Signal, restarts int) {
	n.t.Helper()
	pids := gateways(n.t)
	if len(pids) != 1 {
		n.t.Fatalf("gateways: %v", pids)
	}
	if err := syscall.Kill(pids[0], sig); err != nil {
		n.t.Fatal(err)
	}
	eventually(n.t, fmt.Sprintf("another gateway after %v", sig), func() error {
		if now := gateways(n.t); len(now) != 1 || now[0] == pids[0] {
			return fmt.Errorf("%v", now)
		}
		return nil
	})
	n.await(fmt.Sprintf("jsonpath={.status.containerStatuses[0].restartCount}=%d", restarts), "-n", "kube-system", nodeGateway)
	n.await("condition=Ready", "-n", "kube-system", nodeGateway)
	n.await("condition=Ready", "node/"+nodeName)
}

// program runs a program, which must succeed.
func (n *kubeNode) program(name string, args ...string) string {
	n.t.Helper()
	out, code := run(n.t, 5*time.Minute, name, args...)
	if code != 0 {
		n.t.Fatalf("%s %v: exit %d\n%s", name, args, code, out)
	}
	return out
}

// checkConfined checks that a process has the user it should have, no capabilities, a filter of system calls, and no way to more.
func checkConfined(t *testing.T, pid int, user string) {
	t.Helper()
	status := readFile(t, fmt.Sprintf("/proc/%d/status", pid))
	for _, want := range []string{"Uid:\t" + user + "\t", "CapEff:\t0000000000000000\n", "CapBnd:\t0000000000000000\n", "NoNewPrivs:\t1\n", "Seccomp:\t2\n"} {
		if !strings.Contains(status, want) {
			t.Errorf("process %d has not %q:\n%s", pid, want, status)
		}
	}
	for line := range strings.Lines(readFile(t, fmt.Sprintf("/proc/%d/mounts", pid))) {
		if f := strings.Fields(line); f[1] == "/" && !slices.Contains(strings.Split(f[3], ","), "ro") {
			t.Errorf("the root can be written to: %s", line)
		}
	}
}

// backend serves HTTP on the node, as the Service prod/web without pods. An answer to /slow takes two seconds.
func (n *kubeNode) backend() {
	n.t.Helper()
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			_, _ = io.WriteString(w, "from ")
			_ = http.NewResponseController(w).Flush()
			<-time.After(2 * time.Second)
			_, _ = io.WriteString(w, "the backend")
			return
		}
		_, _ = io.WriteString(w, "from the backend")
	})
	l, err := net.Listen("tcp", nodeAddress+":8080")
	if err != nil {
		n.t.Fatal(err)
	}
	s := &http.Server{Handler: handler}
	go func() { _ = s.Serve(l) }()
	n.t.Cleanup(func() { _ = s.Close() })
	n.kubectl("create", "namespace", "prod")
	slice := filepath.Join(n.dir, "slice.yaml")
	writeFile(n.t, slice, []byte(`{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: web-1, namespace: prod, labels: {kubernetes.io/service-name: web}},
addressType: IPv4, ports: [{name: http, port: 8080, protocol: TCP}], endpoints: [{addresses: [`+nodeAddress+`], conditions: {ready: true}}]}`))
	n.kubectl("apply", "-f", slice)
}

// load sends requests to an address from several clients, which keep their connections, until end is called. No request may fail.
func (n *kubeNode) load(address string) (end func()) {
	n.t.Helper()
	stop := make(chan struct{})
	var clients sync.WaitGroup
	var served atomic.Int64
	for i := range 8 {
		path := []string{"/", "/slow"}[i%2]
		clients.Go(func() {
			client := &http.Client{Timeout: patience, Transport: &http.Transport{}}
			defer client.CloseIdleConnections()
			pace := time.NewTicker(10 * time.Millisecond)
			defer pace.Stop()
			for {
				select {
				case <-stop:
					return
				case <-pace.C:
				}
				if body, err := fetchBody(client, "http://"+address+path); err != nil || body != "from the backend" {
					n.t.Errorf("%s during the change: %q, %v", path, body, err)
					return
				}
				served.Add(1)
			}
		})
	}
	return func() {
		n.t.Helper()
		close(stop)
		clients.Wait()
		n.t.Logf("%d requests", served.Load())
	}
}

// fetchBody returns the body of an answer with status 200.
func fetchBody(client *http.Client, url string) (string, error) {
	resp, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s", resp.Status)
	}
	return string(body), err
}

// awaitAnswer waits until an address answers so, from new connections.
func (n *kubeNode) awaitAnswer(url, want string) {
	n.t.Helper()
	client := &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	eventually(n.t, url+" answers "+want, func() error {
		got, err := fetchBody(client, url)
		if err == nil && got != want {
			err = fmt.Errorf("it answers %q", got)
		}
		return err
	})
}

// pods returns the names of the pods of a namespace.
func (n *kubeNode) pods(namespace string) string {
	n.t.Helper()
	return n.kubectl("-n", namespace, "get", "pods", "--sort-by=.metadata.name", "-o", "name")
}

// awaitGone waits for the end of pods of the namespace headpond.
func (n *kubeNode) awaitGone(pods string) {
	n.t.Helper()
	n.kubectl(append([]string{"-n", "headpond", "wait", "--for=delete", "--timeout=4m"}, strings.Fields(pods)...)...)
}

// withoutUring is a profile for seccomp that forbids io_uring, as those of newer versions of containerd do by default.
const withoutUring = `{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
  {"names": ["io_uring_setup", "io_uring_enter", "io_uring_register"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1}]}`

// base: the pods of deploy/kubernetes/gateway become ready, although none of its upstreams exists. They follow a changed ConfigMap without a restart, and
// run on epoll where io_uring is forbidden.
func (n *kubeNode) base() {
	n.t.Helper()
	n.writeNodeFile("/var/lib/kubelet/seccomp/without-uring.json", withoutUring, 0o644)
	dir := filepath.Join(n.dir, "overlay")
	base, err := filepath.Abs("../deploy/kubernetes/gateway")
	if err == nil {
		base, err = filepath.Rel(dir, base)
	}
	if err != nil {
		n.t.Fatal(err)
	}
	overlay := "resources: [" + base + "]\nnamespace: headpond\nimages: [{name: headpond, newTag: pods}]\n"
	n.writeNodeFile(dir+"/kustomization.yaml", overlay, 0o644)
	n.kubectl("create", "namespace", "headpond")
	n.kubectl("-n", "headpond", "create", "secret", "generic", "headpond", `--from-literal=users.txt="app" "secret"`, "--from-literal=app.password=secret")
	n.kubectl("apply", "-k", dir)
	n.kubectl("-n", "headpond", "rollout", "status", "deployment/headpond", "--timeout=4m")
	pods := n.pods("headpond")

	config := strings.Replace(readFile(n.t, "../deploy/kubernetes/gateway/headpond.yaml"), "discover: {dns: api.default:8080}", "endpoints: ["+nodeAddress+":8080]", 1)
	n.writeNodeFile(dir+"/headpond.yaml", strings.Replace(config, "health: {http: /healthz}", "", 1), 0o644)
	overlay += "configMapGenerator: [{name: headpond, behavior: replace, files: [headpond.yaml]}]\n"
	n.writeNodeFile(dir+"/kustomization.yaml", overlay, 0o644)
	n.kubectl("apply", "-k", dir)
	address := n.field(".spec.clusterIP", "-n", "headpond", "service/headpond")
	n.awaitAnswer("http://"+address+"/", "from the backend")
	if now := n.pods("headpond"); now != pods {
		n.t.Errorf("other pods after a change of the configuration: %s, before: %s", now, pods)
	}

	overlay += `patches:
  - target: {kind: Deployment}
    patch: |
      - {op: replace, path: /spec/template/spec/securityContext/seccompProfile, value: {type: Localhost, localhostProfile: without-uring.json}}
`
	n.writeNodeFile(dir+"/kustomization.yaml", overlay, 0o644)
	n.kubectl("apply", "-k", dir)
	n.kubectl("-n", "headpond", "rollout", "status", "deployment/headpond", "--timeout=4m")
	n.awaitGone(pods)
	n.awaitAnswer("http://"+address+"/", "from the backend")
	if log := n.kubectl("-n", "headpond", "logs", "deployment/headpond"); !strings.Contains(log, "epoll") {
		n.t.Errorf("without io_uring:\n%s", log)
	}
	n.kubectl("delete", "namespace", "headpond", "--timeout=4m")
}

// chartConfig is the configuration for the chart; VERSION is what it answers at /version.
const chartConfig = `admin: 0.0.0.0:9090
drain_timeout: 10s
listeners:
  - name: web
    protocol: http
    listen: 0.0.0.0:8080
    http:
      routes:
        - {path: /version, respond: {body: VERSION}}
        - {path: /, upstream: api}
upstreams:
  api: {discover: {kubernetes: prod/web}}
`

// chart: the pods of the Helm chart become ready and find the endpoints of a Service by the permissions that the chart gives them. An upgrade with a wrong
// configuration changes nothing, one with another configuration changes no pod, and no request fails while all pods are replaced.
func (n *kubeNode) chart() {
	n.t.Helper()
	n.kubectl("create", "namespace", "headpond")
	n.kubectl("label", "namespace", "headpond", "pod-security.kubernetes.io/enforce=restricted")
	file := filepath.Join(n.dir, "headpond.yaml")
	helm := func(config string, more ...string) (string, int) {
		writeFile(n.t, file, []byte(config))
		args := append([]string{"--kubeconfig", n.kubeconfig, "upgrade", "--install", "headpond", "../deploy/helm/headpond", "-n", "headpond",
			"--wait", "--timeout", "4m", "--set-file", "config=" + file, "--set", "image.tag=pods,discoverNamespaces={prod}"}, more...)
		return run(n.t, 5*time.Minute, os.Getenv("HEADPOND_HELM"), args...)
	}
	upgrade := func(version string, more ...string) {
		n.t.Helper()
		if out, code := helm(strings.Replace(chartConfig, "VERSION", version, 1), more...); code != 0 {
			n.t.Fatalf("helm: exit %d\n%s\n%s", code, out, n.kubectl("-n", "headpond", "describe", "pods"))
		}
	}
	upgrade("one")
	address := n.field(".spec.clusterIP", "-n", "headpond", "service/headpond") + ":8080"
	n.awaitAnswer("http://"+address+"/", "from the backend")
	for _, pid := range gateways(n.t) {
		if !strings.Contains(readFile(n.t, fmt.Sprintf("/proc/%d/status", pid)), "Uid:\t0\t") { // the node's own
			checkConfined(n.t, pid, "65532")
		}
	}
	pods := n.pods("headpond")
	for _, ip := range strings.Fields(n.field(".items[*].status.podIP", "-n", "headpond", "pods")) {
		if metrics, err := fetchBody(http.DefaultClient, "http://"+ip+":9090/metrics"); err != nil || !strings.Contains(metrics, `headpond_upstream_endpoint_healthy{endpoint="`+nodeAddress+`:8080"`) {
			n.t.Errorf("metrics of %s: %v", ip, err)
		}
	}

	if out, code := helm(strings.Replace(chartConfig, "upstream: api", "upstream: apis", 1)); code == 0 {
		n.t.Errorf("helm takes a wrong configuration:\n%s", out)
	} else if log, _ := n.try("-n", "headpond", "logs", "job/headpond-check"); !strings.Contains(log, "apis") {
		n.t.Errorf("the Job does not name the mistake:\n%s", log)
	}
	n.awaitAnswer("http://"+address+"/version", "one")
	upgrade("two")
	n.awaitAnswer("http://"+address+"/version", "two")
	if now := n.pods("headpond"); now != pods {
		n.t.Errorf("other pods after a change of the configuration: %s, before: %s", now, pods)
	}

	end := n.load(address)
	n.kubectl("-n", "headpond", "rollout", "restart", "deployment/headpond")
	n.kubectl("-n", "headpond", "rollout", "status", "deployment/headpond", "--timeout=4m")
	n.awaitGone(pods)
	end()
	n.awaitAnswer("http://"+address+"/version", "two")

	upgrade("three", "--set", "kind=DaemonSet")
	n.awaitAnswer("http://"+address+"/version", "three")
}
