package hba

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// address is where a rule's clients are.
type address struct {
	kind     addressKind
	ip, mask []byte // of network: 4 or 16 bytes
}

type addressKind uint8

const (
	everywhere addressKind = iota // all
	sameHost                      // samehost: an address of this machine
	sameNet                       // samenet: in a network of this machine
	network
)

// matches reports whether a client's address is one of a's. An unknown one, which is invalid, is one of "all" only.
func (a *address) matches(ip netip.Addr) bool {
	switch {
	case a.kind == everywhere:
		return true
	case !ip.IsValid():
		return false
	case a.kind == network:
		return a.contains(ip)
	}
	return slices.ContainsFunc(ownNetworks(), func(own netip.Prefix) bool {
		if a.kind == sameHost {
			return own.Addr() == ip
		}
		return own.Masked().Contains(ip)
	})
}

func (a *address) contains(ip netip.Addr) bool {
	if ip.BitLen() != 8*len(a.ip) {
		return false
	}
	for i, b := range ip.AsSlice() {
		if (a.ip[i]^b)&a.mask[i] != 0 {
			return false
		}
	}
	return true
}

// isThisMachine reports whether only clients on this machine have one of the addresses.
func (a *address) isThisMachine() bool {
	switch {
	case a.kind == sameHost:
		return true
	case a.kind != network:
		return false
	case len(a.ip) == net.IPv4len:
		return a.ip[0] == 127 && a.mask[0] == 0xff
	}
	return net.IP(a.ip).Equal(net.IPv6loopback) && slices.Equal(a.mask, net.CIDRMask(128, 128))
}

// addressOf parses an address, which may be followed by a mask. It returns the fields behind it.
func addressOf(fields []field) (a address, rest []field, err error) {
	t, fields, err := single(fields, "address")
	if err != nil {
		return a, nil, err
	}
	for i, keyword := range []string{everywhere: "all", sameHost: "samehost", sameNet: "samenet"} {
		if t.is(keyword) {
			return address{kind: addressKind(i)}, fields, nil
		}
	}
	if ip, bits, ok := strings.Cut(t.text, "/"); ok {
		prefix, err := netip.ParsePrefix(t.text)
		if err != nil {
			return a, nil, fmt.Errorf("address %q: want an IP address, a slash and the number of bits, such as 10.0.0.0/8; %q/%q is none", clip(t.text), clip(ip), clip(bits))
		}
		mask := net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen())
		return address{network, prefix.Addr().AsSlice(), mask}, fields, nil
	}
	ip, err := netip.ParseAddr(t.text)
	if err != nil || ip.Zone() != "" {
		return a, nil, fmt.Errorf("address %q: want all, samehost, samenet or an IP address with a mask; names of hosts are not supported", clip(t.text))
	}
	m, fields, err := single(fields, "mask")
	if err != nil {
		return a, nil, fmt.Errorf("address %s needs a mask: write /%d behind it for this address alone", ip, ip.BitLen())
	}
	mask, err := netip.ParseAddr(m.text)
	if err != nil || mask.BitLen() != ip.BitLen() || mask.Zone() != "" {
		return a, nil, fmt.Errorf("mask %q: want a mask for the address %s, such as /%d behind it", clip(m.text), ip, ip.BitLen())
	}
	return address{network, ip.AsSlice(), mask.AsSlice()}, fields, nil
}

// single takes a field with one token off the front of a line.
func single(fields []field, what string) (t token, rest []field, err error) {
	switch {
	case len(fields) == 0:
		return t, nil, fmt.Errorf("the line ends before the %s", what)
	case len(fields[0]) > 1:
		return t, nil, fmt.Errorf("there is more than one %s: %q", what, clip(fields[0][1].text))
	}
	return fields[0][0], fields[1:], nil
}

// interfaces are the networks of this machine at a time.
type interfaces struct {
	list []netip.Prefix // whole addresses, with the sizes of their networks
	at   time.Time
}

// interfacesLife is how long the networks of this machine are taken for unchanged: reading them takes some system calls.
const interfacesLife = 5 * time.Second

var ownInterfaces atomic.Pointer[interfaces]

// ownNetworks returns the networks of this machine, none if they cannot be read: then no client is in them.
func ownNetworks() []netip.Prefix {
	now := ownInterfaces.Load()
	if now == nil || time.Since(now.at) > interfacesLife {
		now = &interfaces{readNetworks(), time.Now()}
		ownInterfaces.Store(now)
	}
	return now.list
}

func readNetworks() (list []netip.Prefix) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(n.IP); ok {
				bits, _ := n.Mask.Size()
				list = append(list, netip.PrefixFrom(ip.Unmap(), bits))
			}
		}
	}
	return list
}
