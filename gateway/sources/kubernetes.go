package sources

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/upstream"
	"github.com/headpond/headpond/upstream/kube"
)

// Kubernetes is the section "kubernetes" of "discover".
type Kubernetes struct {
	Service    string      `conf:"service" default:"default/kubernetes"` // namespace/name
	Port       string      `conf:"port"`                                 // name or number; empty: the only one
	PreferZone string      `conf:"prefer_zone"`                          // endpoints of this zone come first
	Kubeconfig config.Path `conf:"kubeconfig" reread:"true"`             // empty: the credentials of a pod
	Context    string      `conf:"context"`                              // in Kubeconfig; empty: its current one
	// Server, CA, Cert, Key, TokenFile and ServerName replace those of the kubeconfig or the pod.
	Server     string      `conf:"server"` // https://host:port
	CA         config.Path `conf:"ca" reread:"true"`
	Cert       config.Path `conf:"cert" reread:"true"`
	Key        config.Path `conf:"key" reread:"true"`
	TokenFile  config.Path `conf:"token_file" reread:"true"`
	ServerName string      `conf:"server_name"`
	Cache      NewFile     `conf:"cache"`                                   // keeps the last good set for the next start; empty: nothing is kept
	Bootstrap  []string    `conf:"bootstrap" type:"endpoint" maxlen:"1000"` // addresses until the API has answered
}

// NewFile is the path of a file that the gateway writes. It need not exist; its folder must.
type NewFile string

// Check implements config.Checked.
func (NewFile) Check(path string) error {
	if !filepath.IsAbs(path) {
		return errors.New("want an absolute path")
	}
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return errors.New("it is not a regular file")
	}
	if info, err := os.Stat(filepath.Dir(path)); err != nil || !info.IsDir() {
		return fmt.Errorf("the folder %s does not exist; create it, and let the gateway write there", filepath.Dir(path))
	}
	return nil
}

func init() {
	config.RegisterSource(config.SourceKind{
		Name: "kubernetes", Section: &Kubernetes{}, Scalar: "Service", Default: serviceServerName, Check: checkKubernetes, Host: serviceHost,
		New: func(u *config.Upstream) (upstream.Source, error) {
			s, err := kube.New(config.DiscoverAs[Kubernetes](u).config())
			if err != nil {
				return nil, err
			}
			return s, nil
		},
	})
}

func (k *Kubernetes) config() kube.Config {
	return kube.Config{
		Service: k.Service, Port: k.Port, PreferZone: k.PreferZone, Kubeconfig: string(k.Kubeconfig), Context: k.Context, Server: k.Server,
		CA: string(k.CA), Cert: string(k.Cert), Key: string(k.Key), TokenFile: string(k.TokenFile), ServerName: k.ServerName,
		Cache: string(k.Cache), Bootstrap: k.Bootstrap,
	}
}

// serviceServerName has certificates checked against the Service's name: they do not have the
// addresses of pods.
func serviceServerName(u *config.Upstream) {
	if u.TLS != nil && u.TLS.ServerName == "" {
		u.TLS.ServerName = serviceHost(u)
	}
}

// serviceHost returns the Service's name within the cluster, which the certificates of API servers
// have, too.
func serviceHost(u *config.Upstream) string {
	s, err := kube.New(kube.Config{Service: config.DiscoverAs[Kubernetes](u).Service})
	if err != nil {
		return "" // checkKubernetes reports it
	}
	return s.Host()
}

func checkKubernetes(c *config.Checker, u *config.Upstream) {
	k := config.DiscoverAs[Kubernetes](u)
	if _, _, err := kube.SplitService(k.Service); err != nil && c.NoProblemAt(&k.Service) {
		c.Report(c.Mark(&k.Service), "service: %v", err)
	}
	if k.Port != "" && kube.CheckPort(k.Port) != nil {
		c.Report(c.Mark(&k.Port), "port: %q: want the name or the number of a port", config.Clip(k.Port))
	}
	for i := range k.Bootstrap {
		if _, err := kube.New(kube.Config{Bootstrap: k.Bootstrap[i : i+1]}); err != nil && c.NoProblemAt(&k.Bootstrap[i]) {
			c.Report(c.Mark(&k.Bootstrap[i]), "bootstrap: %q: want host:port", config.Clip(k.Bootstrap[i]))
		}
	}
	checkAccess(c, u, k)
}

// checkAccess reports problems of the API server's address and of the credentials.
func checkAccess(c *config.Checker, u *config.Upstream, k *Kubernetes) {
	c.ClientFiles(&k.CA, &k.Cert, &k.Key)
	if k.Server != "" {
		if _, err := kube.ParseServer(k.Server); err != nil {
			c.Report(c.Mark(&k.Server), "server: %v", err)
		}
	}
	switch {
	case c.Written(&k.Kubeconfig):
		if c.NoProblemAt(&k.Kubeconfig) {
			if err := kube.CheckKubeconfig(string(k.Kubeconfig), k.Context); err != nil {
				c.Report(c.Mark(&k.Kubeconfig), "%v", err)
			}
		}
	case c.Written(&k.Context):
		c.Report(c.Mark(&k.Context), "context: it is one of a \"kubeconfig\", which is missing")
	case k.Server == "" && !kube.InPod():
		c.Warn(c.Mark(&k.Service, &u.Discover), "kubernetes: without \"kubeconfig\" and \"server\" the API is found in a pod only; this is none")
	}
}
