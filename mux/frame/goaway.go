package frame

import "encoding/binary"

const goAwayFixed = 8

// GoAway says that its sender takes no more channels, and why. With a Code
// other than CodeNone it is the last frame before the connection closes.
type GoAway struct {
	Last   uint32 // highest channel number of the receiver's that was taken; later ones were not touched
	Code   Code
	Reason []byte // for people, UTF-8; at most MaxControl-8 bytes
}

// Append appends the frame to dst. A Reason over its bound is cut.
func (f *GoAway) Append(dst []byte) []byte {
	reason := f.Reason[:min(len(f.Reason), MaxControl-goAwayFixed)]
	dst = Header{Type: TypeGoAway, Length: uint32(goAwayFixed + len(reason))}.Append(dst)
	dst = binary.BigEndian.AppendUint32(dst, f.Last)
	dst = binary.BigEndian.AppendUint32(dst, uint32(f.Code))
	return append(dst, reason...)
}

// Decode reads the frame's body. Reason points into it.
func (f *GoAway) Decode(h Header, body []byte) error {
	if err := h.of(TypeGoAway, body); err != nil {
		return err
	}
	f.Last = binary.BigEndian.Uint32(body)
	f.Code = Code(binary.BigEndian.Uint32(body[4:]))
	f.Reason = body[goAwayFixed:]
	return nil
}
