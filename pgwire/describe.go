package pgwire

import "fmt"

// Describe asks for the parameters and result columns of a prepared statement, or the result
// columns of a portal.
type Describe struct {
	Object byte // ObjectStatement or ObjectPortal
	Name   string
}

// Append adds the encoded message to dst.
func (m *Describe) Append(dst []byte) []byte {
	return appendTarget(dst, TypeDescribe, m.Object, m.Name)
}

// Decode reads a message body.
func (m *Describe) Decode(body []byte) (err error) {
	m.Object, m.Name, err = decodeTarget(body, "Describe")
	return err
}

func appendTarget(dst []byte, typ, object byte, name string) []byte {
	dst, at := begin(dst, typ)
	return finish(appendString(append(dst, object), name), at)
}

func decodeTarget(body []byte, message string) (object byte, name string, err error) {
	c := cursor{b: body}
	object, name = c.byte(), c.string()
	if !c.bad && object != ObjectStatement && object != ObjectPortal {
		return 0, "", fmt.Errorf("%w: %s names object type %q, want 'S' or 'P'", ErrMalformed, message, object)
	}
	return object, name, c.done(message)
}
