package pgwire

// NoData answers Describe for a statement or portal that returns no rows.
type NoData struct{}

// Append adds the encoded message to dst.
func (*NoData) Append(dst []byte) []byte { return empty(dst, TypeNoData) }

// Decode reads a message body, which must be empty.
func (*NoData) Decode(body []byte) error { return decodeEmpty(body, "NoData") }
