package pgwire

// CloseComplete answers Close.
type CloseComplete struct{}

// Append adds the encoded message to dst.
func (*CloseComplete) Append(dst []byte) []byte { return empty(dst, TypeCloseComplete) }

// Decode reads a message body, which must be empty.
func (*CloseComplete) Decode(body []byte) error { return decodeEmpty(body, "CloseComplete") }
