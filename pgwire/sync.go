package pgwire

// Sync ends an extended-protocol pipeline; the server answers with ReadyForQuery.
type Sync struct{}

// Append adds the encoded message to dst.
func (*Sync) Append(dst []byte) []byte { return empty(dst, TypeSync) }

// Decode reads a message body, which must be empty.
func (*Sync) Decode(body []byte) error { return decodeEmpty(body, "Sync") }
