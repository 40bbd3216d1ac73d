package pgwire

// DataRow is one row of a result.
type DataRow struct {
	Values [][]byte // nil element = NULL
}

// Append adds the encoded message to dst.
func (m *DataRow) Append(dst []byte) []byte {
	dst, at := begin(dst, TypeDataRow)
	dst = appendInt16(dst, len(m.Values))
	for _, v := range m.Values {
		dst = appendValue(dst, v)
	}
	return finish(dst, at)
}

// Decode reads a message body; Values alias it.
func (m *DataRow) Decode(body []byte) error {
	c := cursor{b: body}
	m.Values = c.values()
	return c.done("DataRow")
}
