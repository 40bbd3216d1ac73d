package kube

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"github.com/headpond/headpond/internal/netaddr"
	"github.com/headpond/headpond/upstream"
)

// DefaultService is the Service of the API servers.
const DefaultService = "default/kubernetes"

// ErrConfig is wrapped by every error about an invalid Config.
var ErrConfig = errors.New("kube: invalid configuration")

// Config describes a Source. The zero value is usable in a pod: it watches the API
// servers with the pod's service account.
type Config struct {
	// Service is "namespace/name", or a name in the namespace "default"; "" =
	// DefaultService.
	Service string
	// Port is the name or the number of the endpoints' port; "" = the only port.
	Port string
	// PreferZone is the zone whose endpoints come first; "" = zones are ignored. If every ready endpoint has a topology
	// hint, the hints decide which endpoints these are, otherwise the endpoints' own zones.
	PreferZone string

	// Kubeconfig is a file with the API server and credentials; "" = those that Kubernetes gives a pod. Context is the
	// context in the file; "" = its current one.
	Kubeconfig, Context string
	// Server is the API server to ask instead of the kubeconfig's or the pod's: "https://host:port", or "host:port".
	Server string
	// CA, Cert, Key and TokenFile are files; ServerName is the name expected in the server's certificate. Each one that
	// is set replaces that of the kubeconfig or the pod. With Cert, only the token in TokenFile is sent, if it is set.
	CA, Cert, Key, TokenFile, ServerName string

	// Cache is the file for the last good set; "" = none.
	Cache string
	// Bootstrap lists addresses to use until the API has answered, if Cache has no set, or if none of the addresses in
	// it works.
	Bootstrap []string
}

// Source is an upstream.Source. Make one with New.
type Source struct {
	cfg             Config
	namespace, name string
	pod             pod
}

var _ upstream.Source = (*Source)(nil)

// New checks cfg. It reads no file and sends no request. The error wraps ErrConfig.
func New(cfg Config) (*Source, error) {
	s := &Source{cfg: cfg, pod: podOf()}
	var err error
	if s.namespace, s.name, err = SplitService(cmp.Or(cfg.Service, DefaultService)); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	if cfg.Server != "" {
		if _, err := ParseServer(cfg.Server); err != nil {
			return nil, fmt.Errorf("%w: server %w", ErrConfig, err)
		}
	}
	switch {
	case (cfg.Cert == "") != (cfg.Key == ""):
		return nil, fmt.Errorf("%w: Cert and Key belong together", ErrConfig)
	case cfg.Context != "" && cfg.Kubeconfig == "":
		return nil, fmt.Errorf("%w: Context needs a Kubeconfig", ErrConfig)
	}
	if err := CheckPort(cfg.Port); cfg.Port != "" && err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	for _, address := range cfg.Bootstrap {
		if network, _, err := netaddr.Split(address); err != nil || network != "tcp" {
			return nil, fmt.Errorf("%w: bootstrap %q: want host:port", ErrConfig, address)
		}
	}
	return s, nil
}

// String returns the Service.
func (s *Source) String() string { return "kubernetes " + s.service() }

func (s *Source) service() string { return s.namespace + "/" + s.name }

// Host returns the DNS name of the Service within the cluster, which the certificates of API servers include.
func (s *Source) Host() string { return s.name + "." + s.namespace + ".svc" }

// SplitService checks a Config.Service and returns its parts.
func SplitService(service string) (namespace, name string, err error) {
	namespace, name, both := strings.Cut(service, "/")
	if !both {
		namespace, name = "default", service
	}
	for _, part := range []string{namespace, name} {
		if !isLabel(part) {
			return "", "", fmt.Errorf("%q: want namespace/name, each of lower-case letters, digits and \"-\"", service)
		}
	}
	return namespace, name, nil
}

// maxLabel is the longest name of a namespace or Service (RFC 1123).
const maxLabel = 63

func isLabel(s string) bool {
	return s != "" && len(s) <= maxLabel && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-") == "" && s[0] != '-' && s[len(s)-1] != '-'
}

// CheckPort checks a Config.Port.
func CheckPort(port string) error {
	if n, err := strconv.ParseInt(port, 10, 64); err == nil {
		if n < 1 || n > 65535 {
			return fmt.Errorf("port %d is not from 1 to 65535", n)
		}
		return nil
	}
	if !isLabel(port) {
		return fmt.Errorf("port %q: want the name or the number of a port", port)
	}
	return nil
}

// ParseServer parses a Config.Server.
func ParseServer(server string) (*url.URL, error) {
	text := server
	if !strings.Contains(text, "://") {
		text = "https://" + text
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.RawQuery != "" || u.Fragment != "":
		return nil, fmt.Errorf("%q: want https://host:port", server)
	case u.User != nil:
		return nil, errors.New("want https://host:port, without a password")
	case u.Scheme != "https" && u.Scheme != "http":
		return nil, fmt.Errorf("%q: want https://host:port", server)
	}
	return u, nil
}

// hostPort joins an address of a slice with a port.
func hostPort(host string, port int) string {
	if addr, err := netip.ParseAddr(host); err == nil {
		return netip.AddrPortFrom(addr.Unmap(), uint16(port)).String()
	}
	return host + ":" + strconv.Itoa(port)
}
