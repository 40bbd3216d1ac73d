package pgwire

// ParameterDescription gives the parameter types of a prepared statement.
type ParameterDescription struct {
	Types []uint32 // OIDs
}

// Append adds the encoded message to dst.
func (m *ParameterDescription) Append(dst []byte) []byte {
	dst, at := begin(dst, TypeParameterDescription)
	return finish(appendOIDs(dst, m.Types), at)
}

// Decode reads a message body.
func (m *ParameterDescription) Decode(body []byte) error {
	c := cursor{b: body}
	m.Types = c.oids()
	return c.done("ParameterDescription")
}
