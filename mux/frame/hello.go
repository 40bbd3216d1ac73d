package frame

import "encoding/binary"

// Version is the protocol version this package speaks.
const Version = 1

// Features are capabilities that both sides must have to use one.
type Features uint32

const (
	// FeaturePSK: both sides prove that they know a shared key, with Auth.
	FeaturePSK Features = 1 << iota
	// FeatureResume: the session outlives its connection.
	FeatureResume
	// FeatureLinks: the session may have several sockets. Reserved.
	FeatureLinks
	// FeatureOpens: opening a channel takes credit, see Opens.
	FeatureOpens
)

const (
	helloFixed = 116
	// MaxHelloName bounds a name in Hello, in bytes.
	MaxHelloName = 255
	// MinReplay is the least a side that resumes may keep to send again, in bytes.
	MinReplay = 64 << 10
	// MaxHelloToken bounds the token in Hello, in bytes.
	MaxHelloToken = 512
)

// Hello is each side's first frame: its name, its features and how much it is willing to receive.
// The server's answers the client's: it holds the chosen version and features, and the session's
// identity.
type Hello struct {
	MinVersion, MaxVersion uint8
	Required, Offered      Features // Required is a subset of Offered
	MaxFrame               uint32   // largest Data body accepted, bytes
	MaxChannels            uint32   // channels the other side may have open at once
	ChannelWindow          uint32   // credit each channel starts with
	SessionWindow          uint32   // credit the session starts with
	KeepAlive              uint32   // milliseconds of silence before this side asks with Ping; 0: never. For information
	Instance               [16]byte // random, of the process
	Session                [16]byte // chosen by the server; zero in a client's first
	Epoch                  uint32   // number of this socket in the session's life, from 0
	Nonce                  [32]byte // random, of this handshake
	Replay                 uint32   // with FeatureResume: how much the sender keeps to send again, bytes; else 0
	Name                   []byte   // for logs, at most MaxHelloName bytes
	Token                  []byte   // credentials for the other side's authorization, at most MaxHelloToken bytes
}

// Append appends the frame to dst. Name and Token over their bounds are cut.
func (f *Hello) Append(dst []byte) []byte {
	name, token := f.Name[:min(len(f.Name), MaxHelloName)], f.Token[:min(len(f.Token), MaxHelloToken)]
	dst = Header{Type: TypeHello, Length: uint32(helloFixed + len(name) + len(token))}.Append(dst)
	dst = append(dst, f.MinVersion, f.MaxVersion, 0, 0)
	for _, v := range [...]uint32{
		uint32(f.Required), uint32(f.Offered), f.MaxFrame, f.MaxChannels, f.ChannelWindow, f.SessionWindow, f.KeepAlive,
	} {
		dst = binary.BigEndian.AppendUint32(dst, v)
	}
	dst = append(dst, f.Instance[:]...)
	dst = append(dst, f.Session[:]...)
	dst = binary.BigEndian.AppendUint32(dst, f.Epoch)
	dst = append(dst, f.Nonce[:]...)
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(name)))
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(token)))
	dst = binary.BigEndian.AppendUint32(dst, f.Replay)
	dst = binary.BigEndian.AppendUint64(dst, 0)
	dst = append(dst, name...)
	return append(dst, token...)
}

// Decode reads the frame's body. Name and Token point into it.
func (f *Hello) Decode(h Header, body []byte) error {
	if err := h.of(TypeHello, body); err != nil {
		return err
	}
	*f = Hello{MinVersion: body[0], MaxVersion: body[1]}
	f.Required = Features(binary.BigEndian.Uint32(body[4:]))
	f.Offered = Features(binary.BigEndian.Uint32(body[8:]))
	for i, p := range [...]*uint32{&f.MaxFrame, &f.MaxChannels, &f.ChannelWindow, &f.SessionWindow, &f.KeepAlive} {
		*p = binary.BigEndian.Uint32(body[12+4*i:])
	}
	copy(f.Instance[:], body[32:])
	copy(f.Session[:], body[48:])
	f.Epoch = binary.BigEndian.Uint32(body[64:])
	copy(f.Nonce[:], body[68:])
	f.Replay = binary.BigEndian.Uint32(body[104:])
	name, token := int(binary.BigEndian.Uint16(body[100:])), int(binary.BigEndian.Uint16(body[102:]))
	switch {
	case h.Ack != 0, body[2]|body[3] != 0, binary.BigEndian.Uint64(body[108:]) != 0:
		return errReserved
	case len(body) != helloFixed+name+token, name > MaxHelloName, token > MaxHelloToken:
		return errLength
	case f.MinVersion == 0, f.MinVersion > f.MaxVersion, f.Required&^f.Offered != 0, f.MaxFrame < MinMaxFrame, f.MaxFrame > MaxData:
		return errValue
	case (f.Replay != 0) != (f.Offered&FeatureResume != 0), f.Replay != 0 && f.Replay < MinReplay:
		return errValue
	}
	f.Name, f.Token = body[helloFixed:helloFixed+name], body[helloFixed+name:]
	return nil
}
