package pgwire

// BindComplete answers Bind.
type BindComplete struct{}

// Append adds the encoded message to dst.
func (*BindComplete) Append(dst []byte) []byte { return empty(dst, TypeBindComplete) }

// Decode reads a message body, which must be empty.
func (*BindComplete) Decode(body []byte) error { return decodeEmpty(body, "BindComplete") }
