//go:build !linux

package fiber

import "net"

// piped is empty: no data is moved within the kernel.
type piped struct{}

func (t *Transfer) splice(Stream, net.Conn, int64) (n int, err error, done bool) {
	t.next = transferCopied
	return 0, nil, false
}

func (t *Transfer) empty(net.Conn, func(int)) error { return nil }

func (t *Transfer) dropPipe(int) {}

func waitForSocket(src Stream) error { return src.WaitReadable() }
