package pgwire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

// ErrMalformed is wrapped by every error of a Decode method.
var ErrMalformed = errors.New("pgwire: malformed message")

// Message is implemented by every message of this package. It appends itself to a slice, with type byte and length word.
type Message interface {
	// Append adds the encoded message to dst and returns the extended slice.
	Append(dst []byte) []byte
}

// begin appends a type byte and space for the length, which finish fills in.
func begin(dst []byte, typ byte) ([]byte, int) {
	return append(dst, typ, 0, 0, 0, 0), len(dst) + 1
}

func finish(dst []byte, at int) []byte {
	binary.BigEndian.PutUint32(dst[at:], uint32(len(dst)-at))
	return dst
}

// empty appends a message without a body.
func empty(dst []byte, typ byte) []byte { return append(dst, typ, 0, 0, 0, 4) }

func appendString(dst []byte, s string) []byte { return append(append(dst, s...), 0) }

func appendInt16(dst []byte, v int) []byte { return binary.BigEndian.AppendUint16(dst, uint16(v)) }

func appendInt32(dst []byte, v int32) []byte { return binary.BigEndian.AppendUint32(dst, uint32(v)) }

// appendValue appends a length-prefixed value; nil is NULL (length -1).
func appendValue(dst, v []byte) []byte {
	if v == nil {
		return appendInt32(dst, -1)
	}
	return append(appendInt32(dst, int32(len(v))), v...)
}

// AppendHeader appends the five bytes before a body of n bytes.
func AppendHeader(dst []byte, typ byte, n int) []byte {
	return binary.BigEndian.AppendUint32(append(dst, typ), uint32(n+4))
}

// cursor reads a body. After the first failure it returns zeros only.
type cursor struct {
	b   []byte
	bad bool
}

func (c *cursor) byte() byte {
	if len(c.b) < 1 {
		c.bad = true
		return 0
	}
	v := c.b[0]
	c.b = c.b[1:]
	return v
}

func (c *cursor) int16() int {
	if len(c.b) < 2 {
		c.bad, c.b = true, nil
		return 0
	}
	v := binary.BigEndian.Uint16(c.b)
	c.b = c.b[2:]
	return int(v)
}

func (c *cursor) int32() int32 {
	if len(c.b) < 4 {
		c.bad, c.b = true, nil
		return 0
	}
	v := binary.BigEndian.Uint32(c.b)
	c.b = c.b[4:]
	return int32(v)
}

// cstring returns the bytes before the next NUL. They alias the body.
func (c *cursor) cstring() []byte {
	i := bytes.IndexByte(c.b, 0)
	if i < 0 {
		c.bad, c.b = true, nil
		return nil
	}
	v := c.b[:i]
	c.b = c.b[i+1:]
	return v
}

func (c *cursor) string() string { return string(c.cstring()) }

// take returns the next n bytes. They alias the body.
func (c *cursor) take(n int) []byte {
	if n < 0 || n > len(c.b) {
		c.bad, c.b = true, nil
		return nil
	}
	v := c.b[:n:n]
	c.b = c.b[n:]
	return v
}

func (c *cursor) rest() []byte { return c.take(len(c.b)) }

// value reads a length-prefixed value; nil is NULL.
func (c *cursor) value() []byte {
	n := c.int32()
	if c.bad || n == -1 {
		return nil
	}
	return c.take(int(n))
}

// values reads a 16-bit count and that many values.
func (c *cursor) values() [][]byte {
	n := c.int16()
	if c.bad || n*4 > len(c.b) {
		c.bad = true
		return nil
	}
	out := make([][]byte, n)
	for i := range out {
		out[i] = c.value()
	}
	return out
}

// formats reads a 16-bit count and that many format codes.
func (c *cursor) formats() []int16 {
	n := c.int16()
	if c.bad || n*2 > len(c.b) {
		c.bad = true
		return nil
	}
	out := make([]int16, n)
	for i := range out {
		out[i] = int16(c.int16())
	}
	return out
}

// oids reads a 16-bit count and that many type OIDs.
func (c *cursor) oids() []uint32 {
	n := c.int16()
	if c.bad || n*4 > len(c.b) {
		c.bad = true
		return nil
	}
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(c.int32())
	}
	return out
}

// done returns an error unless exactly the whole body was read.
func (c *cursor) done(name string) error {
	if c.bad {
		return fmt.Errorf("%w: %s is too short or has an impossible length", ErrMalformed, name)
	}
	if len(c.b) != 0 {
		return fmt.Errorf("%w: %d bytes too many in %s", ErrMalformed, len(c.b), name)
	}
	return nil
}

func appendFormats(dst []byte, f []int16) []byte {
	dst = appendInt16(dst, len(f))
	for _, v := range f {
		dst = appendInt16(dst, int(v))
	}
	return dst
}

func appendOIDs(dst []byte, o []uint32) []byte {
	dst = appendInt16(dst, len(o))
	for _, v := range o {
		dst = appendInt32(dst, int32(v))
	}
	return dst
}

// decodeEmpty checks that a message has no body.
func decodeEmpty(body []byte, name string) error {
	c := cursor{b: body}
	return c.done(name)
}
