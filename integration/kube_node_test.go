//go:build kube

package integration

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// nodeName is the node's name, and nodeAddress its address (scripts/test-pods-inside.sh).
const (
	nodeName    = "node1"
	nodeAddress = "10.98.0.10"
)

// kubeNode is a cluster with one node on which pods run, and what that takes: containerd, kubelet, kube-proxy, the scheduler and the controllers. The
// test's own process is in the node's network, in a file system that ends with it (scripts/test-pods.sh).
type kubeNode struct {
	*kubeCluster
	kubeconfig string // of an administrator
}

// kubeconfig is one that has a token.
func (c *kubeCluster) kubeconfig(server, token string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://%s", certificate-authority: %q}}]
users: [{name: u, user: {token: %s}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
current-context: c
`, server, c.file("ca"), token)
}

// startNode starts everything but the kubelet.
func startNode(t *testing.T) *kubeNode {
	t.Helper()
	n := &kubeNode{kubeCluster: startKube(t)}
	server := n.servers[0].address()
	n.kubeconfig = writeFile(t, n.file("admin.conf"), []byte(n.kubeCluster.kubeconfig(server, adminToken)))
	n.startContainerd()
	n.startDaemon("kube-controller-manager", "--kubeconfig="+n.kubeconfig, "--leader-elect=false", "--root-ca-file="+n.file("ca"),
		"--service-account-private-key-file="+n.file("account"), "--cert-dir="+n.file("controllers"))
	n.startDaemon("kube-scheduler", "--kubeconfig="+n.kubeconfig, "--leader-elect=false")
	// The limits of connections belong to the whole machine.
	n.startDaemon("kube-proxy", "--config="+writeFile(t, n.file("proxy.yaml"), fmt.Appendf(nil, `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clientConnection: {kubeconfig: %q}
conntrack: {maxPerCore: 0}
detectLocalMode: BridgeInterface
detectLocal: {bridgeInterface: cni0}
hostnameOverride: %s
`, n.kubeconfig, nodeName)))
	return n
}

// startDaemon starts a program of Kubernetes. Its output is shown if the test fails.
func (n *kubeNode) startDaemon(name string, args ...string) *process {
	n.t.Helper()
	t, p := n.t, start(n.t, exec.Command(name, args...))
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s:\n%s", name, tail(p.out.String(), 40))
		}
	})
	return p
}

// startContainerd starts containerd with the images of the test. Root without CAP_SYS_RESOURCE must not lower oom_score_adj.
func (n *kubeNode) startContainerd() {
	n.t.Helper()
	for name, text := range map[string]string{
		"/etc/containerd/config.toml": `version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "headpond.test/pause:1"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "/etc/cni/net.d"
`,
		"/etc/cni/net.d/10-node.conflist": `{"cniVersion": "0.4.0", "name": "node", "plugins": [{"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
  "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.97.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}`,
	} {
		n.writeNodeFile(name, text, 0o644)
	}
	n.startDaemon("containerd")
	eventually(n.t, "containerd is ready", func() error {
		if out, code := run(n.t, patience, "ctr", "version"); code != 0 {
			return errors.New(out)
		}
		return nil
	})
	for image := range strings.SplitSeq(os.Getenv("HEADPOND_IMAGES"), ":") {
		if out, code := run(n.t, patience, "ctr", "-n", "k8s.io", "images", "import", image); code != 0 {
			n.t.Fatal(out)
		}
	}
}

// startKubelet starts the kubelet with its own kubeconfig.
func (n *kubeNode) startNodeKubelet(kubeconfig string) *process {
	n.t.Helper()
	config := n.file("kubelet.yaml")
	// The machine's disks and memory are not the test's. Changed files and restarts are noticed sooner than by default.
	writeFile(n.t, config, []byte(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
staticPodPath: /etc/kubernetes/manifests
fileCheckFrequency: 1s
resolvConf: ""
crashLoopBackOff: {maxContainerRestartPeriod: 1s}
evictionHard: {memory.available: 0%, nodefs.available: 0%, nodefs.inodesFree: 0%, imagefs.available: 0%, imagefs.inodesFree: 0%}
imageGCHighThresholdPercent: 100
localStorageCapacityIsolation: false
`))
	return n.startDaemon("kubelet", "--config="+config, "--kubeconfig="+kubeconfig, "--hostname-override="+nodeName, "--node-ip="+nodeAddress)
}

// writeNodeFile writes a file of the node, of a mode that others of the node may need.
func (n *kubeNode) writeNodeFile(name, text string, mode os.FileMode) {
	n.t.Helper()
	err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), mode))
	if err != nil {
		n.t.Fatal(err)
	}
}

// try runs kubectl.
func (n *kubeNode) try(args ...string) (string, error) {
	out, code := run(n.t, 5*time.Minute, "kubectl", append([]string{"--kubeconfig", n.kubeconfig}, args...)...)
	if code != 0 {
		return out, fmt.Errorf("kubectl %s: %s", strings.Join(args, " "), out)
	}
	return out, nil
}

// kubectl runs kubectl, which must succeed.
func (n *kubeNode) kubectl(args ...string) string {
	n.t.Helper()
	out, err := n.try(args...)
	if err != nil {
		n.t.Fatal(err)
	}
	return out
}

// await waits until an object exists and, unless condition is "", until it holds.
func (n *kubeNode) await(condition string, object ...string) {
	n.t.Helper()
	wait := append([]string{"wait", "--timeout=4m"}, object...)
	n.kubectl(append(wait, "--for=create")...)
	if condition != "" {
		n.kubectl(append(wait, "--for="+condition)...)
	}
}

// field returns what is at a path of an object.
func (n *kubeNode) field(path string, object ...string) string {
	n.t.Helper()
	return n.kubectl(append([]string{"get", "-o", "jsonpath={" + path + "}"}, object...)...)
}

// gateways returns the processes of gateways in pods.
func gateways(t *testing.T) (pids []int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range all {
		line, err := os.ReadFile(name)
		if err == nil && strings.HasPrefix(string(line), "/headpond\x00serve\x00") {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
			pids = append(pids, pid)
		}
	}
	return pids
}
