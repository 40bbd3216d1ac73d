package kubenode

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headpond/headpond/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// usual are the default options of the command.
func usual() Options {
	return Options{
		Listen: "127.0.0.1:7443", Servers: []string{"10.0.0.1:6443"}, CA: "/etc/kubernetes/pki/ca.crt", ServerName: "kubernetes.default.svc", Admin: "127.0.0.1:9090",
		Program: "/usr/local/bin/headpond", Config: "/etc/headpond/headpond.yaml", State: "/var/lib/headpond", Manifests: "/etc/kubernetes/manifests",
	}
}

func TestOptions(t *testing.T) {
	for want, change := range map[string]func(*Options){
		"-listen \"7443\": want an address and a port":                  func(o *Options) { o.Listen = "7443" },
		"want an address of this machine only":                          func(o *Options) { o.Listen = "10.0.0.9:7443" },
		"want a port from 1024 on":                                      func(o *Options) { o.Listen = "127.0.0.1:443" },
		"want the addresses of the API servers":                         func(o *Options) { o.Servers = nil },
		"-servers: \"https://10.0.0.1\": want host:port":                func(o *Options) { o.Servers = []string{"https://10.0.0.1"} },
		"-servers: \"10.0.0.1:0\": want host:port":                      func(o *Options) { o.Servers = []string{"10.0.0.1:0"} },
		"10.0.0.1:6443 is there twice":                                  func(o *Options) { o.Servers = []string{"10.0.0.1", "10.0.0.1:6443"} },
		"127.0.0.1:7443 is the gateway itself":                          func(o *Options) { o.Servers = []string{"127.0.0.1:7443"} },
		"-admin \"9090\": want an address":                              func(o *Options) { o.Admin = "9090" },
		"-admin 127.0.0.1:7443: the gateway listens there":              func(o *Options) { o.Admin = "127.0.0.1:7443" },
		"-cert and -key belong together":                                func(o *Options) { o.Cert = "/x" },
		"want one of them":                                              func(o *Options) { o.Kubeconfig, o.TokenFile = "/x", "/y" },
		"-server-name \"a b\": want a DNS name":                         func(o *Options) { o.ServerName = "a b" },
		"-pod \"a b\": want the name of an image":                       func(o *Options) { o.Image = "a b" },
		"-ca \"ca.crt\": want a path that begins with /":                func(o *Options) { o.CA = "ca.crt" },
		"-config \"/etc/a b\": want a plain path":                       func(o *Options) { o.Config = "/etc/a b" },
		"-token-file \"/etc/../x\": want a plain path":                  func(o *Options) { o.TokenFile = "/etc/../x" },
		"-program \"/x%n\": want a plain path":                          func(o *Options) { o.Program = "/x%n" },
		"-state \"/srv/headpond\": want a folder below /var/lib,":       func(o *Options) { o.State = "/srv/headpond" },
		"there would be two files /etc/systemd/system/headpond.service": func(o *Options) { o.Config = "/etc/systemd/system/headpond.service" },
		"no such file": func(o *Options) { o.Rewrite = []string{"/nowhere/kubelet.conf"} },
	} {
		o := usual()
		change(&o)
		if _, err := Plan(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestServers(t *testing.T) {
	o := usual()
	o.Servers = []string{"10.0.0.1", "fd00::1", "[fd00::2]", "[fd00::3]:443", "cp.example.org", "cp-2.example.org:443"}
	files, err := Plan(o)
	if err != nil {
		t.Fatal(err)
	}
	want := `endpoints: ["10.0.0.1:6443","[fd00::1]:6443","[fd00::2]:6443","[fd00::3]:443","cp.example.org:6443","cp-2.example.org:443"]`
	if !bytes.Contains(files[0].Data, []byte(want)) {
		t.Errorf("got\n%s\nwant %s", files[0].Data, want)
	}
}

// TestPodMountsWhatTheGatewayReads: credentials that are replaced by a rename are mounted with their directory, and
// nothing is mounted twice.
func TestPodMountsWhatTheGatewayReads(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "proxy.conf")
	text := "clusters: [{name: c, cluster: {server: 'https://a', certificate-authority: pki/ca.crt}}]\n" +
		"users: [{name: u, user: {client-certificate: /var/lib/kubelet/pki/current.pem, client-key: /var/lib/kubelet/pki/current.pem}}]\n"
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	o := usual()
	o.Image, o.Kubeconfig, o.State = "example.org/headpond:1", kubeconfig, "/etc/headpond/state"
	files, err := Plan(o)
	if err != nil {
		t.Fatal(err)
	}
	pod := string(files[1].Data)
	for _, path := range []string{"/etc/headpond", "/etc/headpond/state", o.CA, kubeconfig, filepath.Dir(kubeconfig) + "/pki", "/var/lib/kubelet/pki"} {
		if n := strings.Count(pod, `mountPath: "`+path+`"`); n != 1 {
			t.Errorf("%s is mounted %d times", path, n)
		}
	}
	if n := strings.Count(pod, "readOnly: false"); n != 1 {
		t.Errorf("%d folders can be written to, want 1", n)
	}
}

// TestUnit verifies the unit with systemd, if that is installed.
func TestUnit(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Log("no systemd here: the unit was not verified")
		return
	}
	o := usual()
	if o.Program, err = exec.LookPath("true"); err != nil {
		t.Fatal(err)
	}
	files, err := Plan(o)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := files.Write(dir, false, new(bytes.Buffer)); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(analyze, "verify", "--man=no", filepath.Join(dir, unitPath)).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%v\n%s", err, out)
	}
}
