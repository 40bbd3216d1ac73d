//go:build !unix

package gateway

import (
	"fmt"
	"net"
	"os"
)

// fileOf returns a duplicate of a listener's socket.
func fileOf(l net.Listener) (*os.File, error) {
	if own, ok := l.(interface{ File() (*os.File, error) }); ok {
		return own.File()
	}
	return nil, fmt.Errorf("%T cannot be handed over", l)
}
