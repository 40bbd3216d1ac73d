package httpproxy

import (
	"net/http"

	"github.com/headpond/headpond/httpwire"
)

// headWriter appends a head to dst, as text of HTTP/1.1 or as fields of HTTP/2 in HPACK, or adds it to the fields of a Carrier's response.
// The HPACK form refers to no other head (RFC 7541, section 6.2.2).
type headWriter struct {
	dst   []byte
	coded bool        // write no text
	into  http.Header // add to these fields instead of HPACK; nil = write HPACK
	name  string      // of the field being written, for into
	value int         // index of the value being written, for into, or of its length, in HPACK
}

// begin begins a field, whose value the caller appends to dst.
func (w *headWriter) begin(name string) {
	if !w.coded {
		w.dst = append(append(w.dst, name...), ": "...)
		return
	}
	if w.into != nil {
		w.name, w.value = name, len(w.dst)
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
	if w.into != nil {
		w.into.Add(w.name, string(w.dst[w.value:]))
		w.dst = w.dst[:w.value]
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

// code appends the status of a head in HPACK. A Carrier's response gets it elsewhere.
func (w *headWriter) code(status int) {
	if w.into == nil {
		w.dst = appendStatus(w.dst, status)
	}
}

// field appends a received field.
func (w *headWriter) field(f *httpwire.Field) {
	switch {
	case !w.coded:
		w.dst = appendField(w.dst, f)
	case w.into != nil && f.Known == httpwire.Trailer: // the Carrier would take the named fields out of the head
	case w.into != nil:
		w.into.Add(string(f.Name), string(f.Value))
	default:
		w.dst = appendCoded(w.dst, f)
	}
}

// line appends a field of the proxy.
func (w *headWriter) line(name, value string) {
	w.begin(name)
	w.dst = append(w.dst, value...)
	w.end()
}

// connection appends lines about the connection, which only HTTP/1.1 has.
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
