package peers

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"github.com/headpond/headpond/bench/internal/proc"
	"github.com/headpond/headpond/internal/certs"
)

// KubeAPI is a Kubernetes API server, with an etcd of its own and without nodes.
type KubeAPI struct {
	Target
	TLS   *tls.Config // of clients, at any address of 127.0.0.1
	Token string      // of an administrator
}

// kubeReady is how long an API server may take to be ready. It fills an empty etcd first.
const kubeReady = 3 * time.Minute

// StartKubeAPI starts the server and returns when it is ready.
func (s *Starter) StartKubeAPI(ctx context.Context) (*KubeAPI, error) {
	if s.Tools.Etcd.Path == "" || s.Tools.KubeAPIServer.Path == "" {
		return nil, fmt.Errorf("kube-apiserver or etcd: %w", ErrMissing)
	}
	etcd, err := s.startEtcd()
	if err != nil {
		return nil, err
	}
	authority := certs.New()
	k := &KubeAPI{Token: "administrator", TLS: &tls.Config{RootCAs: authority.Pool, ServerName: "127.0.0.1", MinVersion: tls.VersionTLS13}}
	ca, _ := certs.PEM(authority.Certificate)
	cert, key := certs.PEM(authority.Issue("kube-apiserver", "127.0.0.1"))
	accountCert, accountKey := certs.PEM(authority.Issue("service-accounts"))
	paths := map[string]string{}
	for name, content := range map[string]string{
		"ca": string(ca), "cert": string(cert), "key": string(key), "account-cert": string(accountCert), "account-key": string(accountKey),
		"tokens": k.Token + `,admin,admin,"system:masters"`,
	} {
		if paths[name], err = s.Group.File("kube-"+name, content); err != nil {
			return nil, err
		}
	}
	if k.Addr, err = proc.FreePort(); err != nil {
		return nil, err
	}
	host, port, err := net.SplitHostPort(k.Addr)
	if err != nil {
		return nil, err
	}
	k.Proc, err = s.Group.Start(proc.Spec{Name: "kube-apiserver", Path: s.Tools.KubeAPIServer.Path, Args: []string{
		"--etcd-servers=" + etcd, "--bind-address=" + host, "--advertise-address=" + host, "--secure-port=" + port,
		"--tls-cert-file=" + paths["cert"], "--tls-private-key-file=" + paths["key"], "--client-ca-file=" + paths["ca"],
		"--cert-dir=" + filepath.Join(s.Group.Dir, "kube-certs"), "--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + paths["account-cert"], "--service-account-signing-key-file=" + paths["account-key"],
		"--service-cluster-ip-range=10.99.0.0/16", "--authorization-mode=RBAC", "--token-auth-file=" + paths["tokens"],
		"--endpoint-reconciler-type=none",                                              // it refuses an address of loopback as its own
		"--max-requests-inflight=3000", "--enable-priority-and-fairness=false", "-v=0", // the load has one user
	}})
	if err != nil {
		return nil, err
	}
	return k, k.await(ctx)
}

// startEtcd starts the API server's store and returns its URL.
func (s *Starter) startEtcd() (url string, err error) {
	client, err1 := proc.FreePort()
	peer, err2 := proc.FreePort()
	if err := errors.Join(err1, err2); err != nil {
		return "", err
	}
	url, peerURL := "http://"+client, "http://"+peer
	_, err = s.launch(proc.Spec{Name: "etcd", Path: s.Tools.Etcd.Path, Args: []string{
		"--data-dir", filepath.Join(s.Group.Dir, "etcd"), "--listen-client-urls", url, "--advertise-client-urls", url, "--listen-peer-urls", peerURL,
		"--initial-advertise-peer-urls", peerURL, "--initial-cluster", "default=" + peerURL, "--unsafe-no-fsync",
	}}, client)
	return url, err
}

// await returns when the server is ready.
func (k *KubeAPI) await(ctx context.Context) error {
	transport := &http.Transport{TLSClientConfig: k.TLS.Clone(), DisableKeepAlives: true}
	client := &http.Client{Transport: transport, Timeout: 10 * time.Second}
	ctx, cancel := context.WithTimeout(ctx, kubeReady)
	defer cancel()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+k.Addr+"/api/v1/namespaces/default", nil)
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", "Bearer "+k.Token)
		resp, err := client.Do(req)
		if err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
			err = errors.New(resp.Status)
		}
		if ended := k.Proc.Ended(); ended != nil {
			return ended
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("kube-apiserver is not ready: %w\n%s", err, k.Proc.Log())
		case <-time.After(50 * time.Millisecond):
		}
	}
}
