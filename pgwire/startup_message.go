package pgwire

import (
	"encoding/binary"
	"fmt"
)

// Param is a named parameter of a StartupMessage.
type Param struct {
	Name, Value string
}

// StartupMessage opens a session.
type StartupMessage struct {
	Version uint32  // 0 = Version30 when encoding
	Params  []Param // in the order sent; "user" is the only one required
}

// Get returns the value of the last parameter with a name, "" if there is none.
func (m *StartupMessage) Get(name string) string {
	value := ""
	for _, p := range m.Params {
		if p.Name == name {
			value = p.Value
		}
	}
	return value
}

// Append adds the encoded packet to dst.
func (m *StartupMessage) Append(dst []byte) []byte {
	version := m.Version
	if version == 0 {
		version = Version30
	}
	dst, at := beginStartup(dst, version)
	for _, p := range m.Params {
		dst = appendString(appendString(dst, p.Name), p.Value)
	}
	return finish(append(dst, 0), at)
}

// Decode reads a packet after its length word.
func (m *StartupMessage) Decode(packet []byte) error {
	if len(packet) < 5 {
		return fmt.Errorf("%w: StartupMessage of %d bytes", ErrMalformed, len(packet))
	}
	*m = StartupMessage{Version: binary.BigEndian.Uint32(packet)}
	if m.Version>>16 != 3 {
		return &VersionError{Version: m.Version}
	}
	c := cursor{b: packet[4:]}
	for {
		name := c.string()
		if name == "" || c.bad {
			return c.done("StartupMessage")
		}
		m.Params = append(m.Params, Param{Name: name, Value: c.string()})
	}
}
