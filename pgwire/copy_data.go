package pgwire

// CopyData carries a piece of a COPY, in either direction.
type CopyData struct {
	Data []byte
}

// Append adds the encoded message to dst.
func (m *CopyData) Append(dst []byte) []byte {
	return append(AppendHeader(dst, TypeCopyData, len(m.Data)), m.Data...)
}

// Decode reads a message body; Data is the body.
func (m *CopyData) Decode(body []byte) error {
	m.Data = body
	return nil
}
