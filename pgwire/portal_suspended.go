package pgwire

// PortalSuspended reports that Execute stopped at its row limit; the portal can be executed again.
type PortalSuspended struct{}

// Append adds the encoded message to dst.
func (*PortalSuspended) Append(dst []byte) []byte { return empty(dst, TypePortalSuspended) }

// Decode reads a message body, which must be empty.
func (*PortalSuspended) Decode(body []byte) error { return decodeEmpty(body, "PortalSuspended") }
