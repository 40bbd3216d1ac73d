package pgwire

// CommandComplete reports the end of a command, with its tag, such as "SELECT 3".
type CommandComplete struct {
	Tag string
}

// Append adds the encoded message to dst.
func (m *CommandComplete) Append(dst []byte) []byte {
	dst, at := begin(dst, TypeCommandComplete)
	return finish(appendString(dst, m.Tag), at)
}

// Decode reads a message body.
func (m *CommandComplete) Decode(body []byte) error {
	c := cursor{b: body}
	m.Tag = c.string()
	return c.done("CommandComplete")
}
