package httppool

import (
	"bytes"
	"fmt"
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
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
	declared  int64       // what Content-Length says, -1 without; differs from length when there is no body
	keepAlive bool        // the response allows another exchange on this connection
}

// parseHead reads a response head as reader.block returns it; method is the request's, because the answer to a HEAD
// has no body. r is room for it, and holds nothing of it afterwards.
func parseHead(r *httpwire.Response, block []byte, method string) (head, error) {
	defer func() {
		clear(r.Fields)
		*r = httpwire.Response{Fields: r.Fields[:0]}
	}()
	block = bytes.Clone(block) // the one copy: every string of the head is a part of it
	if _, err := r.Parse(block, method == http.MethodHead); err != nil {
		return head{}, err
	}
	h := head{
		status: r.Status, reason: view(r.Reason), minor: r.Minor, header: headerOf(r.Fields),
		length: r.Length, declared: -1, keepAlive: r.Reusable,
	}
	if length := h.header["Content-Length"]; length != nil {
		h.declared, _ = strconv.ParseInt(length[0], 10, 64) // Parse has looked at it
	}
	delete(h.header, "Transfer-Encoding")
	h.announceTrailers()
	return h, nil
}

// view is b as a string; b must not change any more.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// headerOf makes names canonical. Values share the fields' memory, which must not change any more.
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

func (h *head) announceTrailers() {
	names, ok := h.header["Trailer"]
	if !ok {
		return
	}
	delete(h.header, "Trailer")
	tokens(names, func(name string) bool {
		if name = textproto.CanonicalMIMEHeaderKey(name); httpwire.ValidToken(name) && !httpwire.ForbiddenTrailer(name) {
			if h.trailer == nil {
				h.trailer = http.Header{}
			}
			h.trailer[name] = nil
		}
		return len(h.trailer) < httpwire.MaxFields
	})
}

// connectionAuth says whether a credential or challenge uses a scheme that authenticates the connection.
func connectionAuth(values []string) bool {
	for _, v := range values {
		scheme, _, _ := strings.Cut(v, " ")
		if scheme = strings.TrimRight(scheme, ","); strings.EqualFold(scheme, "NTLM") || strings.EqualFold(scheme, "Negotiate") {
			return true
		}
	}
	return false
}

// parseTrailers reads the lines after the last chunk into fields, leaving out what may not be there.
func parseTrailers(block []byte) (http.Header, error) {
	if bytes.Equal(block, crlf) {
		return nil, nil
	}
	fields, _, err := httpwire.ParseFields(nil, bytes.Clone(block))
	if err != nil {
		return nil, fmt.Errorf("trailers: %w", err)
	}
	fields = slices.DeleteFunc(fields, func(f httpwire.Field) bool { return httpwire.ForbiddenTrailer(f.Name) })
	return headerOf(fields), nil
}

var crlf = []byte("\r\n")
