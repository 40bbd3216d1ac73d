package pgwire

// ParseComplete answers Parse.
type ParseComplete struct{}

// Append adds the encoded message to dst.
func (*ParseComplete) Append(dst []byte) []byte { return empty(dst, TypeParseComplete) }

// Decode reads a message body, which must be empty.
func (*ParseComplete) Decode(body []byte) error { return decodeEmpty(body, "ParseComplete") }
