package pgwire

// EmptyQueryResponse replaces CommandComplete for an empty query string.
type EmptyQueryResponse struct{}

// Append adds the encoded message to dst.
func (*EmptyQueryResponse) Append(dst []byte) []byte { return empty(dst, TypeEmptyQueryResponse) }

// Decode reads a message body, which must be empty.
func (*EmptyQueryResponse) Decode(body []byte) error { return decodeEmpty(body, "EmptyQueryResponse") }
