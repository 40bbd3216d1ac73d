package pgwire

// FunctionCallResponse is the result of a FunctionCall.
type FunctionCallResponse struct {
	Result []byte // nil = NULL
}

// Append adds the encoded message to dst.
func (m *FunctionCallResponse) Append(dst []byte) []byte {
	dst, at := begin(dst, TypeFunctionCallResponse)
	return finish(appendValue(dst, m.Result), at)
}

// Decode reads a message body; Result aliases it.
func (m *FunctionCallResponse) Decode(body []byte) error {
	c := cursor{b: body}
	m.Result = c.value()
	return c.done("FunctionCallResponse")
}
