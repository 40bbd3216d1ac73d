package kube_test

import (
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headpond/headpond/internal/certs"
	"github.com/headpond/headpond/internal/sourcetest"
	"github.com/headpond/headpond/upstream/kube"
)

// TestKubeconfig asks as a kubeconfig says: files beside it, data in it, and a server that is another.
func TestKubeconfig(t *testing.T) {
	a := newAPI(t)
	a.put("k", ofPort(6443, at("10.0.0.1", "")))
	dir := t.TempDir()
	ca, err := os.ReadFile(a.ca)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "ca.crt"), string(ca))
	write(t, filepath.Join(dir, "token"), "secret-1")
	text := fmt.Sprintf(`
apiVersion: v1
kind: Config
current-context: files
contexts:
- {name: files, context: {cluster: files, user: file}}
- {name: data, context: {cluster: data, user: data, namespace: x}}
- {name: elsewhere, context: {cluster: elsewhere, user: data}}
clusters:
- {name: files, cluster: {server: %[1]q, certificate-authority: ca.crt}}
- {name: data, cluster: {server: %[1]q, certificate-authority-data: %[2]s, tls-server-name: localhost}}
- {name: elsewhere, cluster: {server: "https://127.0.0.1:1", certificate-authority: ca.crt}}
users:
- {name: file, user: {tokenFile: token}}
- {name: data, user: {token: secret-1}}
`, a.URL, base64.StdEncoding.EncodeToString(ca))
	path := write(t, filepath.Join(dir, "config"), text)
	for _, cfg := range []kube.Config{
		{Kubeconfig: path}, {Kubeconfig: path, Context: "data"}, {Kubeconfig: path, Context: "elsewhere", Server: strings.TrimPrefix(a.URL, "https://")},
	} {
		watch(t, cfg).Wants("10.0.0.1:6443")
	}
	// It is read again, as long as it cannot be used, too.
	write(t, path, strings.ReplaceAll(text, "secret-1", "secret-0"))
	w := watch(t, kube.Config{Kubeconfig: path, Context: "data"})
	w.Wants("!")
	write(t, path, "{")
	w.Wants("!")
	write(t, path, text)
	w.Until("10.0.0.1:6443")
}

func TestBadKubeconfig(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config")
	const form = `{current-context: c, contexts: [{name: c, context: {cluster: k, user: u}}], clusters: [{name: k, cluster: %s}], users: [{name: u, user: %s}]}`
	ok := `{server: "https://127.0.0.1:6443"}`
	for _, c := range []struct{ text, context, want string }{
		{fmt.Sprintf(form, ok, "{}"), "other", `it has no context "other", only ["c"]`},
		{fmt.Sprintf(form, "{}", "{}"), "", `the context "c" has no server`},
		{fmt.Sprintf(form, `{server: "https://x", insecure-skip-tls-verify: true}`, "{}"), "", "insecure-skip-tls-verify is not supported"},
		{fmt.Sprintf(form, `{server: "https://x", proxy-url: "http://y"}`, "{}"), "", "proxy-url is not supported"},
		{fmt.Sprintf(form, ok, "{exec: {command: aws}}"), "", "exec or auth-provider"},
		{fmt.Sprintf(form, ok, "{username: admin, password: geheim}"), "", "users with a password"},
		{fmt.Sprintf(form, ok, "{client-key-data: geheim!}"), "", "client-key-data is not base64"},
		{fmt.Sprintf(form, ok, "{token: [geheim]}"), "", "it is not a valid kubeconfig"},
	} {
		write(t, path, c.text)
		err := kube.CheckKubeconfig(path, c.context)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "geheim") {
			t.Errorf("%v, want %s, without the secret", err, c.want)
		}
	}
	if err := kube.CheckKubeconfig(filepath.Dir(path), ""); err == nil || !strings.Contains(err.Error(), "is not a regular file") {
		t.Errorf("a folder: %v", err)
	}
}

// TestPod uses the credentials that Kubernetes gives its pods.
func TestPod(t *testing.T) {
	a := newAPI(t)
	a.put("k", ofPort(6443, at("10.0.0.1", "")))
	host, port, _ := net.SplitHostPort(a.Listener.Addr().String())
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if w := watch(t, kube.Config{}).Wants("!"); !strings.Contains(w.Err.Error(), "KUBERNETES_SERVICE_HOST is not set") {
		t.Errorf("%v, want that this is not a pod", w.Err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", host)
	t.Setenv("KUBERNETES_SERVICE_PORT", port)
	dir := t.TempDir()
	cfg := a.config(t)
	ca, _ := os.ReadFile(cfg.CA)
	write(t, filepath.Join(dir, "ca.crt"), string(ca))
	write(t, filepath.Join(dir, "token"), "secret-1")
	s, err := kube.New(kube.Config{})
	if err != nil {
		t.Fatal(err)
	}
	s.SetAccountDir(dir)
	sourcetest.Watch(t, s).Wants("10.0.0.1:6443")
}

// TestClearText is for a proxy of kubectl's, and never carries credentials.
func TestClearText(t *testing.T) {
	a := newAPI(t)
	cfg := a.config(t)
	cfg.Server, cfg.CA = "http://127.0.0.1:1", ""
	if r := watch(t, cfg).Wants("!"); !strings.Contains(r.Err.Error(), "credentials in clear text") {
		t.Error(r.Err)
	}
}

// TestClientCertificate authenticates by certificate, and then without the pod's token.
func TestClientCertificate(t *testing.T) {
	a := newAPI(t)
	a.put("k", ofPort(6443, at("10.0.0.1", "")))
	a.mu.Lock()
	a.token = ""
	a.broken = func(w http.ResponseWriter, r *http.Request) bool {
		known := len(r.TLS.PeerCertificates) == 1 && r.TLS.PeerCertificates[0].Subject.CommonName == "node-1"
		if !known {
			fail(w, http.StatusUnauthorized, "Unauthorized")
		}
		return !known
	}
	a.mu.Unlock()
	cert, key := certs.PEM(a.authority.Issue("node-1"))
	dir := t.TempDir()
	write(t, filepath.Join(dir, "cert"), string(cert))
	write(t, filepath.Join(dir, "key"), string(key))
	host, port, _ := net.SplitHostPort(a.Listener.Addr().String())
	t.Setenv("KUBERNETES_SERVICE_HOST", host)
	t.Setenv("KUBERNETES_SERVICE_PORT", port)
	watch(t, kube.Config{CA: a.ca, Cert: filepath.Join(dir, "cert"), Key: filepath.Join(dir, "key")}).Wants("10.0.0.1:6443")
}
