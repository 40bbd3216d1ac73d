package pgwire

// SSLRequest asks the server to switch to TLS; it answers with one byte, 'S' or 'N'.
type SSLRequest struct{}

// Append adds the encoded packet to dst.
func (*SSLRequest) Append(dst []byte) []byte {
	dst, at := beginStartup(dst, codeSSL)
	return finish(dst, at)
}

// Decode reads a packet after its length word.
func (*SSLRequest) Decode(packet []byte) error { return decodeCode(packet, codeSSL, "SSLRequest") }
