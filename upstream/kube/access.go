package kube

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Bounds of a connection to the API server.
const (
	dialTimeout   = 5 * time.Second
	answerTimeout = 10 * time.Second // until the head of an answer
	// A watch is silent most of the time. A ping finds out whether the server is still there, by HTTP/2, which API
	// servers support.
	pingAfter   = 10 * time.Second
	pingTimeout = 5 * time.Second
	idleTimeout = 30 * time.Second
	// maxFile bounds kubeconfigs, certificates and tokens.
	maxFile = 1 << 20
)

// pod holds the values that Kubernetes gives every pod.
type pod struct {
	server string // "" = not in a pod
	dir    string // directory of the service account's files
}

// accountDir is the directory of a pod's service account.
const accountDir = "/var/run/secrets/kubernetes.io/serviceaccount"

func podOf() pod {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return pod{dir: accountDir}
	}
	return pod{server: "https://" + net.JoinHostPort(host, port), dir: accountDir}
}

// InPod reports whether Kubernetes has given this process the address of the API.
func InPod() bool { return podOf().server != "" }

// credentials are the API server's address and the client's identity. Each pair is a file or its
// content.
type credentials struct {
	server, serverName string
	ca, cert, key      secret
	token              secret
}

// secret is a value, or the name of the file that holds it. It is never printed.
type secret struct {
	file  string
	value []byte
}

func (s secret) empty() bool { return s.file == "" && len(s.value) == 0 }

// read returns the content.
func (s secret) read() ([]byte, error) {
	if s.file == "" {
		return s.value, nil
	}
	return readFile(s.file)
}

// readFile reads a small regular file: opening a pipe would wait for a writer.
func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("%s is larger than %d KiB", path, maxFile>>10)
	}
	return data, err
}

// credentials reads the kubeconfig or the pod's values, and replaces those that are configured.
func (s *Source) credentials() (c credentials, err error) {
	cfg := &s.cfg
	switch {
	case cfg.Kubeconfig != "":
		if c, err = readKubeconfig(cfg.Kubeconfig, cfg.Context); err != nil {
			return c, err
		}
	case s.pod.server != "":
		c.server = s.pod.server
		c.ca.file, c.token.file = filepath.Join(s.pod.dir, "ca.crt"), filepath.Join(s.pod.dir, "token")
	case cfg.Server == "":
		return c, errors.New("there is no kubeconfig and no server, and this is not a pod: KUBERNETES_SERVICE_HOST is not set")
	}
	if cfg.Server != "" {
		c.server = cfg.Server
	}
	if cfg.ServerName != "" {
		c.serverName = cfg.ServerName
	}
	if cfg.CA != "" {
		c.ca = secret{file: cfg.CA}
	}
	if cfg.Cert != "" {
		c.cert, c.key, c.token = secret{file: cfg.Cert}, secret{file: cfg.Key}, secret{}
	}
	if cfg.TokenFile != "" {
		c.token = secret{file: cfg.TokenFile}
	}
	return c, nil
}

// client sends requests to one API server.
type client struct {
	base  *url.URL
	token string // "" = none; the token is read for each request
	http  *http.Client
	files [sha256.Size]byte // hash of the files from which http was made
}

// connect reads everything that may have been replaced, and returns a client. It reuses the connections of last if
// nothing has changed.
func (s *Source) connect(last *client) (*client, error) {
	c, err := s.credentials()
	if err != nil {
		return nil, err
	}
	base, err := ParseServer(c.server)
	if err != nil {
		return nil, fmt.Errorf("server %w", err)
	}
	token, err := c.readToken()
	if err != nil {
		return nil, err
	}
	if base.Scheme == "http" && (token != "" || !c.cert.empty()) {
		return nil, fmt.Errorf("%s would send credentials in clear text", base)
	}
	next := &client{base: base, token: token}
	hash := sha256.New()
	var parts [3][]byte // ca, cert, key
	for i, file := range []secret{c.ca, c.cert, c.key} {
		if parts[i], err = file.read(); err != nil {
			return nil, err
		}
		_, _ = fmt.Fprintf(hash, "%d\n%s", len(parts[i]), parts[i])
	}
	_, _ = fmt.Fprintf(hash, "%s\n%s", base, c.serverName)
	hash.Sum(next.files[:0])
	if last != nil && last.files == next.files {
		next.http = last.http
		return next, nil
	}
	cfg, err := tlsConfig(c.serverName, parts)
	if err != nil {
		return nil, err
	}
	next.http = newHTTP(cfg)
	if last != nil {
		last.http.CloseIdleConnections()
	}
	return next, nil
}

// readToken reads the bearer token. Its errors do not repeat the file's content.
func (c *credentials) readToken() (string, error) {
	data, err := c.token.read()
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(data))
	if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) || token == "" && c.token.file != "" {
		return "", fmt.Errorf("the token %s is not one word of printable ASCII characters", c.token.file)
	}
	return token, nil
}

// tlsConfig makes TLS settings from ca, certificate and key, each of which may be empty.
func tlsConfig(serverName string, parts [3][]byte) (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: serverName}
	if ca := parts[0]; len(ca) > 0 {
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(ca) {
			return nil, errors.New("the certificate authority has no PEM certificate in it")
		}
	}
	if len(parts[1]) > 0 {
		pair, err := tls.X509KeyPair(parts[1], parts[2])
		if err != nil {
			return nil, fmt.Errorf("the client certificate: %w", err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg, nil
}

// newHTTP makes the HTTP client for one set of credentials. It treats redirects as errors, because they could send a
// token elsewhere.
func newHTTP(cfg *tls.Config) *http.Client {
	dialer := &net.Dialer{Timeout: dialTimeout}
	return &http.Client{
		Transport: &http.Transport{
			DialContext: dialer.DialContext, TLSClientConfig: cfg, TLSHandshakeTimeout: dialTimeout, ResponseHeaderTimeout: answerTimeout,
			ForceAttemptHTTP2: true, IdleConnTimeout: idleTimeout, MaxResponseHeaderBytes: 64 << 10,
			HTTP2: &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}
