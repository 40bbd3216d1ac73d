package httpproxy

import "github.com/headpond/headpond/httpwire"

// headWriter appends a head to dst, as text of HTTP/1.1 or as fields of HTTP/2 in HPACK. The HPACK form refers to no
// other head (RFC 7541, section 6.2.2).
type headWriter struct {
	dst   []byte
	coded bool // write HTTP/2
	value int  // index of the length of the value being written, in HPACK
}

// begin begins a field, whose value the caller appends to dst.
func (w *headWriter) begin(name string) {
	if !w.coded {
		w.dst = append(append(w.dst, name...), ": "...)
		return
	}
	w.dst = appendCodedName(w.dst, name)
	w.value = len(w.dst)
	w.dst = append(w.dst, 0)
}

// end ends the field.
func (w *headWriter) end() {
	if !w.coded {
		w.dst = append(w.dst, crlf...)
		return
	}
	n := len(w.dst) - w.value - 1
	if n < mostShort {
		w.dst[w.value] = byte(n)
		return
	}
	var buf [8]byte
	length := appendInteger(buf[:0], n)
	w.dst = append(w.dst, length[1:]...)
	copy(w.dst[w.value+len(length):], w.dst[w.value+1:w.value+1+n])
	copy(w.dst[w.value:], length)
}

// field appends a received field.
func (w *headWriter) field(f *httpwire.Field) {
	if w.coded {
		w.dst = appendCoded(w.dst, f)
	} else {
		w.dst = appendField(w.dst, f)
	}
}

// line appends a field of the proxy itself.
func (w *headWriter) line(name, value string) {
	w.begin(name)
	w.dst = append(w.dst, value...)
	w.end()
}

// connection appends lines about the connection, which HTTP/2 does not have.
func (w *headWriter) connection(lines string) {
	if !w.coded {
		w.dst = append(w.dst, lines...)
	}
}

// finish returns the head.
func (w *headWriter) finish() []byte {
	if !w.coded {
		w.dst = append(w.dst, crlf...)
	}
	return w.dst
}
