package pgwire

// SASLInitialResponse answers AuthenticationSASL with a mechanism and its first message.
type SASLInitialResponse struct {
	Mechanism string
	Data      []byte // nil = no data yet
}

// Append adds the encoded message to dst.
func (m *SASLInitialResponse) Append(dst []byte) []byte {
	dst, at := begin(dst, TypePassword)
	dst = appendString(dst, m.Mechanism)
	return finish(appendValue(dst, m.Data), at)
}

// Decode reads a message body; Data aliases it.
func (m *SASLInitialResponse) Decode(body []byte) error {
	c := cursor{b: body}
	m.Mechanism = c.string()
	m.Data = c.value()
	return c.done("SASLInitialResponse")
}
