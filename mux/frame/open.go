package frame

import "encoding/binary"

const (
	openFixed = 20
	// MaxOpenName bounds Open.Name, in bytes.
	MaxOpenName = 512
)

// Kind is the kind of data that a channel carries.
type Kind uint8

// The kinds of channel.
const (
	KindMessages Kind = 1 // messages, their bounds kept
	KindStream   Kind = 2 // bytes
)

// Priority is how large a share of the socket a channel gets when several want
// it: each step doubles it.
type Priority uint8

// MaxPriority is the highest priority; ordinary channels have PriorityNormal.
const (
	PriorityNormal Priority = 2
	MaxPriority    Priority = 4
)

// Open opens the channel in its header. Its sender may use the channel at once.
type Open struct {
	Channel  uint32 // odd: opened by the client, even: by the server; always higher than the ones before
	Kind     Kind
	Priority Priority
	ID       [16]byte // the application's; zero for none
	Name     []byte   // the application's, UTF-8; at most MaxOpenName bytes
}

// Append appends the frame to dst. A Name over its bound is cut.
func (f *Open) Append(dst []byte) []byte {
	name := f.Name[:min(len(f.Name), MaxOpenName)]
	dst = Header{Type: TypeOpen, Channel: f.Channel, Length: uint32(openFixed + len(name))}.Append(dst)
	dst = append(dst, byte(f.Kind), byte(f.Priority), 0, 0)
	dst = append(dst, f.ID[:]...)
	return append(dst, name...)
}

// Decode reads the frame's body. Name points into it.
func (f *Open) Decode(h Header, body []byte) error {
	if err := h.of(TypeOpen, body); err != nil {
		return err
	}
	*f = Open{Channel: h.Channel, Kind: Kind(body[0]), Priority: Priority(body[1])}
	copy(f.ID[:], body[4:])
	f.Name = body[openFixed:]
	switch {
	case binary.BigEndian.Uint16(body[2:]) != 0:
		return errReserved
	case f.Kind != KindMessages && f.Kind != KindStream, f.Priority > MaxPriority, len(f.Name) > MaxOpenName:
		return errValue
	}
	return nil
}
