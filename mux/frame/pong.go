package frame

import "encoding/binary"

// Pong answers a Ping. Of several Pings not yet answered, only the last need be.
type Pong struct {
	Opaque uint64
}

// Append appends the frame to dst.
func (f Pong) Append(dst []byte) []byte {
	dst = Header{Type: TypePong, Length: 8}.Append(dst)
	return binary.BigEndian.AppendUint64(dst, f.Opaque)
}

// Decode reads the frame's body.
func (f *Pong) Decode(h Header, body []byte) error {
	if err := h.of(TypePong, body); err != nil {
		return err
	}
	f.Opaque = binary.BigEndian.Uint64(body)
	return nil
}
