package pgwire

import "fmt"

// Field describes one column of a result.
type Field struct {
	Name         string
	TableOID     uint32 // 0 = not a column of a table
	Column       int16  // attribute number in that table
	TypeOID      uint32
	TypeSize     int16 // negative = variable
	TypeModifier int32 // -1 = none
	Format       int16
}

// RowDescription describes the columns of the rows that follow.
type RowDescription struct {
	Fields []Field
}

// minField is the smallest size of a field: an empty name and the fixed part.
const minField = 1 + 18

// Append adds the encoded message to dst.
func (m *RowDescription) Append(dst []byte) []byte {
	dst, at := begin(dst, TypeRowDescription)
	dst = appendInt16(dst, len(m.Fields))
	for i := range m.Fields {
		f := &m.Fields[i]
		dst = appendString(dst, f.Name)
		dst = appendInt32(dst, int32(f.TableOID))
		dst = appendInt16(dst, int(f.Column))
		dst = appendInt32(dst, int32(f.TypeOID))
		dst = appendInt16(dst, int(f.TypeSize))
		dst = appendInt32(dst, f.TypeModifier)
		dst = appendInt16(dst, int(f.Format))
	}
	return finish(dst, at)
}

// Decode reads a message body.
func (m *RowDescription) Decode(body []byte) error {
	c := cursor{b: body}
	n := c.int16()
	if n*minField > len(c.b) {
		return fmt.Errorf("%w: RowDescription names %d fields in %d bytes", ErrMalformed, n, len(c.b))
	}
	m.Fields = make([]Field, n)
	for i := range m.Fields {
		m.Fields[i] = Field{
			Name: c.string(), TableOID: uint32(c.int32()), Column: int16(c.int16()),
			TypeOID: uint32(c.int32()), TypeSize: int16(c.int16()), TypeModifier: c.int32(), Format: int16(c.int16()),
		}
	}
	return c.done("RowDescription")
}
