package httpproxy_test

import (
	"bufio"
	"bytes"
	"net/http"
	"strings"
	"testing"

	"golang.org/x/net/http2/hpack"

	"github.com/headpond/headpond/httpproxy"
)

// FuzzHTTP1Head: net/http reads the head made of the fields as one request, with these fields and no others.
func FuzzHTTP1Head(f *testing.F) {
	f.Add("GET", "/a?b", "a.example:80", "accept", "*/*", "5", false)
	f.Add("POST", "/", "a", "cookie", "a=b", "", true)
	f.Add("GET / HTTP/1.1\r\nx: y\r\n\r\nGET", "/", "a", "b\r\nc", "d\r\n\r\n", "+5", false)
	f.Add("OPTIONS", "*", "a", "host", "a", "0", true)
	f.Fuzz(func(t *testing.T, method, path, authority, name, value, length string, ends bool) {
		fields := []hpack.HeaderField{
			{Name: ":method", Value: method}, {Name: ":scheme", Value: "http"}, {Name: ":path", Value: path},
			{Name: ":authority", Value: authority}, {Name: name, Value: value},
		}
		if length != "" {
			fields = append(fields, hpack.HeaderField{Name: "content-length", Value: length})
		}
		head, ok := httpproxy.HTTP1Head(1<<20, ends, fields...)
		if !ok {
			return
		}
		br := bufio.NewReader(bytes.NewReader(head))
		r, err := http.ReadRequest(br)
		if err != nil {
			return // refused by the session, too, or by net/http
		}
		if rest := br.Buffered(); rest > 0 {
			t.Errorf("%q: %d bytes are left", head, rest)
		}
		if r.Method != method || r.RequestURI != path && method != "CONNECT" {
			t.Errorf("%q is %s %s", head, r.Method, r.RequestURI)
		}
		delete(r.Header, "Content-Length")
		delete(r.Header, http.CanonicalHeaderKey(name))
		if len(r.Header) > 0 {
			t.Errorf("%q has %q", head, r.Header)
		}
		if ends && r.ContentLength > 0 || !ends && length == "" && r.ContentLength >= 0 && name != "content-length" {
			t.Errorf("%q: a body of %d bytes", head, r.ContentLength)
		}
	})
}

// FuzzCodedField: hpack reads what responses are made of.
func FuzzCodedField(f *testing.F) {
	f.Add(200, "Content-Type", "text/plain")
	f.Add(431, "X-Long", strings.Repeat("x", 300))
	f.Add(100, "a", "")
	f.Add(200, "via", strings.Repeat("y", 20_000))
	f.Fuzz(func(t *testing.T, status int, name, value string) {
		status = 100 + (status%900+900)%900
		got, err := hpack.NewDecoder(4096, nil).DecodeFull(httpproxy.CodedField(status, name, value))
		if err != nil || len(got) != 2 {
			t.Fatalf("%d fields, %v", len(got), err)
		}
		if got[0].Name != ":status" || got[0].Value != string([]byte{byte('0' + status/100), byte('0' + status/10%10), byte('0' + status%10)}) {
			t.Errorf("%v", got[0])
		}
		lower := strings.Map(func(r rune) rune {
			if 'A' <= r && r <= 'Z' {
				return r + 'a' - 'A'
			}
			return r
		}, name)
		if strings.ToValidUTF8(name, "") == name && got[1].Name != lower || got[1].Value != value {
			t.Errorf("%q: %q is %v", name, value, got[1])
		}
		line, err := hpack.NewDecoder(4096, nil).DecodeFull(httpproxy.CodedLine(name, value))
		if err != nil || len(line) != 1 || line[0] != got[1] {
			t.Errorf("%q: %q is %v in a line, %v", name, value, line, err)
		}
	})
}
