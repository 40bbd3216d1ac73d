package frame

import "encoding/binary"

// Ping asks the other side for a Pong with the same Opaque.
type Ping struct {
	Opaque uint64
}

// Append appends the frame to dst.
func (f Ping) Append(dst []byte) []byte {
	dst = Header{Type: TypePing, Length: 8}.Append(dst)
	return binary.BigEndian.AppendUint64(dst, f.Opaque)
}

// Decode reads the frame's body.
func (f *Ping) Decode(h Header, body []byte) error {
	if err := h.of(TypePing, body); err != nil {
		return err
	}
	f.Opaque = binary.BigEndian.Uint64(body)
	return nil
}
