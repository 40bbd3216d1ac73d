package pgwire

// PasswordMessage answers AuthenticationCleartextPassword and AuthenticationMD5Password.
type PasswordMessage struct {
	Password string
}

// Append adds the encoded message to dst.
func (m *PasswordMessage) Append(dst []byte) []byte {
	dst, at := begin(dst, TypePassword)
	return finish(appendString(dst, m.Password), at)
}

// Decode reads a message body.
func (m *PasswordMessage) Decode(body []byte) error {
	c := cursor{b: body}
	m.Password = c.string()
	return c.done("PasswordMessage")
}
