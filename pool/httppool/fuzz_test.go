package httppool_test

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"slices"
	"testing"

	"github.com/headpond/headpond/pool/httppool"
)

// FuzzResponse compares with net/http: net/http reads accepted responses alike, to the same byte.
func FuzzResponse(f *testing.F) {
	const h = "HTTP/1.1 200 OK\r\n"
	for _, s := range []string{
		h + "Content-Length: 2\r\n\r\nhi!",
		h + "Transfer-Encoding: chunked\r\n\r\n2;x=y\r\nhi\r\n0\r\nA: b\r\n\r\nmore",
		h + "Transfer-Encoding: chunked\r\nTrailer: A\r\n\r\n0000a \r\n0123456789\r\n0\r\nA: b\r\n\r\n",
		h + "A: b\r\nA: c\r\n\r\nuntil the end",
		"HTTP/1.0 304 Not Modified\r\nContent-Length: 2\r\n\r\nHTTP/1.1",
		"HTTP/1.1 204\r\n\r\n", h + "Content-Length: 2, 2\r\n\r\nhi", h + "Content-Length : 2\r\n\r\nhi",
	} {
		f.Add([]byte(s), false)
		f.Add([]byte(s), true)
	}
	f.Fuzz(func(t *testing.T, in []byte, isHead bool) {
		method := http.MethodGet
		if isHead {
			method = http.MethodHead
		}
		ours := bytes.NewReader(in)
		status, header, length, rest, err := httppool.ReadMessage(ours, method)
		if err != nil || status < 200 {
			return
		}
		body, trailer, bodyErr, left := rest()
		src := bytes.NewReader(in)
		br := bufio.NewReader(src)
		resp, err := http.ReadResponse(br, &http.Request{Method: method})
		if err != nil {
			t.Fatalf("net/http refuses an accepted response: %v", err)
		}
		theirs, theirErr := io.ReadAll(resp.Body)
		if resp.StatusCode != status || (length >= 0) != (resp.ContentLength >= 0 || isHead || status == 304) {
			t.Fatalf("status %d, length %d; net/http says %d, %d", status, length, resp.StatusCode, resp.ContentLength)
		}
		for name, values := range header {
			if got := resp.Header[name]; name != "Pragma" && name != "Cache-Control" && !slices.Equal(got, values) {
				t.Fatalf("%s is %q, net/http says %q", name, values, got)
			}
		}
		if bodyErr != io.EOF {
			return
		}
		if theirErr != nil || !bytes.Equal(body, theirs) {
			t.Fatalf("body %q; net/http says %q, %v", body, theirs, theirErr)
		}
		if left, theirLeft := left+ours.Len(), br.Buffered()+src.Len(); left != theirLeft {
			t.Fatalf("%d bytes are left, net/http leaves %d", left, theirLeft)
		}
		for name, values := range trailer {
			if got, ok := resp.Trailer[name]; ok && !slices.Equal(got, values) {
				t.Fatalf("trailer %s is %q, net/http says %q", name, values, got)
			}
		}
	})
}
