package pgwire

// Parse makes a prepared statement. The empty name is the unnamed statement.
type Parse struct {
	Name       string
	Query      string
	ParamTypes []uint32 // OIDs; 0 = the server infers
}

// Append adds the encoded message to dst.
func (m *Parse) Append(dst []byte) []byte {
	dst, at := begin(dst, TypeParse)
	dst = appendString(dst, m.Name)
	dst = appendString(dst, m.Query)
	return finish(appendOIDs(dst, m.ParamTypes), at)
}

// Decode reads a message body.
func (m *Parse) Decode(body []byte) error {
	c := cursor{b: body}
	m.Name, m.Query = c.string(), c.string()
	m.ParamTypes = c.oids()
	return c.done("Parse")
}
