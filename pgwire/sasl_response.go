package pgwire

// SASLResponse carries a later message of a SASL exchange from the client.
type SASLResponse struct {
	Data []byte
}

// Append adds the encoded message to dst.
func (m *SASLResponse) Append(dst []byte) []byte {
	return append(AppendHeader(dst, TypePassword, len(m.Data)), m.Data...)
}

// Decode reads a message body; Data is the body.
func (m *SASLResponse) Decode(body []byte) error {
	m.Data = body
	return nil
}
