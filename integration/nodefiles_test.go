package integration

import (
	"crypto/tls"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"github.com/headpond/headpond/internal/certs"
)

const nodeToken = "token-of-the-node"

// nodeFiles is a node with a kubeconfig, and an API server whose certificate has only the name of the Service.
type nodeFiles struct {
	dir, kubeconfig, listen string
	flags                   []string
}

func newNode(t *testing.T) *nodeFiles {
	t.Helper()
	n := &nodeFiles{dir: sharedDir(t), listen: address(t)}
	authority := certs.New()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/readyz" && r.Header.Get("Authorization") != "Bearer "+nodeToken {
			w.WriteHeader(http.StatusUnauthorized)
		}
		_, _ = io.WriteString(w, r.URL.Path)
	}))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{authority.Issue("kube-apiserver", serviceOfAPI)}}
	server.StartTLS()
	t.Cleanup(server.Close)
	ca, _ := certs.PEM(authority.Certificate)
	caFile := filepath.Join(n.dir, "ca.crt")
	if err := os.WriteFile(caFile, ca, 0o600); err != nil {
		t.Fatal(err)
	}
	before := clientcmdapi.NewConfig()
	before.Clusters["cluster"] = &clientcmdapi.Cluster{Server: server.URL, CertificateAuthorityData: ca}
	before.AuthInfos["node"] = &clientcmdapi.AuthInfo{Token: nodeToken}
	before.Contexts["node@cluster"] = &clientcmdapi.Context{Cluster: "cluster", AuthInfo: "node"}
	before.CurrentContext = "node@cluster"
	n.kubeconfig = filepath.Join(n.dir, "kubelet.conf")
	if err := clientcmd.WriteToFile(*before, n.kubeconfig); err != nil {
		t.Fatal(err)
	}
	n.flags = []string{
		"kube", "-out", "/", "-servers", server.Listener.Addr().String(), "-listen", n.listen, "-admin", address(t), "-ca", caFile, "-state", n.dir,
		"-config", filepath.Join(n.dir, "headpond.yaml"), "-manifests", n.dir + "/manifests", "-pod", "example.org/headpond:1", "-rewrite", n.kubeconfig,
	}
	return n
}

// serviceOfAPI is the name that API servers have in their certificates.
const serviceOfAPI = "kubernetes.default.svc"

// TestNodeFiles reads the files of "headpond kube" with Kubernetes's own types and clients, and connects from a
// kubeconfig through the gateway to an API server.
func TestNodeFiles(t *testing.T) {
	n := newNode(t)
	program := built(t, plainBinary)
	before, err := clientcmd.LoadFromFile(n.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	if out, code := run(t, patience, program, n.flags...); code != 0 {
		t.Fatalf("exit %d\n%s", code, out)
	}

	var pod corev1.Pod
	if err := yaml.UnmarshalStrict([]byte(readFile(t, n.dir+"/manifests/headpond.yaml")), &pod); err != nil {
		t.Fatal(err)
	}
	checkPod(t, &pod)

	after, err := clientcmd.LoadFromFile(n.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	if err := clientcmd.Validate(*after); err != nil {
		t.Error(err)
	}
	cluster := before.Clusters["cluster"]
	cluster.Server, cluster.TLSServerName = "https://"+n.listen, serviceOfAPI
	want, err := clientcmd.Write(*before)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := clientcmd.Write(*after); err != nil || string(got) != string(want) {
		t.Errorf("%v: got\n%s\nwant\n%s", err, got, want)
	}

	gateway := start(t, exec.Command(program, "serve", n.dir+"/headpond.yaml"))
	config, err := clientcmd.BuildConfigFromFlags("", n.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	eventually(t, "an answer through the gateway", func() error {
		if gateway.Ended() {
			t.Fatalf("the gateway ended:\n%s", tail(gateway.out.String(), 30))
		}
		resp, err := client.Get(config.Host + "/api/v1/nodes")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if body, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK || string(body) != "/api/v1/nodes" {
			t.Fatalf("%s: %q, %v", resp.Status, body, err)
		}
		return nil
	})
}

// checkPod validates a pod as an API server would. A kubelet validates less and then fails to start
// the pod.
func checkPod(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	if pod.APIVersion != "v1" || pod.Kind != "Pod" || pod.Namespace != "kube-system" || !pod.Spec.HostNetwork || len(pod.Spec.Containers) != 1 {
		t.Fatalf("got %+v", pod)
	}
	volumes := map[string]string{}
	for _, v := range pod.Spec.Volumes {
		if v.HostPath == nil || v.HostPath.Type == nil || volumes[v.Name] != "" {
			t.Fatalf("volume %+v", v)
		}
		volumes[v.Name] = v.HostPath.Path
	}
	c := pod.Spec.Containers[0]
	for _, m := range c.VolumeMounts {
		if volumes[m.Name] != m.MountPath {
			t.Errorf("%s is mounted at %s, its volume is %q", m.Name, m.MountPath, volumes[m.Name])
		}
		delete(volumes, m.Name)
	}
	if len(volumes) > 0 {
		t.Errorf("not mounted: %v", volumes)
	}
	p := c.LivenessProbe
	if p == nil || p.HTTPGet == nil || p.HTTPGet.Port.IntValue() == 0 || p.TerminationGracePeriodSeconds == nil {
		t.Fatalf("probe %+v", p)
	}
	// A cluster takes a node for lost after 40 seconds, before Kubernetes 1.32.
	if found := p.PeriodSeconds + p.FailureThreshold*p.TimeoutSeconds + int32(*p.TerminationGracePeriodSeconds); found > 35 {
		t.Errorf("a gateway that hangs ends after %d seconds", found)
	}
}
