package pgwire

// ParameterStatus reports the value of a run-time parameter. It may arrive at any time.
type ParameterStatus struct {
	Name  string
	Value string
}

// Append adds the encoded message to dst.
func (m *ParameterStatus) Append(dst []byte) []byte {
	dst, at := begin(dst, TypeParameterStatus)
	dst = appendString(dst, m.Name)
	return finish(appendString(dst, m.Value), at)
}

// Decode reads a message body.
func (m *ParameterStatus) Decode(body []byte) error {
	c := cursor{b: body}
	m.Name, m.Value = c.string(), c.string()
	return c.done("ParameterStatus")
}
