package pgwire

// GSSENCRequest asks the server for GSSAPI encryption; it answers 'G' or 'N'.
type GSSENCRequest struct{}

// Append adds the encoded packet to dst.
func (*GSSENCRequest) Append(dst []byte) []byte {
	dst, at := beginStartup(dst, codeGSSENC)
	return finish(dst, at)
}

// Decode reads a packet after its length word.
func (*GSSENCRequest) Decode(packet []byte) error {
	return decodeCode(packet, codeGSSENC, "GSSENCRequest")
}
