package cli

import (
	"flag"
	"fmt"
	"os"
	"strings"

	"github.com/headpond/headpond/internal/kubenode"
)

const kubeAbout = `Makes what a node needs to reach the API servers of its Kubernetes cluster through a gateway of its own: the gateway's configuration, a
systemd unit or a static pod, and kubeconfigs that point at it. Prints them, without secrets, and changes nothing unless -out is given.`

// Paths and addresses on a node.
const (
	kubeListen   = "127.0.0.1:7443" // not 6443, the port of an API server on the same node
	kubeCA       = "/etc/kubernetes/pki/ca.crt"
	kubeName     = "kubernetes.default.svc" // a name in the certificate of every API server
	kubeProgram  = "/usr/local/bin/headpond"
	podProgram   = "/headpond" // path in the image of docs/running.md
	kubeConfig   = "/etc/headpond/headpond.yaml"
	kubeState    = "/var/lib/headpond"
	podManifests = "/etc/kubernetes/manifests"
)

// kube is `headpond kube`.
func kube(e env, args []string) int {
	fs := flags("kube", "", kubeAbout)
	o := kubeFlags(fs)
	out := fs.String("out", "", "write the files below `folder`; / is the node itself")
	force := fs.Bool("force", false, "with -out: replace files that differ")
	_, code, ok := parse(e, fs, args, 0, "takes no arguments")
	if !ok {
		return code
	}
	if o.Program == "" {
		o.Program = map[bool]string{true: podProgram, false: kubeProgram}[o.Image != ""]
	}
	files, err := kubenode.Plan(*o)
	switch {
	case err != nil:
	case *out == "":
		err = files.Print(e.stdout)
	default:
		err = files.Write(*out, *force, e.stdout)
	}
	if err != nil {
		_, _ = fmt.Fprintln(e.stderr, "headpond kube:", err)
		return exitProblem
	}
	onNode := *out == string(os.PathSeparator)
	if onNode {
		for _, err := range o.Missing() {
			_, _ = fmt.Fprintln(e.stderr, "headpond kube: warning:", err)
		}
	}
	if onNode && o.Image == "" {
		_, _ = fmt.Fprintln(e.stdout, "now: systemctl daemon-reload && systemctl enable headpond && systemctl reload-or-restart headpond, then restart kubelet and kube-proxy")
	}
	return exitOK
}

func kubeFlags(fs *flag.FlagSet) *kubenode.Options {
	o := &kubenode.Options{}
	fs.Func("servers", "the API servers, `host:port,host:port`; required. With credentials (-kubeconfig, -token-file or -cert) they are used until the cluster's own list is known", func(s string) error {
		o.Servers = append(o.Servers, strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })...)
		return nil
	})
	fs.StringVar(&o.Listen, "listen", kubeListen, "the gateway's `address` for clients on this node")
	fs.StringVar(&o.CA, "ca", kubeCA, "`file` with the certificate of the cluster's authority")
	fs.StringVar(&o.ServerName, "server-name", kubeName, "a `name` in the certificates of all API servers; \"\" if their addresses and -listen's are in them")
	fs.StringVar(&o.Kubeconfig, "kubeconfig", "", "`file` with the credentials to follow the cluster's list of its API servers")
	fs.StringVar(&o.TokenFile, "token-file", "", "`file` with a token to follow it")
	fs.StringVar(&o.Cert, "cert", "", "`file` with a client certificate to follow it")
	fs.StringVar(&o.Key, "key", "", "`file` with its key")
	fs.StringVar(&o.Admin, "admin", DefaultAdmin, "the `address` of the gateway's admin page")
	fs.StringVar(&o.Image, "pod", "", "make a static pod of this `image` instead of a systemd unit")
	fs.StringVar(&o.Manifests, "manifests", podManifests, "with -pod: the kubelet's `folder` of static pods")
	fs.StringVar(&o.Program, "program", "", "the `path` of headpond; default "+kubeProgram+", with -pod "+podProgram)
	fs.StringVar(&o.Config, "config", kubeConfig, "the `path` of the gateway's configuration")
	fs.StringVar(&o.State, "state", kubeState, "the `folder` for the list that is kept for the next start")
	fs.Func("rewrite", "a kubeconfig `file` that is to point at the gateway; may be repeated", func(s string) error {
		o.Rewrite = append(o.Rewrite, s)
		return nil
	})
	return o
}
