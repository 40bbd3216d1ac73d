//go:build !(linux && (amd64 || arm64))

package fiber

import "errors"

// splices: elsewhere bulk is copied.
const splices = false

func (c *Conn) spliceTo(*loop, *Conn, func(int), func(int)) (readErr, writeErr error) {
	return errors.ErrUnsupported, nil
}

// window leaves the receive window to the system.
type window struct{ conn *Conn }

func (window) take() {}
func (window) free() {}
