package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/headpond/headpond/internal/netaddr"
)

// checkText applies the check that a field's type tag asks for and returns the text in its final form.
func (d *decoder) checkText(text, kind string) (string, error) {
	switch kind {
	case "name":
		return text, checkName(text)
	case "address":
		return text, checkListen(text)
	case "endpoint":
		return d.checkEndpoint(text)
	case "mode":
		return text, checkMode(text)
	case "owner":
		return text, checkOwner(text)
	}
	return text, nil
}

// checkMode checks the permissions of a socket.
func checkMode(text string) error {
	if mode, err := strconv.ParseUint(text, 8, 32); err != nil || mode > 0o777 || mode&0o200 == 0 {
		return errors.New("want octal permissions that let the owner write, such as \"0660\"")
	}
	return nil
}

// checkOwner checks the form of a socket's owner. Whether the owner exists shows when the socket is
// made.
func checkOwner(text string) error {
	user, group, several := strings.Cut(text, ":")
	if user == "" || several && group == "" || strings.ContainsAny(group, ":") {
		return errors.New("want user or user:group, names or numbers")
	}
	return nil
}

// maxName bounds names: they are labels of metrics.
const maxName = 64

func checkName(text string) error {
	for _, c := range text {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && !strings.ContainsRune("-_.", c) {
			return fmt.Errorf("%q cannot be in a name; use letters, digits, \"-\", \"_\" and \".\"", c)
		}
	}
	if len(text) > maxName {
		return fmt.Errorf("longer than %d characters", maxName)
	}
	return nil
}

// checkListen checks an address to listen on.
func checkListen(text string) error {
	network, address, err := netaddr.Split(text)
	if err != nil {
		return plainAddress(text)
	}
	switch network {
	case "unix":
		return checkSocket(address)
	case "upstream":
		return errors.New("an upstream cannot be listened on or connected to by name")
	case "p2p":
		return errors.New("a service of another node can be an endpoint of an upstream only, and only of a gateway that has peers linked in")
	}
	return checkHost(address)
}

// checkHost refuses hosts that are neither an IP address nor a possible name.
func checkHost(address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return errors.New("want host:port or unix:/path")
	}
	if host == "*" {
		return fmt.Errorf("did you mean %q, all addresses of this machine?", ":"+port)
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return nil
	}
	if strings.Contains(host, ".") && strings.Trim(host, "0123456789.") == "" {
		return fmt.Errorf("%q is not an IP address", host)
	}
	for _, c := range host {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && !strings.ContainsRune("-_.", c) {
			return fmt.Errorf("%q cannot be in a host name; write names beyond ASCII in their xn-- form", c)
		}
	}
	return nil
}

// maxSocketPath is the length of the kernel's socket address without its final zero.
const maxSocketPath = 107

func checkSocket(path string) error {
	if !filepath.IsAbs(path) {
		return fmt.Errorf("want an absolute path after \"unix:\"")
	}
	if len(path) > maxSocketPath {
		return fmt.Errorf("a socket's path can have at most %d characters, this one has %d", maxSocketPath, len(path))
	}
	return nil
}

// checkEndpoint checks the address of a backend; the relative path of a file is resolved.
func (d *decoder) checkEndpoint(text string) (string, error) {
	for _, e := range extensions {
		for prefix, check := range e.Files {
			path, ok := strings.CutPrefix(text, prefix)
			switch {
			case ok && path == "":
				return text, fmt.Errorf("no path after %q", prefix)
			case ok:
				if err := check(path); err != nil {
					return text, err
				}
				return prefix + d.resolve(path), nil
			}
		}
		for prefix, check := range e.Endpoints {
			if rest, ok := strings.CutPrefix(text, prefix); ok {
				return text, check(rest)
			}
		}
	}
	if err := checkListen(text); err != nil {
		return text, err
	}
	if host, port, err := net.SplitHostPort(text); err == nil && !strings.HasPrefix(text, "unix:") {
		switch {
		case host == "":
			return text, fmt.Errorf("the host is missing; did you mean \"127.0.0.1:%s\"?", port)
		case port == "0":
			return text, errors.New("port 0 cannot be connected to")
		}
	}
	return text, nil
}

// plainAddress explains why text is not an address.
func plainAddress(text string) error {
	scheme, rest, hasScheme := strings.Cut(text, "://")
	switch {
	case hasScheme:
		rest = rest[strings.LastIndexByte(rest, '@')+1:]
		if end := strings.IndexAny(rest, "/?"); end >= 0 {
			rest = rest[:end]
		}
		return fmt.Errorf("want host:port or unix:/path without %q; did you mean %q?", clip(scheme)+"://", clip(rest))
	case strings.HasPrefix(text, "/"):
		return fmt.Errorf("want host:port or unix:/path; did you mean %q?", "unix:"+text)
	}
	if n, err := strconv.ParseUint(text, 10, 16); err == nil {
		return fmt.Errorf("want host:port or unix:/path; did you mean \"127.0.0.1:%d\"?", n)
	}
	if _, _, err := net.SplitHostPort(text); err != nil {
		return errors.New("want host:port or unix:/path" + missingPart(text))
	}
	return errors.New("the port is not a number from 0 to 65535")
}

// missingPart says what a host or an address lacks to be host:port, "" if it does not look like one.
func missingPart(text string) string {
	if i := strings.LastIndexByte(text, ':'); i > 0 {
		ip, err := netip.ParseAddr(text[:i])
		if port := text[i+1:]; err == nil && ip.Is6() && checkHost(net.JoinHostPort(text[:i], port)) == nil && len(port) > 3 {
			return fmt.Sprintf("; did you mean \"[%s]:%s\", an IPv6 address in brackets?", text[:i], port)
		}
	}
	host := strings.TrimSuffix(strings.TrimPrefix(text, "["), "]")
	if _, err := netip.ParseAddr(host); err == nil || !strings.Contains(host, ":") && checkHost(net.JoinHostPort(host, "1")) == nil {
		return "; the port is missing"
	}
	return ""
}
