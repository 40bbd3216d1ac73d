package pgwire

import (
	"encoding/binary"
	"fmt"
)

// Protocol versions: major<<16 | minor.
const (
	Version30 uint32 = 3 << 16
	Version32 uint32 = 3<<16 | 2
)

// Codes in the place of a protocol version.
const (
	codeCancel = 1234<<16 | 5678
	codeSSL    = 1234<<16 | 5679
	codeGSSENC = 1234<<16 | 5680
)

// MaxStartup is the largest start-up packet accepted, in bytes with the length word. It is PostgreSQL's limit
// (MAX_STARTUP_PACKET_LENGTH).
const MaxStartup = 10000

// Startup is one packet of the start-up phase, which has no type byte: a *SSLRequest, *GSSENCRequest, *CancelRequest or
// *StartupMessage.
type Startup interface {
	Message
	// Decode reads the packet after its length word.
	Decode(packet []byte) error
}

// DecodeStartup decodes a start-up packet of any kind. packet is the packet without its length
// word, as Reader.Startup returns it. A protocol major version other than 3 is reported as a
// *VersionError.
func DecodeStartup(packet []byte) (Startup, error) {
	if len(packet) < 4 {
		return nil, fmt.Errorf("%w: start-up packet of %d bytes", ErrMalformed, len(packet))
	}
	var m Startup
	switch code := binary.BigEndian.Uint32(packet); {
	case code == codeCancel:
		m = new(CancelRequest)
	case code == codeSSL:
		m = new(SSLRequest)
	case code == codeGSSENC:
		m = new(GSSENCRequest)
	case code>>16 == 3:
		m = new(StartupMessage)
	default:
		return nil, &VersionError{Version: code}
	}
	if err := m.Decode(packet); err != nil {
		return nil, err
	}
	return m, nil
}

// VersionError reports a start-up packet for a protocol that is not version 3.
type VersionError struct {
	Version uint32
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("pgwire: unsupported frontend protocol %d.%d: want 3.0 to 3.2", e.Version>>16, e.Version&0xffff)
}

// Unwrap makes errors.Is(err, ErrMalformed) true.
func (e *VersionError) Unwrap() error { return ErrMalformed }

// beginStartup appends space for the length, and the code.
func beginStartup(dst []byte, code uint32) ([]byte, int) {
	at := len(dst)
	return binary.BigEndian.AppendUint32(append(dst, 0, 0, 0, 0), code), at
}

// decodeCode checks a packet that consists of its code.
func decodeCode(packet []byte, code uint32, name string) error {
	c := cursor{b: packet}
	if got := uint32(c.int32()); !c.bad && got != code {
		return fmt.Errorf("%w: code %d is not %s", ErrMalformed, got, name)
	}
	return c.done(name)
}
