package pgwire

import "fmt"

// TxStatus is a session's transaction status, as ReadyForQuery reports it.
type TxStatus byte

// The three transaction statuses.
const (
	TxIdle   TxStatus = 'I' // no transaction open
	TxActive TxStatus = 'T' // in a transaction block
	TxFailed TxStatus = 'E' // in a failed transaction block: only its end is accepted
)

// Valid reports whether s is one of the three.
func (s TxStatus) Valid() bool { return s == TxIdle || s == TxActive || s == TxFailed }

// ReadyForQuery reports that the server has answered everything up to a Query, FunctionCall or Sync.
type ReadyForQuery struct {
	Status TxStatus
}

// Append adds the encoded message to dst.
func (m *ReadyForQuery) Append(dst []byte) []byte {
	return append(dst, TypeReadyForQuery, 0, 0, 0, 5, byte(m.Status))
}

// Decode reads a message body.
func (m *ReadyForQuery) Decode(body []byte) error {
	c := cursor{b: body}
	m.Status = TxStatus(c.byte())
	if !c.bad && !m.Status.Valid() {
		return fmt.Errorf("%w: transaction status %q in ReadyForQuery", ErrMalformed, byte(m.Status))
	}
	return c.done("ReadyForQuery")
}
