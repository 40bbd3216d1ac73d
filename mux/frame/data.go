package frame

import "encoding/binary"

// DataCost is the credit that a Data frame takes besides its length: the receiver's overhead for a
// queued frame. Empty frames with FlagFin or FlagAbort are free.
const DataCost = 64

// sizePrefix is the size of the message's size at the start of a FlagSized body.
const sizePrefix = 4

// Data carries a message or part of one, or bytes of a stream.
type Data struct {
	Channel uint32
	Flags   Flags
	Size    uint32 // with FlagSized: of the whole message, bytes
	Payload []byte
}

func (h Header) checkData() error {
	switch h.Flags {
	case 0, FlagFin, FlagMore:
		return nil
	case FlagAbort:
		if h.Length != 0 {
			return errLength
		}
		return nil
	case FlagMore | FlagSized:
		if h.Length <= sizePrefix {
			return errLength
		}
		return nil
	}
	return errFlags
}

// Cost is the credit that the frame takes of its channel and of the session.
func (h Header) Cost() uint64 {
	if h.Length == 0 && h.Flags&(FlagFin|FlagAbort) != 0 {
		return 0
	}
	return uint64(h.Length) + DataCost
}

// Head appends everything before the payload to dst: the header for a payload
// of n bytes, and the size.
func (f *Data) Head(dst []byte, n int) []byte {
	if f.Flags&FlagSized == 0 {
		return Header{Type: TypeData, Flags: f.Flags, Channel: f.Channel, Length: uint32(n)}.Append(dst)
	}
	dst = Header{Type: TypeData, Flags: f.Flags, Channel: f.Channel, Length: uint32(sizePrefix + n)}.Append(dst)
	return binary.BigEndian.AppendUint32(dst, f.Size)
}

// Append appends the frame to dst.
func (f *Data) Append(dst []byte) []byte {
	return append(f.Head(dst, len(f.Payload)), f.Payload...)
}

// Decode reads the frame's body. Payload points into it.
func (f *Data) Decode(h Header, body []byte) error {
	if err := h.of(TypeData, body); err != nil {
		return err
	}
	*f = Data{Channel: h.Channel, Flags: h.Flags, Payload: body}
	if h.Flags&FlagSized == 0 {
		return nil
	}
	f.Size, f.Payload = binary.BigEndian.Uint32(body), body[sizePrefix:]
	if int64(f.Size) <= int64(len(f.Payload)) {
		return errValue // it would have been one frame
	}
	return nil
}
