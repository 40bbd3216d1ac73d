//go:build !linux

package fiber

import (
	"errors"
	"net/netip"
)

func bindFrom(int, netip.Addr) error { return errors.ErrUnsupported }
func canDialFrom() error             { return errors.ErrUnsupported }
