package pgwire

// Execute runs a portal.
type Execute struct {
	Portal  string
	MaxRows uint32 // 0 = all
}

// Append adds the encoded message to dst.
func (m *Execute) Append(dst []byte) []byte {
	dst, at := begin(dst, TypeExecute)
	dst = appendString(dst, m.Portal)
	return finish(appendInt32(dst, int32(m.MaxRows)), at)
}

// Decode reads a message body.
func (m *Execute) Decode(body []byte) error {
	c := cursor{b: body}
	m.Portal = c.string()
	m.MaxRows = uint32(c.int32())
	return c.done("Execute")
}
