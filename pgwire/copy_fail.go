package pgwire

// CopyFail ends a COPY FROM STDIN with an error.
type CopyFail struct {
	Message string
}

// Append adds the encoded message to dst.
func (m *CopyFail) Append(dst []byte) []byte {
	dst, at := begin(dst, TypeCopyFail)
	return finish(appendString(dst, m.Message), at)
}

// Decode reads a message body.
func (m *CopyFail) Decode(body []byte) error {
	c := cursor{b: body}
	m.Message = c.string()
	return c.done("CopyFail")
}
