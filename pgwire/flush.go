package pgwire

// Flush asks the server to send its answers so far, without ending the pipeline.
type Flush struct{}

// Append adds the encoded message to dst.
func (*Flush) Append(dst []byte) []byte { return empty(dst, TypeFlush) }

// Decode reads a message body, which must be empty.
func (*Flush) Decode(body []byte) error { return decodeEmpty(body, "Flush") }
