package pgwire

// NoData answers Describe where there are no rows to describe.
type NoData struct{}

// Append adds the encoded message to dst.
func (*NoData) Append(dst []byte) []byte { return empty(dst, TypeNoData) }

// Decode reads a message body, which must be empty.
func (*NoData) Decode(body []byte) error { return decodeEmpty(body, "NoData") }
