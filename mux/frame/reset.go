package frame

import "encoding/binary"

const resetFixed = 4

// Reset ends both directions of a channel at once.
type Reset struct {
	Channel uint32
	Code    Code
	Reason  []byte // for people, UTF-8; at most MaxControl-4 bytes
}

// Append appends the frame to dst. A Reason over its bound is cut.
func (f *Reset) Append(dst []byte) []byte {
	reason := f.Reason[:min(len(f.Reason), MaxControl-resetFixed)]
	dst = Header{Type: TypeReset, Channel: f.Channel, Length: uint32(resetFixed + len(reason))}.Append(dst)
	dst = binary.BigEndian.AppendUint32(dst, uint32(f.Code))
	return append(dst, reason...)
}

// Decode reads the frame's body. Reason points into it.
func (f *Reset) Decode(h Header, body []byte) error {
	if err := h.of(TypeReset, body); err != nil {
		return err
	}
	*f = Reset{Channel: h.Channel, Code: Code(binary.BigEndian.Uint32(body)), Reason: body[resetFixed:]}
	return nil
}
