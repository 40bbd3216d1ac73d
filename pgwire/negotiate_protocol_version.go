package pgwire

import "fmt"

// NegotiateProtocolVersion answers a StartupMessage that asked for a newer minor version, or for protocol options
// (parameters whose names begin with "_pq_.") that the server does not know.
type NegotiateProtocolVersion struct {
	Version uint32   // the newest that the server supports: major<<16 | minor
	Options []string // the options that it does not know
}

// Append adds the encoded message to dst.
func (m *NegotiateProtocolVersion) Append(dst []byte) []byte {
	dst, at := begin(dst, TypeNegotiateProtocolVersion)
	dst = appendInt32(dst, int32(m.Version))
	dst = appendInt32(dst, int32(len(m.Options)))
	for _, o := range m.Options {
		dst = appendString(dst, o)
	}
	return finish(dst, at)
}

// Decode reads a message body.
func (m *NegotiateProtocolVersion) Decode(body []byte) error {
	c := cursor{b: body}
	m.Version = uint32(c.int32())
	n := c.int32()
	if n < 0 || int(n) > len(c.b) {
		return fmt.Errorf("%w: NegotiateProtocolVersion names %d options in %d bytes", ErrMalformed, n, len(c.b))
	}
	m.Options = make([]string, n)
	for i := range m.Options {
		m.Options[i] = c.string()
	}
	return c.done("NegotiateProtocolVersion")
}
