package frame

import "encoding/binary"

// Stop says that its sender reads nothing more from the channel. The other side
// answers with Data and FlagFin unless it has sent that.
type Stop struct {
	Channel uint32
	Code    Code
}

// Append appends the frame to dst.
func (f Stop) Append(dst []byte) []byte {
	dst = Header{Type: TypeStop, Channel: f.Channel, Length: 4}.Append(dst)
	return binary.BigEndian.AppendUint32(dst, uint32(f.Code))
}

// Decode reads the frame's body.
func (f *Stop) Decode(h Header, body []byte) error {
	if err := h.of(TypeStop, body); err != nil {
		return err
	}
	f.Channel, f.Code = h.Channel, Code(binary.BigEndian.Uint32(body))
	return nil
}
