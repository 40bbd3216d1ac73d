package pgwire

// CopyInResponse starts a COPY FROM STDIN: the server expects CopyData.
type CopyInResponse struct {
	Format  int8    // of the whole copy: 0 text, 1 binary
	Columns []int16 // format of each column
}

// Append adds the encoded message to dst.
func (m *CopyInResponse) Append(dst []byte) []byte {
	dst, at := begin(dst, TypeCopyInResponse)
	return finish(appendFormats(append(dst, byte(m.Format)), m.Columns), at)
}

// Decode reads a message body.
func (m *CopyInResponse) Decode(body []byte) error {
	c := cursor{b: body}
	m.Format = int8(c.byte())
	m.Columns = c.formats()
	return c.done("CopyInResponse")
}
