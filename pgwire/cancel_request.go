package pgwire

import "fmt"

// CancelRequest, on a separate connection, asks the server to cancel another connection's query.
type CancelRequest struct {
	ProcessID uint32
	Key       []byte // as in BackendKeyData
}

// Append adds the encoded packet to dst.
func (m *CancelRequest) Append(dst []byte) []byte {
	dst, at := beginStartup(dst, codeCancel)
	dst = appendInt32(dst, int32(m.ProcessID))
	return finish(append(dst, m.Key...), at)
}

// Decode reads a packet after its length word; Key is a copy.
func (m *CancelRequest) Decode(packet []byte) error {
	c := cursor{b: packet}
	if code := uint32(c.int32()); !c.bad && code != codeCancel {
		return fmt.Errorf("%w: code %d is not CancelRequest", ErrMalformed, code)
	}
	m.ProcessID = uint32(c.int32())
	m.Key = append([]byte(nil), c.rest()...)
	if n := len(m.Key); !c.bad && (n < minCancelKey || n > maxCancelKey) {
		return fmt.Errorf("%w: cancel key of %d bytes in CancelRequest, want %d to %d", ErrMalformed, n, minCancelKey, maxCancelKey)
	}
	return c.done("CancelRequest")
}
