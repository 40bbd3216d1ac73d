package pgwire

import "fmt"

// AuthKind is the kind of an Authentication message.
type AuthKind int32

// The kinds that this package can answer or send.
const (
	AuthOK           AuthKind = 0
	AuthCleartext    AuthKind = 3
	AuthMD5          AuthKind = 5
	AuthSASL         AuthKind = 10
	AuthSASLContinue AuthKind = 11
	AuthSASLFinal    AuthKind = 12
)

// Authentication is any Authentication message; they share one type byte.
type Authentication struct {
	Kind       AuthKind
	Salt       [4]byte  // AuthMD5
	Mechanisms []string // AuthSASL
	Data       []byte   // AuthSASLContinue, AuthSASLFinal, and unknown kinds
}

// Append adds the encoded message to dst.
func (m *Authentication) Append(dst []byte) []byte {
	dst, at := begin(dst, TypeAuthentication)
	dst = appendInt32(dst, int32(m.Kind))
	switch m.Kind {
	case AuthMD5:
		dst = append(dst, m.Salt[:]...)
	case AuthSASL:
		for _, name := range m.Mechanisms {
			dst = appendString(dst, name)
		}
		dst = append(dst, 0)
	case AuthOK, AuthCleartext:
	default:
		dst = append(dst, m.Data...)
	}
	return finish(dst, at)
}

// Decode reads a message body; Data aliases it.
func (m *Authentication) Decode(body []byte) error {
	c := cursor{b: body}
	*m = Authentication{Kind: AuthKind(c.int32())}
	switch m.Kind {
	case AuthMD5:
		copy(m.Salt[:], c.take(4))
	case AuthSASL:
		for name := c.string(); name != ""; name = c.string() {
			m.Mechanisms = append(m.Mechanisms, name)
		}
	case AuthOK, AuthCleartext:
	default:
		m.Data = c.rest()
	}
	return c.done("Authentication")
}

// String returns the kind's name in PostgreSQL's manual.
func (k AuthKind) String() string {
	switch k {
	case AuthOK:
		return "ok"
	case AuthCleartext:
		return "cleartext password"
	case AuthMD5:
		return "md5"
	case AuthSASL, AuthSASLContinue, AuthSASLFinal:
		return "SASL"
	case 2:
		return "Kerberos V5"
	case 7, 8:
		return "GSSAPI"
	case 9:
		return "SSPI"
	}
	return fmt.Sprintf("method %d", int32(k))
}
