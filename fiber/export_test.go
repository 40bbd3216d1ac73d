package fiber

import "time"

// ClosersGrace sets how long Engine.Close waits for connections of other kinds.
func ClosersGrace(d time.Duration) (before time.Duration) {
	before, closersGrace = closersGrace, d
	return before
}

// TLSRecords follows the boundaries of TLS records.
type TLSRecords struct{ tlsRecords }

// Pass takes the next bytes of the stream.
func (r *TLSRecords) Pass(p []byte) { r.pass(p) }

// Whole reports whether no record has arrived in part.
func (r *TLSRecords) Whole() bool { return r.isComplete() }
