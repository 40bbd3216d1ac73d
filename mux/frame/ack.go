package frame

import "encoding/binary"

// Ack acknowledges received frames when there is no other frame whose header could.
type Ack struct {
	Last uint64 // number of the last sequenced frame received
}

// Append appends the frame to dst.
func (f Ack) Append(dst []byte) []byte {
	dst = Header{Type: TypeAck, Length: 8, Ack: uint32(f.Last)}.Append(dst)
	return binary.BigEndian.AppendUint64(dst, f.Last)
}

// Decode reads the frame's body.
func (f *Ack) Decode(h Header, body []byte) error {
	if err := h.of(TypeAck, body); err != nil {
		return err
	}
	if f.Last = binary.BigEndian.Uint64(body); h.Ack != uint32(f.Last) {
		return errValue
	}
	return nil
}
