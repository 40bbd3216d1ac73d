//go:build !linux

package pgproxy

import (
	"errors"

	"github.com/headpond/headpond/listener"
)

const hasPeerUser = false

func peerUser(*listener.Conn) (string, error) { return "", errors.ErrUnsupported }
