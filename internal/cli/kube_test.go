package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headpond/headpond/internal/certs"
)

// kubeNode is a folder with the files that the configuration of a node names.
func kubeNode(t *testing.T) (dir string, flags []string) {
	t.Helper()
	dir = t.TempDir()
	ca, _ := certs.PEM(certs.New().Certificate)
	for name, data := range map[string][]byte{
		"ca.crt": ca, "token": []byte("geheim"),
		"kubelet.conf": []byte("current-context: x\ncontexts: [{name: x, context: {cluster: c, user: u}}]\n" +
			"clusters: [{name: c, cluster: {server: 'https://10.0.0.1:6443'}}]\nusers: [{name: u, user: {token: geheim}}]\n"),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir, []string{
		"kube", "-servers", "10.0.0.1,10.0.0.2:443", "-ca", filepath.Join(dir, "ca.crt"), "-state", dir, "-config", filepath.Join(dir, "headpond.yaml"),
		"-manifests", dir + "/manifests", "-pod", "example.org/headpond:1", "-rewrite", filepath.Join(dir, "kubelet.conf"),
	}
}

func TestKubePrints(t *testing.T) {
	dir, line := kubeNode(t)
	code, stdout, stderr := execute(line...)
	if code != 0 || stderr != "" || strings.Contains(stdout, "geheim") {
		t.Fatalf("exit %d\n%s%s", code, stdout, stderr)
	}
	for _, want := range []string{
		`endpoints: ["10.0.0.1:6443","10.0.0.2:443"]`, "https: /readyz", "kind: Pod", "# " + dir + "/kubelet.conf (mode 0600)\n",
		`cluster "c": server https://127.0.0.1:7443, was https://10.0.0.1:6443`, `cluster "c": tls-server-name kubernetes.default.svc, was none`,
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in\n%s", want, stdout)
		}
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(left) != 3 {
		t.Errorf("it wrote: %v, %v", left, err)
	}
}

// TestKubeConfigurationIsGood lets "headpond check" read the written files in place, with each kind of endpoints.
func TestKubeConfigurationIsGood(t *testing.T) {
	dir, line := kubeNode(t)
	line = append(line, "-out", "/", "-force")
	for _, more := range [][]string{nil, {"-server-name", ""}, {"-token-file", dir + "/token"}, {"-kubeconfig", dir + "/kubelet.conf"}} {
		if code, stdout, stderr := execute(append(line, more...)...); code != 0 || strings.Contains(stdout+stderr, "geheim") {
			t.Fatalf("%q: exit %d\n%s%s", more, code, stdout, stderr)
		}
		code, stdout, stderr := execute("check", filepath.Join(dir, "headpond.yaml"))
		if code != 0 || stderr != "" {
			t.Errorf("%q: exit %d\n%s%s", more, code, stdout, stderr)
		}
	}
}

// TestKubeWarnsOfMissingFiles: the files of a node may be written before its credentials are there, which must be seen.
func TestKubeWarnsOfMissingFiles(t *testing.T) {
	dir, line := kubeNode(t)
	line = append(line, "-force", "-ca", dir+"/gone.crt", "-token-file", dir+"/token")
	want := "headpond kube: warning: -ca: the gateway needs this file: stat " + dir + "/gone.crt: no such file or directory\n"
	if code, _, stderr := execute(append(line, "-out", "/")...); code != 0 || stderr != want {
		t.Errorf("exit %d, %q, want %q", code, stderr, want)
	}
	if code, _, stderr := execute(append(line, "-out", t.TempDir())...); code != 0 || stderr != "" {
		t.Errorf("for another node: exit %d, %q", code, stderr)
	}
}

func TestKubeErrors(t *testing.T) {
	_, line := kubeNode(t)
	for flags, want := range map[string]struct {
		code   int
		output string
	}{
		"x":                        {2, "takes no arguments"},
		"-listn 1":                 {2, "flag provided but not defined: -listn"},
		"-listen 0.0.0.0:6443":     {1, "headpond kube: -listen 0.0.0.0:6443: want an address of this machine only"},
		"-rewrite /nowhere/x.conf": {1, "-rewrite: lstat /nowhere: no such file or directory"},
		"-config /etc/kubernetes/manifests/headpond.yaml -manifests /etc/kubernetes/manifests": {1, "there would be two"},
		"-rewrite /dev/null":          {1, "-rewrite /dev/null: it is not a regular file"},
		"-kubeconfig /nowhere/x.conf": {1, "-kubeconfig: open /nowhere/x.conf: no such file or directory"},
	} {
		code, stdout, stderr := execute(append(line, strings.Fields(flags)...)...)
		if code != want.code || !strings.Contains(stderr, want.output) || stdout != "" {
			t.Errorf("%s: exit %d\n%s%s\nwant exit %d and %q", flags, code, stdout, stderr, want.code, want.output)
		}
	}
}
