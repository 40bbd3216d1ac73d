package fiber

// tlsRecords tracks the boundaries of TLS records in a stream, because crypto/tls reads ahead and does not show them.
type tlsRecords struct {
	head int // bytes seen of a header that is not complete
	high int // the first byte of the length in that header
	left int // bytes of the current record still to come
}

// pass takes the next bytes of the stream.
func (r *tlsRecords) pass(p []byte) {
	for len(p) > 0 {
		if r.left > 0 {
			n := min(r.left, len(p))
			r.left -= n
			p = p[n:]
			continue
		}
		switch r.head++; r.head {
		case recordHeader - 1:
			r.high = int(p[0])
		case recordHeader:
			r.head, r.left = 0, r.high<<8+int(p[0])
		}
		p = p[1:]
	}
}

// isComplete reports whether no record has arrived only in part.
func (r *tlsRecords) isComplete() bool { return r.head == 0 && r.left == 0 }
