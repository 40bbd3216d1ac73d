package pgwire

// Query runs a string of SQL by the simple protocol.
type Query struct {
	SQL string
}

// Append adds the encoded message to dst.
func (m *Query) Append(dst []byte) []byte {
	dst, at := begin(dst, TypeQuery)
	return finish(appendString(dst, m.SQL), at)
}

// Decode reads a message body.
func (m *Query) Decode(body []byte) error {
	c := cursor{b: body}
	m.SQL = c.string()
	return c.done("Query")
}
