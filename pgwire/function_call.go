package pgwire

// FunctionCall calls a function by OID, the old fast-path interface.
type FunctionCall struct {
	Function     uint32
	ArgFormats   []int16
	Args         [][]byte // nil element = NULL
	ResultFormat int16
}

// Append adds the encoded message to dst.
func (m *FunctionCall) Append(dst []byte) []byte {
	dst, at := begin(dst, TypeFunctionCall)
	dst = appendInt32(dst, int32(m.Function))
	dst = appendFormats(dst, m.ArgFormats)
	dst = appendInt16(dst, len(m.Args))
	for _, a := range m.Args {
		dst = appendValue(dst, a)
	}
	return finish(appendInt16(dst, int(m.ResultFormat)), at)
}

// Decode reads a message body; Args alias it.
func (m *FunctionCall) Decode(body []byte) error {
	c := cursor{b: body}
	m.Function = uint32(c.int32())
	m.ArgFormats = c.formats()
	m.Args = c.values()
	m.ResultFormat = int16(c.int16())
	return c.done("FunctionCall")
}
