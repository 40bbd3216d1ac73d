package pgwire

// Terminate ends the session; the client sends it before it closes.
type Terminate struct{}

// Append adds the encoded message to dst.
func (*Terminate) Append(dst []byte) []byte { return empty(dst, TypeTerminate) }

// Decode reads a message body, which must be empty.
func (*Terminate) Decode(body []byte) error { return decodeEmpty(body, "Terminate") }
