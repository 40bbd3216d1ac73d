package httpproxy

import (
	"golang.org/x/net/http2/hpack"

	"github.com/headpond/headpond/httpwire"
)

// HTTP1Head makes the head of HTTP/1.1 that stands for these fields of HTTP/2; false = they are refused.
func HTTP1Head(limit int, ends bool, fields ...hpack.HeaderField) ([]byte, bool) {
	b := &h2Head{limit: limit}
	b.reset(false)
	for _, f := range fields {
		b.field(f)
	}
	if b.bad || b.large {
		return nil, false
	}
	return b.appendHTTP1(nil, ends)
}

// CodedField codes a field as responses of HTTP/2 have it.
func CodedField(status int, name, value string) []byte {
	return appendCoded(appendStatus([]byte{emptyTable}, status), &httpwire.Field{Name: []byte(name), Value: []byte(value)})
}
