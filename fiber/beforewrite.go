package fiber

import "net"

// BeforeWrite returns a destination for CopyTo. It calls before when data for dst has been received, before any of it is
// sent. If two CopyTo run at the same time, one for each direction of a session, the calls are in causal order: data that
// answers what dst was sent is received after that call. moved is called after data was sent, when its answer may have
// been copied already. Between connections of one loop that cannot happen, as long as the loop copies both directions;
// such copying is faster without BeforeWrite.
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
