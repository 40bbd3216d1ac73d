// Package netaddr parses the address forms of the configuration: "host:port", "unix:/path",
// "upstream:name" at the other end of a tunnel, and "p2p:PEERID/service" of another node. It dials
// and listens on the first two.
package netaddr

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// ErrInvalid is wrapped by every error Split returns.
var ErrInvalid = errors.New("invalid address")

// Split returns the network ("tcp" or "unix") and the address, in the form of package net. For "upstream" and "p2p",
// which package net does not have, it returns those and the name.
func Split(addr string) (network, address string, err error) {
	if path, ok := strings.CutPrefix(addr, "unix:"); ok {
		if path == "" {
			return "", "", fmt.Errorf("%w %q: no path after \"unix:\"", ErrInvalid, addr)
		}
		return "unix", path, nil
	}
	for _, network := range []string{"upstream", "p2p"} {
		if name, ok := strings.CutPrefix(addr, network+":"); ok && strings.Trim(name, "0123456789") != "" { // otherwise it is a host with that name
			return network, name, nil
		}
	}
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", "", fmt.Errorf("%w %q: want host:port or unix:/path", ErrInvalid, addr)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n > 65535 {
		return "", "", fmt.Errorf("%w %q: port %q is not a number from 0 to 65535", ErrInvalid, addr, port)
	}
	return "tcp", addr, nil
}

// Dial connects to addr. TCP connections have Nagle's algorithm off (package net's default).
func Dial(ctx context.Context, addr string) (net.Conn, error) {
	network, address, err := Split(addr)
	if err != nil {
		return nil, err
	}
	var d net.Dialer
	return d.DialContext(ctx, network, address)
}

// Listen listens on addr with lc.
func Listen(ctx context.Context, lc *net.ListenConfig, addr string) (net.Listener, error) {
	network, address, err := Split(addr)
	if err != nil {
		return nil, err
	}
	return lc.Listen(ctx, network, address)
}
