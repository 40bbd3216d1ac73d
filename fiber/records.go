package fiber

// tlsRecords follows the boundaries of TLS records in a stream, which crypto/tls reads ahead and does not show.
type tlsRecords struct {
	head int // bytes of a header seen, if it is not whole yet
	high int // the first byte of the length in it
	left int // bytes of the present record to come
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

// whole reports whether no record has arrived in part.
func (r *tlsRecords) whole() bool { return r.head == 0 && r.left == 0 }
