//go:build kube

package integration

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/headpond/headpond/internal/certs"
)

// adminToken belongs to system:masters in the file of --token-auth-file.
const adminToken = "admin-of-the-test"

// serviceName is a name in the certificates of API servers.
const serviceName = "kubernetes.default.svc"

// serviceAddress is the address of the Service of the API servers: the first of --service-cluster-ip-range.
const serviceAddress = "10.99.0.1"

// kubeCluster is three API servers with one etcd, each at its own address (scripts/test-kube.sh).
type kubeCluster struct {
	t       *testing.T
	dir     string
	etcd    string // URL
	tls     *tls.Config
	servers []*kubeServer
}

// kubeServer is one API server.
type kubeServer struct {
	*process
	cluster *kubeCluster
	host    string
}

func (s *kubeServer) address() string { return s.host + ":6443" }

func (c *kubeCluster) file(name string) string { return filepath.Join(c.dir, name) }

// writeFile writes a file that the gateway's user can read.
func writeFile(t *testing.T, path string, data []byte) string {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// startKube starts a cluster, without nodes and controllers.
func startKube(t *testing.T) *kubeCluster {
	t.Helper()
	c := &kubeCluster{t: t, dir: sharedDir(t)}
	authority := certs.New()
	hosts := []string{"localhost", serviceName, "10.98.0.1", "10.98.0.2", "10.98.0.3", "127.0.0.1", serviceAddress}
	ca, _ := certs.PEM(authority.Certificate)
	cert, key := certs.PEM(authority.Issue("kube-apiserver", hosts...))
	accountCert, account := certs.PEM(authority.Issue("service-accounts"))
	for name, data := range map[string][]byte{"ca": ca, "cert": cert, "key": key, "account": account, "account-cert": accountCert, "tokens": []byte(adminToken + `,admin,admin,"system:masters"` + "\n" + nodeToken + `,system:node:` + nodeName + `,node,"system:nodes"`)} {
		writeFile(t, c.file(name), data)
	}
	c.tls = &tls.Config{RootCAs: authority.Pool, ServerName: serviceName}
	c.startEtcd()
	for _, host := range []string{"10.98.0.1", "10.98.0.2", "10.98.0.3"} {
		s := &kubeServer{cluster: c, host: host}
		s.start()
		c.servers = append(c.servers, s)
	}
	for _, s := range c.servers {
		s.awaitReady()
	}
	return c
}

func (c *kubeCluster) startEtcd() {
	client, peer := address(c.t), address(c.t)
	c.etcd = "http://" + client
	cmd := exec.Command("etcd", "--data-dir", c.file("etcd"), "--listen-client-urls", c.etcd, "--advertise-client-urls", c.etcd,
		"--listen-peer-urls", "http://"+peer, "--initial-advertise-peer-urls", "http://"+peer, "--initial-cluster", "default=http://"+peer)
	etcd := start(c.t, cmd)
	eventually(c.t, "etcd is ready", func() error {
		if etcd.Ended() {
			c.t.Fatalf("etcd ended:\n%s", tail(etcd.out.String(), 30))
		}
		resp, err := http.Get(c.etcd + "/health")
		if err == nil {
			resp.Body.Close()
		}
		return err
	})
}

// start starts a server, or starts it again.
func (s *kubeServer) start() {
	c := s.cluster
	s.process = start(c.t, exec.Command(os.Getenv("HEADPOND_KUBE_APISERVER"),
		"--etcd-servers="+c.etcd, "--bind-address="+s.host, "--advertise-address="+s.host, "--secure-port=6443",
		"--tls-cert-file="+c.file("cert"), "--tls-private-key-file="+c.file("key"), "--client-ca-file="+c.file("ca"), "--cert-dir="+c.file("certs-"+s.host),
		"--service-account-issuer=https://"+serviceName, "--service-account-key-file="+c.file("account-cert"),
		"--service-account-signing-key-file="+c.file("account"), "--service-cluster-ip-range=10.99.0.0/16", "--authorization-mode=Node,RBAC",
		"--kubelet-preferred-address-types=InternalIP",
		"--token-auth-file="+c.file("tokens"), "--shutdown-delay-duration=5s"))
}

// awaitReady waits longer than other tests: three servers start together, at first with an empty etcd.
func (s *kubeServer) awaitReady() {
	s.cluster.t.Helper()
	client := s.cluster.client(s.address())
	defer client.CloseIdleConnections()
	for range 6 {
		ready := false
		s.cluster.within(func() error {
			if s.Ended() {
				s.cluster.t.Fatalf("the API server %s ended:\n%s", s.host, tail(s.out.String(), 30))
			}
			_, err := s.cluster.request(client, http.MethodGet, "/readyz", "", nil)
			ready = err == nil
			return err
		})
		if ready {
			return
		}
	}
	s.cluster.t.Fatalf("the API server %s is not ready:\n%s", s.host, tail(s.out.String(), 30))
}

func (s *kubeServer) signal(sig os.Signal) {
	s.cluster.t.Helper()
	if err := s.Cmd.Process.Signal(sig); err != nil {
		s.cluster.t.Fatal(err)
	}
}

// kill kills a server and waits until it has ended.
func (s *kubeServer) kill() {
	s.signal(syscall.SIGKILL)
	<-s.Done
}

// client returns a client that connects to an address in place of the cluster's.
func (c *kubeCluster) client(address string) *http.Client {
	var d net.Dialer
	return &http.Client{Transport: &http.Transport{TLSClientConfig: c.tls.Clone(), ForceAttemptHTTP2: true, DialContext: dialTo(&d, address)}}
}

// request sends a request to the cluster and returns the body. Any status but success is an error.
func (c *kubeCluster) request(client *http.Client, method, path, contentType string, body []byte) ([]byte, error) {
	req, err := http.NewRequest(method, "https://"+serviceName+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+adminToken)
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode/100 != 2 {
		err = fmt.Errorf("%s %s: %s: %.300s", method, path, resp.Status, data)
	}
	return data, err
}

// apply applies an object by server-side apply, which accepts YAML.
func (c *kubeCluster) apply(client *http.Client, path, object string) {
	c.t.Helper()
	if _, err := c.request(client, http.MethodPatch, path+"?fieldManager=test&force=true", "application/apply-patch+yaml", []byte(object)); err != nil {
		c.t.Fatal(err)
	}
}

// applyRBAC applies deploy/kubernetes/rbac.yaml and returns a token of its service account.
func (c *kubeCluster) applyRBAC(client *http.Client) string {
	c.t.Helper()
	paths := map[string]string{
		"kind: ServiceAccount": "/api/v1/namespaces/kube-system/serviceaccounts/headpond",
		"kind: Role\n":         "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles/headpond-endpoints",
		"kind: RoleBinding":    "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings/headpond-endpoints",
	}
	for object := range strings.SplitSeq(readFile(c.t, "../deploy/kubernetes/rbac.yaml"), "\n---\n") {
		for kind, path := range paths {
			if strings.Contains(object, "\n"+kind) || strings.HasPrefix(object, kind) {
				eventually(c.t, "applied "+kind, func() error { // the namespace may not exist yet
					_, err := c.request(client, http.MethodPatch, path+"?fieldManager=test", "application/apply-patch+yaml", []byte(object))
					return err
				})
				delete(paths, kind)
			}
		}
	}
	if len(paths) > 0 {
		c.t.Fatalf("deploy/kubernetes/rbac.yaml lacks %v", paths)
	}
	return c.newToken(client)
}

// newToken requests a token of the gateway's service account.
func (c *kubeCluster) newToken(client *http.Client) string {
	c.t.Helper()
	data, err := c.request(client, http.MethodPost, "/api/v1/namespaces/kube-system/serviceaccounts/headpond/token", "application/json",
		[]byte(`{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{"expirationSeconds":600}}`))
	if err != nil {
		c.t.Fatal(err)
	}
	var answer struct{ Status struct{ Token string } }
	if err := json.Unmarshal(data, &answer); err != nil || answer.Status.Token == "" {
		c.t.Fatalf("no token: %v %s", err, data)
	}
	return answer.Status.Token
}
