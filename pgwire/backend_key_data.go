package pgwire

import "fmt"

// Bounds of a cancel key: four bytes in protocol 3.0, up to 256 in 3.2.
const (
	minCancelKey = 4
	maxCancelKey = 256
)

// BackendKeyData carries the values for the client's CancelRequest.
type BackendKeyData struct {
	ProcessID uint32
	Key       []byte // 4 bytes in protocol 3.0, 4 to 256 in 3.2
}

// Append adds the encoded message to dst.
func (m *BackendKeyData) Append(dst []byte) []byte {
	dst, at := begin(dst, TypeBackendKeyData)
	dst = appendInt32(dst, int32(m.ProcessID))
	return finish(append(dst, m.Key...), at)
}

// Decode reads a message body; Key aliases it.
func (m *BackendKeyData) Decode(body []byte) error {
	c := cursor{b: body}
	m.ProcessID = uint32(c.int32())
	m.Key = c.rest()
	if n := len(m.Key); !c.bad && (n < minCancelKey || n > maxCancelKey) {
		return fmt.Errorf("%w: cancel key of %d bytes in BackendKeyData, want %d to %d", ErrMalformed, n, minCancelKey, maxCancelKey)
	}
	return c.done("BackendKeyData")
}
