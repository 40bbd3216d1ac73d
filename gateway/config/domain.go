package config

import (
	"errors"
	"net/netip"
	"strings"
)

// Domain is a DNS name that certificates can be for, in lower case and without a dot at its end.
type Domain string

// Check implements Checked.
func (Domain) Check(text string) error {
	if _, err := netip.ParseAddr(strings.Trim(text, "[]")); err == nil {
		return errors.New("want a DNS name such as www.example.com, not an address")
	}
	switch {
	case strings.ContainsAny(text, ":/"):
		return errors.New("want a DNS name such as www.example.com, without scheme, port and path")
	case strings.ToLower(text) != text:
		return errors.New("want a DNS name in lower case")
	case len(text) > 253:
		return errors.New("longer than 253 characters")
	}
	for label := range strings.SplitSeq(strings.TrimPrefix(text, "*."), ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return errors.New("want a DNS name such as www.example.com: labels of 1 to 63 characters between single dots, none of which begins or ends with \"-\"")
		}
		for _, c := range label {
			switch {
			case c > 0x7f:
				return errors.New("want a DNS name in its ASCII form, which begins with xn--")
			case c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-':
			default:
				return errors.New("want a DNS name such as www.example.com: letters, digits, \"-\" and \".\"")
			}
		}
	}
	return nil
}
