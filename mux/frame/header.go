package frame

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// Magic is what each side sends before its first frame: a name, a line break
// that text-mode transfers damage, and a zero byte that no text protocol sends.
const Magic = "hpmux\r\n\x00"

const (
	// HeaderSize is the size in bytes of every frame's header.
	HeaderSize = 16
	// MaxControl bounds the body of every frame but Data, in bytes.
	MaxControl = 1024
	// MaxData bounds the body of a Data frame, in bytes; sides agree on less in Hello.
	MaxData = 1 << 20
	// MinMaxFrame is the least a side may offer in Hello.MaxFrame: room for every control frame.
	MinMaxFrame = MaxControl
)

// Type is the type of a frame.
type Type uint8

// The frame types.
const (
	TypeHello   Type = 0x01
	TypeAuth    Type = 0x02
	TypeResume  Type = 0x03
	TypeResumed Type = 0x04
	TypeAck     Type = 0x05
	TypeTicket  Type = 0x06
	TypePing    Type = 0x08
	TypePong    Type = 0x09
	TypeGoAway  Type = 0x0a
	TypeOpen    Type = 0x10
	TypeAccept  Type = 0x11
	TypeData    Type = 0x12
	TypeWindow  Type = 0x13
	TypeReset   Type = 0x14
	TypeStop    Type = 0x15
	TypeOpens   Type = 0x16
)

// Sequenced reports whether frames of the type are numbered in each direction of a resumable
// session, acknowledged, and sent again when lost.
func (t Type) Sequenced() bool { return t >= TypeGoAway }

// Flags are bits whose meaning depends on the type; only Data has any.
type Flags uint8

// The flags of Data frames.
const (
	// FlagMore: the message continues in the channel's next Data frame.
	FlagMore Flags = 1 << iota
	// FlagSized: the body starts with the whole message's size, four bytes.
	// Set on the first of several frames of a message, nowhere else.
	FlagSized
	// FlagFin: nothing follows in this direction.
	FlagFin
	// FlagAbort: the message begun is given up; the receiver drops its part.
	FlagAbort
)

// String is the flags' names in the specification, joined by "|"; "" is none.
func (f Flags) String() string {
	var s string
	for _, name := range [...]string{"MORE", "SIZED", "FIN", "ABORT"} {
		if f&1 != 0 {
			s += "|" + name
		}
		f >>= 1
	}
	if f != 0 {
		s += fmt.Sprintf("|0x%02x", uint8(f)<<4)
	}
	return strings.TrimPrefix(s, "|")
}

// Header is the start of every frame.
type Header struct {
	Type    Type
	Flags   Flags
	Length  uint32 // of the body, bytes
	Channel uint32 // 0: the session
	Ack     uint32 // low bits of the number of the last sequenced frame received; 0 unless resumption was agreed
}

// ErrInvalid is wrapped by every error of this package: the bytes are not a
// frame of this protocol.
var ErrInvalid = errors.New("frame: invalid")

var (
	errShort    = fmt.Errorf("%w: body shorter than its type needs", ErrInvalid)
	errLong     = fmt.Errorf("%w: body longer than its type allows", ErrInvalid)
	errReserved = fmt.Errorf("%w: reserved bits are set", ErrInvalid)
	errType     = fmt.Errorf("%w: body decoded as another type", ErrInvalid)
	errHeader   = fmt.Errorf("%w: header needs 16 bytes", ErrInvalid)
	errUnknown  = fmt.Errorf("%w: unknown type", ErrInvalid)
	errFlags    = fmt.Errorf("%w: flags not allowed for this type", ErrInvalid)
	errLength   = fmt.Errorf("%w: length out of the type's bounds", ErrInvalid)
	errChannel  = fmt.Errorf("%w: channel number not allowed for this type", ErrInvalid)
	errValue    = fmt.Errorf("%w: value not allowed", ErrInvalid)
)

// scope says whether a type belongs to the session, a channel, or either.
type scope uint8

const (
	onSession scope = 1 << iota
	onChannel
)

// rule has the checks of ParseHeader for a type.
type rule struct {
	min, max uint32
	scope    scope
}

// rules is indexed by type; a zero max with a zero scope is an unknown type.
var rules = [TypeOpens + 1]rule{
	TypeHello:   {helloFixed, MaxControl, onSession},
	TypeAuth:    {authSize, authSize, onSession},
	TypeResume:  {resumeSize, resumeSize, onSession},
	TypeResumed: {resumedSize, resumedSize, onSession},
	TypeAck:     {8, 8, onSession},
	TypeTicket:  {ticketSize, ticketSize, onSession},
	TypePing:    {8, 8, onSession},
	TypePong:    {8, 8, onSession},
	TypeGoAway:  {goAwayFixed, MaxControl, onSession},
	TypeOpen:    {openFixed, MaxControl, onChannel},
	TypeAccept:  {0, 0, onChannel},
	TypeData:    {0, MaxData, onChannel},
	TypeWindow:  {8, 8, onSession | onChannel},
	TypeReset:   {4, MaxControl, onChannel},
	TypeStop:    {4, 4, onChannel},
	TypeOpens:   {8, 8, onSession},
}

// ParseHeader reads the header at the start of b. It checks everything that can
// be checked without the body: once it returns, Length is within the type's bounds.
func ParseHeader(b []byte) (Header, error) {
	if len(b) < HeaderSize {
		return Header{}, errHeader
	}
	_ = b[15]
	h := Header{
		Type: Type(b[0]), Flags: Flags(b[1]),
		Length:  binary.BigEndian.Uint32(b[4:]),
		Channel: binary.BigEndian.Uint32(b[8:]),
		Ack:     binary.BigEndian.Uint32(b[12:]),
	}
	if b[2]|b[3] != 0 {
		return Header{}, errReserved
	}
	return h, h.check()
}

func (h Header) check() error {
	if int(h.Type) >= len(rules) || rules[h.Type].scope == 0 {
		return errUnknown
	}
	r := &rules[h.Type]
	switch {
	case h.Length < r.min || h.Length > r.max:
		return errLength
	case h.Channel == 0 && r.scope&onSession == 0, h.Channel != 0 && r.scope&onChannel == 0:
		return errChannel
	case h.Type == TypeData:
		return h.checkData()
	case h.Flags != 0:
		return errFlags
	}
	return nil
}

// Put writes the header to the first 16 bytes of b, which must have them.
func (h Header) Put(b []byte) {
	_ = b[15]
	b[0], b[1], b[2], b[3] = byte(h.Type), byte(h.Flags), 0, 0
	binary.BigEndian.PutUint32(b[4:], h.Length)
	binary.BigEndian.PutUint32(b[8:], h.Channel)
	binary.BigEndian.PutUint32(b[12:], h.Ack)
}

// Append appends the header to dst.
func (h Header) Append(dst []byte) []byte {
	dst = append(dst, byte(h.Type), byte(h.Flags), 0, 0)
	dst = binary.BigEndian.AppendUint32(dst, h.Length)
	dst = binary.BigEndian.AppendUint32(dst, h.Channel)
	return binary.BigEndian.AppendUint32(dst, h.Ack)
}

// of checks that a body belongs to h and h to the type about to decode it.
func (h Header) of(t Type, body []byte) error {
	switch {
	case h.Type != t:
		return errType
	case len(body) < int(h.Length):
		return errShort
	case len(body) > int(h.Length):
		return errLong
	}
	return h.check()
}

var names = map[Type]string{
	TypeHello: "HELLO", TypeAuth: "AUTH", TypeResume: "RESUME", TypeResumed: "RESUMED", TypeAck: "ACK", TypeTicket: "TICKET",
	TypePing: "PING", TypePong: "PONG", TypeGoAway: "GOAWAY", TypeOpen: "OPEN", TypeAccept: "ACCEPT",
	TypeData: "DATA", TypeWindow: "WINDOW", TypeReset: "RESET", TypeStop: "STOP",
	TypeOpens: "OPENS",
}

// String is the type's name in the specification.
func (t Type) String() string {
	if n, ok := names[t]; ok {
		return n
	}
	return fmt.Sprintf("type 0x%02x", uint8(t))
}
