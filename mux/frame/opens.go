package frame

import "encoding/binary"

// Opens gives credit for channels, where both sides have FeatureOpens: how many the
// other side may open in the life of the session, by kind. Limits never fall. They
// begin at 0, and each side's first frame after the handshake is an Opens.
type Opens struct {
	Messages, Streams uint32
}

// Append appends the frame to dst.
func (f Opens) Append(dst []byte) []byte {
	dst = Header{Type: TypeOpens, Length: 8}.Append(dst)
	dst = binary.BigEndian.AppendUint32(dst, f.Messages)
	return binary.BigEndian.AppendUint32(dst, f.Streams)
}

// Decode reads the frame's body.
func (f *Opens) Decode(h Header, body []byte) error {
	if err := h.of(TypeOpens, body); err != nil {
		return err
	}
	f.Messages, f.Streams = binary.BigEndian.Uint32(body), binary.BigEndian.Uint32(body[4:])
	return nil
}
