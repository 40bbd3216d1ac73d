package fiber

import "net"

// BeforeWrite returns a destination for CopyTo. CopyTo then calls before when it has received data,
// before it sends any of that data to dst. So if one CopyTo runs for each direction of a session,
// before is called before the answer to that data is received. moved does not promise that: it is
// called after data was sent, when the other CopyTo may already have copied the answer. Between
// connections of one loop, where the loop copies both directions, moved is called in time, and
// copying is faster without BeforeWrite.
func BeforeWrite(dst Stream, before func()) Stream { return &beforeWrite{dst, before} }

type beforeWrite struct {
	Stream
	before func()
}

func (b *beforeWrite) Write(p []byte) (int, error) {
	b.before()
	return b.Stream.Write(p)
}

// splitBefore returns the connection below dst, and what BeforeWrite is to call; nil = nothing.
func splitBefore(dst net.Conn) (net.Conn, func()) {
	if b, ok := dst.(*beforeWrite); ok {
		return b.Stream, b.before
	}
	return dst, nil
}
