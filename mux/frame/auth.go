package frame

const authSize = 32

// Auth proves that its sender knows the pre-shared key.
type Auth struct {
	Proof [authSize]byte // HMAC-SHA-256, see the specification
}

// Append appends the frame to dst.
func (f *Auth) Append(dst []byte) []byte {
	dst = Header{Type: TypeAuth, Length: authSize}.Append(dst)
	return append(dst, f.Proof[:]...)
}

// Decode reads the frame's body.
func (f *Auth) Decode(h Header, body []byte) error {
	if err := h.of(TypeAuth, body); err != nil {
		return err
	}
	copy(f.Proof[:], body)
	return nil
}
