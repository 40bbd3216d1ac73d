//go:build !unix

package link

import (
	"errors"
	"io"
	"net"
	"os"
)

// Pair returns an error: processes of this system do not inherit sockets.
func Pair() (one, other *os.File, err error) { return nil, nil, errors.ErrUnsupported }

func writeFile(*net.UnixConn, []byte, *os.File) (int, error) { return 0, errors.ErrUnsupported }

func readWithFile(c *net.UnixConn, p []byte) (*os.File, error) {
	_, err := io.ReadFull(c, p)
	return nil, err
}
