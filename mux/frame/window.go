package frame

import "encoding/binary"

// Window gives credit: the sum of the costs of all Data frames ever sent on the
// channel (0: in the session) may reach Limit. Limits never fall.
type Window struct {
	Channel uint32
	Limit   uint64
}

// Append appends the frame to dst.
func (f Window) Append(dst []byte) []byte {
	dst = Header{Type: TypeWindow, Channel: f.Channel, Length: 8}.Append(dst)
	return binary.BigEndian.AppendUint64(dst, f.Limit)
}

// Decode reads the frame's body.
func (f *Window) Decode(h Header, body []byte) error {
	if err := h.of(TypeWindow, body); err != nil {
		return err
	}
	f.Channel, f.Limit = h.Channel, binary.BigEndian.Uint64(body)
	return nil
}
