package pgwire

import (
	"bytes"
	"fmt"
)

// Bind makes a portal from a prepared statement and parameter values.
type Bind struct {
	Portal        string
	Statement     string
	ParamFormats  []int16
	Params        [][]byte // nil element = NULL
	ResultFormats []int16
}

// Append adds the encoded message to dst.
func (m *Bind) Append(dst []byte) []byte {
	dst, at := begin(dst, TypeBind)
	dst = appendString(dst, m.Portal)
	dst = appendString(dst, m.Statement)
	dst = appendFormats(dst, m.ParamFormats)
	dst = appendInt16(dst, len(m.Params))
	for _, p := range m.Params {
		dst = appendValue(dst, p)
	}
	dst = appendFormats(dst, m.ResultFormats)
	return finish(dst, at)
}

// Decode reads a message body; Params alias it.
func (m *Bind) Decode(body []byte) error {
	c := cursor{b: body}
	m.Portal, m.Statement = c.string(), c.string()
	m.ParamFormats = c.formats()
	m.Params = c.values()
	m.ResultFormats = c.formats()
	return c.done("Bind")
}

// BindNames returns the portal and statement names at the start of a Bind body, which may be incomplete. The names alias
// start; n is the length of both with their terminators.
func BindNames(start []byte) (portal, statement []byte, n int, err error) {
	i := bytes.IndexByte(start, 0)
	if i < 0 {
		return nil, nil, 0, fmt.Errorf("%w: no end of the portal name in Bind", ErrMalformed)
	}
	j := bytes.IndexByte(start[i+1:], 0)
	if j < 0 {
		return nil, nil, 0, fmt.Errorf("%w: no end of the statement name in Bind", ErrMalformed)
	}
	return start[:i], start[i+1 : i+1+j], i + j + 2, nil
}
