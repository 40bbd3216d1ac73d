package pgwire

// CopyBothResponse starts a COPY in both directions. Only replication uses it.
type CopyBothResponse struct {
	Format  int8    // of the whole copy: 0 text, 1 binary
	Columns []int16 // format of each column
}

// Append adds the encoded message to dst.
func (m *CopyBothResponse) Append(dst []byte) []byte {
	dst, at := begin(dst, TypeCopyBothResponse)
	return finish(appendFormats(append(dst, byte(m.Format)), m.Columns), at)
}

// Decode reads a message body.
func (m *CopyBothResponse) Decode(body []byte) error {
	c := cursor{b: body}
	m.Format = int8(c.byte())
	m.Columns = c.formats()
	return c.done("CopyBothResponse")
}
