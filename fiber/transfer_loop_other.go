//go:build linux && !amd64 && !arm64

package fiber

import "net"

// spliceLoop knows no connection: there are no loops.
func (t *Transfer) spliceLoop(Stream, net.Conn, int64) (n int, done, known bool, err error) {
	return 0, false, false, nil
}

// emptyLoop knows no connection: there are no loops.
func (t *Transfer) emptyLoop(net.Conn, func(int)) (err error, known bool) { return nil, false }
