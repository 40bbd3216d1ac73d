package kubenode

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	gatewayURL = "https://127.0.0.1:7443"
	serviceDNS = "kubernetes.default.svc"
)

// secretValue is in every kubeconfig of these tests, and in nothing that is printed.
const secretValue = "c2VjcmV0"

const rest = "users: [{name: u, user: {token: " + secretValue + "}}]\n"

func TestOnlyTheServerChanges(t *testing.T) {
	for name, c := range map[string]struct{ before, after string }{
		"block": {
			"clusters:\n- cluster:\n    server: https://a:6443 # the first\n    certificate-authority-data: eA==\n  name: c\n" + rest,
			"clusters:\n- cluster:\n    server: \"https://127.0.0.1:7443\" # the first\n    tls-server-name: \"kubernetes.default.svc\"\n    certificate-authority-data: eA==\n  name: c\n" + rest,
		},
		"single quotes, Windows": {
			"clusters:\r\n- name: c\r\n  cluster:\r\n    server: 'https://a:6443'\r\n" + rest,
			"clusters:\r\n- name: c\r\n  cluster:\r\n    server: \"https://127.0.0.1:7443\"\r\n    tls-server-name: \"kubernetes.default.svc\"\r\n" + rest,
		},
		"no line end": {
			rest + "clusters:\n- name: c\n  cluster:\n    server: https://a:6443",
			rest + "clusters:\n- name: c\n  cluster:\n    server: \"https://127.0.0.1:7443\"\n    tls-server-name: \"kubernetes.default.svc\"\n",
		},
		"JSON": {
			`{"clusters": [{"name": "ünï", "cluster": {"server": "https://a:6443", "insecure-skip-tls-verify": true}}], "users": [{"name": "u", "user": {"token": "` + secretValue + `"}}]}`,
			`{"clusters": [{"name": "ünï", "cluster": {"server": "https://127.0.0.1:7443", "tls-server-name": "kubernetes.default.svc", "insecure-skip-tls-verify": true}}], "users": [{"name": "u", "user": {"token": "` + secretValue + `"}}]}`,
		},
		"a name is kept": {
			"clusters: [{name: c, cluster: {tls-server-name: api.example.org, server: https://a}}]\n" + rest,
			"clusters: [{name: c, cluster: {tls-server-name: api.example.org, server: \"https://127.0.0.1:7443\"}}]\n" + rest,
		},
		"the cluster of the current context": {
			"current-context: y\ncontexts: [{name: x, context: {cluster: a}}, {name: y, context: {cluster: b}}]\nclusters: [{name: a, cluster: {server: https://a}}, {name: b, cluster: {server: https://b}}]\n" + rest,
			"current-context: y\ncontexts: [{name: x, context: {cluster: a}}, {name: y, context: {cluster: b}}]\nclusters: [{name: a, cluster: {server: https://a}}, {name: b, cluster: {server: \"https://127.0.0.1:7443\", \"tls-server-name\": \"kubernetes.default.svc\"}}]\n" + rest,
		},
	} {
		got, edit, err := pointAt([]byte(c.before), gatewayURL, serviceDNS)
		if err != nil || string(got) != c.after {
			t.Errorf("%s: %v, got\n%s\nwant\n%s", name, err, got, c.after)
			continue
		}
		again, _, err := pointAt(got, gatewayURL, serviceDNS)
		if err != nil || !bytes.Equal(again, got) {
			t.Errorf("%s, a second time: %v\n%s", name, err, again)
		}
		for _, line := range edit.lines() {
			if strings.Contains(line, secretValue) {
				t.Errorf("%s: %q", name, line)
			}
		}
	}
}

func TestKubeconfigsThatCannotBeRewritten(t *testing.T) {
	for before, want := range map[string]string{
		"":                        "not in the form of a kubeconfig",
		"- " + secretValue + "\n": "not in the form of a kubeconfig",
		"clusters: [\n" + rest:    "not in the form of a kubeconfig",
		"apiVersion: v1\n" + rest: "no current context that names one of them",
		"clusters: [{name: a, cluster: {server: https://a}}, {name: b, cluster: {server: https://b}}]\n" + rest:                          `it has the clusters ["a" "b"]`,
		"current-context: x\ncontexts: [{name: x, context: {cluster: c}}]\nclusters: [{name: a, cluster: {server: https://a}}]\n" + rest: `of the cluster "c", and it has only ["a"]`,
		"clusters: [{name: a, cluster: {}}]\n" + rest:                                                                                                                                `the cluster "a" has no server`,
		"clusters: [{name: a, cluster: {server: 'http://a'}}]\n" + rest:                                                                                                              "is not https",
		"clusters: [{name: a, cluster: {server: 'https://me:" + secretValue + "@a'}}]\n" + rest:                                                                                      "has a user",
		"clusters: [{name: a, cluster: {server: 'https://me:" + secretValue + "%zz@a'}}]\n" + rest:                                                                                   "is no https://host:port",
		"clusters: [{name: a, cluster: {server: 'https://rancher/k8s/clusters/c-1'}}]\n" + rest:                                                                                      "has a path",
		"clusters: [{name: a, cluster: {server: 'https://a', proxy-url: 'http://p'}}]\n" + rest:                                                                                      "through a proxy-url",
		"clusters: [{name: a, cluster: {server: \"https:\\/\\/a\"}}]\n" + rest:                                                                                                       "line 1: write the server's URL there as it is",
		"clusters: [{name: a, cluster: {server: &" + secretValue + " 'https://a'}}]\nx: *" + secretValue + "\n" + rest:                                                               "line 1: write the server's URL",
		"clusters: &c [{name: a, cluster: {server: https://a}}]\ncurrent-context: x\ncontexts: [{name: x, context: {cluster: a}}]\nextensions: *c\nx: *" + secretValue + "\n" + rest: "not in the form",
	} {
		_, _, err := pointAt([]byte(before), gatewayURL, serviceDNS)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), secretValue) {
			t.Errorf("%q: got %v, want %q", before, err, want)
		}
	}
}

// kubeconfigFile writes a kubeconfig with a mode.
func kubeconfigFile(t *testing.T, mode fs.FileMode) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "kubelet.conf")
	if err := os.WriteFile(path, []byte("clusters:\n- name: c\n  cluster:\n    server: https://a\n"+rest), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil { // independent of the umask
		t.Fatal(err)
	}
	return path
}

func TestWriteInPlace(t *testing.T) {
	path := kubeconfigFile(t, 0o600)
	link := filepath.Join(filepath.Dir(path), "link")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	f, err := rewrite(link, gatewayURL, "")
	if err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	if err := (Files{f}).Write("/", false, &said); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(path)
	if want := strings.Replace("clusters:\n- name: c\n  cluster:\n    server: https://a\n"+rest, "https://a", `"`+gatewayURL+`"`, 1); err != nil || string(got) != want {
		t.Errorf("%v, got\n%s", err, got)
	}
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, mode %v", err, info.Mode())
	}
	if info, err := os.Lstat(link); err != nil || info.Mode()&fs.ModeSymlink == 0 {
		t.Errorf("the link is one no more: %v", err)
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 2 {
		t.Errorf("%v, %v is left", err, left)
	}
	if !strings.Contains(said.String(), "wrote "+path+" (mode 0600)\n") || strings.Contains(said.String(), secretValue) {
		t.Errorf("said %q", &said)
	}
}

func TestWriteDoesNotReplace(t *testing.T) {
	dir := t.TempDir()
	o := usual()
	o.Rewrite = []string{kubeconfigFile(t, 0o640)}
	files, err := Plan(o)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // correct content is kept
		if err := files.Write(dir, false, new(bytes.Buffer)); err != nil {
			t.Fatal(err)
		}
	}
	if info, err := os.Stat(filepath.Join(dir, o.Rewrite[0])); err != nil || info.Mode() != 0o640 {
		t.Errorf("%v, mode %v", err, info)
	}
	unit := filepath.Join(dir, unitPath)
	if err := os.WriteFile(unit, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	files[0].Data = []byte("changed")
	if err := files.Write(dir, false, new(bytes.Buffer)); err == nil || !strings.Contains(err.Error(), "-force replaces it") {
		t.Errorf("got %v", err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, o.Config)); err != nil || string(got) == "changed" {
		t.Errorf("one file was written although another was refused: %v", err)
	}
	if err := files.Write(dir, true, new(bytes.Buffer)); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(unit); err != nil || string(got) == "mine" {
		t.Errorf("not replaced: %v", err)
	}
}

// TestWriteNoticesOthers: a kubelet may renew its kubeconfig between Plan and Write.
func TestWriteNoticesOthers(t *testing.T) {
	path := kubeconfigFile(t, 0o600)
	f, err := rewrite(path, gatewayURL, serviceDNS)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("renewed"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := (Files{f}).Write("/", true, new(bytes.Buffer)); err == nil || !strings.Contains(err.Error(), "by another program") {
		t.Errorf("got %v", err)
	}
}

func FuzzKubeconfig(f *testing.F) {
	f.Add([]byte("clusters:\n- name: c\n  cluster:\n    server: https://a\n" + rest))
	f.Add([]byte(`{"clusters": [{"name": "c", "cluster": {"server": "https://a"}}]}`))
	f.Fuzz(func(t *testing.T, before []byte) {
		after, edit, err := pointAt(before, gatewayURL, serviceDNS)
		if err != nil {
			return
		}
		if edit.From != gatewayURL && !bytes.HasPrefix(after, before[:edit.replaceable.start]) {
			t.Errorf("the text before the server has changed: %q to %q", before, after)
		}
		if again, second, err := pointAt(after, gatewayURL, serviceDNS); err != nil || second.From != gatewayURL || !bytes.Equal(again, after) {
			t.Errorf("%q is %q the second time: %v", after, again, err)
		}
	})
}
