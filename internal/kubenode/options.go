package kubenode

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// Options tell Plan which files to make.
type Options struct {
	// Listen is where the gateway listens: an address of this machine and a port from 1024 on.
	Listen string
	// Servers are the API servers, "host:port", or "host" with port 6443. With credentials they are used only until the
	// cluster's own list is known.
	Servers []string
	// CA is the file of the cluster's authority. ServerName is a name in the certificates of all API servers; "" if
	// those contain the addresses.
	CA, ServerName string
	// Kubeconfig, TokenFile, or Cert and Key, are the credentials with which the gateway follows the cluster's list of
	// API servers. Without any it uses Servers only.
	Kubeconfig, TokenFile, Cert, Key string
	// Admin is the address of the gateway's admin page.
	Admin string
	// Image is the image of a static pod; "" = make a systemd unit.
	Image string
	// Program is the path of headpond, Config of its configuration, State the folder of its cache, Manifests the folder
	// of static pods.
	Program, Config, State, Manifests string
	// Rewrite lists kubeconfigs to be pointed at the gateway.
	Rewrite []string
}

const (
	serverPort  = 6443 // of API servers, where none is given
	firstPort   = 1024 // the gateway has no privileges
	maxServers  = 1000 // far more than any cluster has
	unitPath    = "/etc/systemd/system/headpond.service"
	podManifest = "headpond.yaml"
	stateRoot   = "/var/lib" // of systemd's StateDirectory
)

// errNoServers is returned if Servers, which has no default, is missing.
var errNoServers = errors.New("-servers: want the addresses of the API servers, such as 10.0.0.1:6443,10.0.0.2:6443")

// follows reports whether the gateway follows the cluster's list.
func (o *Options) follows() bool { return o.Kubeconfig+o.TokenFile+o.Cert != "" }

// Missing returns an error for each file that the gateway reads on this node and that is not there yet.
func (o *Options) Missing() []error {
	var missing []error
	for _, f := range []struct{ flag, path string }{
		{"ca", o.CA}, {"kubeconfig", o.Kubeconfig}, {"token-file", o.TokenFile}, {"cert", o.Cert}, {"key", o.Key},
	} {
		if f.path == "" {
			continue
		}
		if _, err := os.Stat(f.path); err != nil {
			missing = append(missing, fmt.Errorf("-%s: the gateway needs this file: %w", f.flag, err))
		}
	}
	return missing
}

// check sets defaults, and returns the problems of the options.
func (o *Options) check() error {
	if err := o.checkAddresses(); err != nil {
		return err
	}
	if (o.Cert == "") != (o.Key == "") {
		return errors.New("-cert and -key belong together")
	}
	if n := len(strings.Fields(o.Kubeconfig + " " + o.TokenFile + " " + o.Cert)); n > 1 {
		return errors.New("-kubeconfig, -token-file and -cert: want one of them")
	}
	if o.ServerName != "" && !isName(o.ServerName) {
		return fmt.Errorf("-server-name %q: want a DNS name", o.ServerName)
	}
	if o.Image != "" && !isImage(o.Image) {
		return fmt.Errorf("-pod %q: want the name of an image", o.Image)
	}
	if o.Image == "" && !within(o.State, stateRoot) {
		return fmt.Errorf("-state %q: want a folder below %s, which systemd makes", o.State, stateRoot)
	}
	for name, path := range map[string]string{
		"ca": o.CA, "kubeconfig": o.Kubeconfig, "token-file": o.TokenFile, "cert": o.Cert, "key": o.Key, "program": o.Program, "config": o.Config, "state": o.State, "manifests": o.Manifests,
	} {
		if err := checkPath(path); err != nil && path != "" {
			return fmt.Errorf("-%s %w", name, err)
		}
	}
	return nil
}

// What matches is stricter than Kubernetes: names that match need no quotes anywhere. Lengths are checked apart: an
// expression that counts to hundreds takes half a megabyte.
var (
	namePattern  = regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9.-]*[a-zA-Z0-9])?$`)
	imagePattern = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._:/@-]*$`)
	isPath       = regexp.MustCompile(`^/[a-zA-Z0-9._/@+:-]*$`)
)

func isName(s string) bool { return len(s) <= 253 && namePattern.MatchString(s) }

func isImage(s string) bool { return len(s) <= 501 && imagePattern.MatchString(s) }

// checkPath refuses paths that would need different quotes in a unit, a manifest and a configuration.
func checkPath(path string) error {
	switch {
	case !strings.HasPrefix(path, "/"):
		return fmt.Errorf("%q: want a path that begins with /", path)
	case !isPath.MatchString(path) || filepath.Clean(path) != path:
		return fmt.Errorf("%q: want a plain path, of letters, digits and ._@+:-", path)
	}
	return nil
}

func (o *Options) checkAddresses() error {
	listen, err := netip.ParseAddrPort(o.Listen)
	switch {
	case err != nil || listen.Addr().Zone() != "":
		return fmt.Errorf("-listen %q: want an address and a port, such as 127.0.0.1:7443", o.Listen)
	case !listen.Addr().IsLoopback():
		return fmt.Errorf("-listen %s: want an address of this machine only, such as 127.0.0.1:%d", o.Listen, listen.Port())
	case listen.Port() < firstPort:
		return fmt.Errorf("-listen %s: want a port from %d on, because the gateway runs without privileges", o.Listen, firstPort)
	}
	o.Listen = listen.String()
	if _, port, err := net.SplitHostPort(o.Admin); err != nil || !isPort(port) {
		return fmt.Errorf("-admin %q: want an address and a port, such as 127.0.0.1:9090", o.Admin)
	}
	if o.Admin == o.Listen {
		return fmt.Errorf("-admin %s: the gateway listens there for clients (-listen)", o.Admin)
	}
	switch {
	case len(o.Servers) == 0:
		return errNoServers
	case len(o.Servers) > maxServers:
		return fmt.Errorf("-servers: want at most %d", maxServers)
	}
	seen := map[string]bool{}
	for i, s := range o.Servers {
		server, err := serverOf(s)
		switch {
		case err != nil:
			return err
		case server == o.Listen:
			return fmt.Errorf("-servers: %s is the gateway itself (-listen)", server)
		case seen[server]:
			return fmt.Errorf("-servers: %s is there twice", server)
		}
		o.Servers[i], seen[server] = server, true
	}
	return nil
}

// serverOf validates one of Options.Servers and adds a missing port.
func serverOf(s string) (string, error) {
	if addr, err := netip.ParseAddr(strings.Trim(s, "[]")); err == nil {
		return netip.AddrPortFrom(addr, serverPort).String(), nil
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		host, port = s, strconv.Itoa(serverPort)
	}
	if _, err := netip.ParseAddr(host); (err != nil && !isName(host)) || !isPort(port) {
		return "", fmt.Errorf("-servers: %q: want host:port", s)
	}
	return net.JoinHostPort(host, port), nil
}

func isPort(s string) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return err == nil && n > 0
}
