package httppool

import (
	"bytes"
	"net/http"
	"net/textproto"
	"strconv"
	"unsafe"

	"github.com/headpond/headpond/httpwire"
)

// head is a parsed response head.
type head struct {
	status    int
	reason    string // "200 OK"
	minor     int    // of the HTTP/1 version
	header    http.Header
	trailer   http.Header // announced names, without values
	length    int64       // of the body that follows: >= 0, httpwire.Unframed or httpwire.Chunked
	declared  int64       // the value of Content-Length, -1 = none; differs from length when there is no body
	keepAlive bool        // the response allows another exchange on this connection
}

// parse reads a response head as returned by reader.block. method is the request's, because the answer to HEAD has no
// body. r provides memory, and holds no references afterwards. The fields of a final response are added to p unless it is
// nil.
func (h *head) parse(r *httpwire.Response, block []byte, method string, strict bool, p *passage) error {
	defer func() {
		clear(r.Fields)
		*r = httpwire.Response{Fields: r.Fields[:0]}
	}()
	block = bytes.Clone(block) // the only copy: every string of the head is a part of it
	parse := (*httpwire.Response).ParseLenient
	if strict {
		parse = (*httpwire.Response).Parse
	}
	if _, err := parse(r, block, method == http.MethodHead); err != nil {
		return err
	}
	*h = head{status: r.Status, reason: view(r.Reason), minor: r.Minor, length: r.Length, declared: -1, keepAlive: r.Reusable}
	for i := range r.Fields {
		switch f := &r.Fields[i]; f.Known {
		case httpwire.ContentLength:
			h.declared, _ = strconv.ParseInt(view(f.Value), 10, 64) // Parse has checked it
		case httpwire.Trailer:
			h.announceTrailers(view(f.Value))
		}
	}
	if p != nil && h.status >= 200 {
		p.takeFields(r)
		return nil
	}
	h.header = headerOf(r.Fields)
	delete(h.header, "Transfer-Encoding")
	delete(h.header, "Trailer")
	return nil
}

// view returns b as a string; b must not change afterwards.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// bytesOf returns s as bytes, which must not be changed.
func bytesOf(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }

// headerOf makes a header with canonical names. Values share the fields' memory, which must not change afterwards.
func headerOf(fields []httpwire.Field) http.Header {
	header := make(http.Header, len(fields))
	values := make([]string, len(fields))
	for i := range fields {
		name := textproto.CanonicalMIMEHeaderKey(view(fields[i].Name))
		values[i] = view(fields[i].Value)
		if old := header[name]; old != nil {
			header[name] = append(old, values[i])
			continue
		}
		header[name] = values[i : i+1 : i+1]
	}
	return header
}

// announceTrailers records the names that a Trailer field lists.
func (h *head) announceTrailers(list string) {
	tokens([]string{list}, func(name string) bool {
		if name = textproto.CanonicalMIMEHeaderKey(name); httpwire.ValidToken(name) && !httpwire.ForbiddenTrailer(name) {
			if h.trailer == nil {
				h.trailer = http.Header{}
			}
			h.trailer[name] = nil
		}
		return len(h.trailer) < httpwire.MaxFields
	})
}

var crlf = []byte("\r\n")
