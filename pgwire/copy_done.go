package pgwire

// CopyDone ends a COPY, in either direction.
type CopyDone struct{}

// Append adds the encoded message to dst.
func (*CopyDone) Append(dst []byte) []byte { return empty(dst, TypeCopyDone) }

// Decode reads a message body, which must be empty.
func (*CopyDone) Decode(body []byte) error { return decodeEmpty(body, "CopyDone") }
