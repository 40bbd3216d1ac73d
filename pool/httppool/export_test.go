package httppool

import (
	"io"
	"net/http"
)

// ReadMessage parses a whole response from r with the parser of exchanges. It returns the head's error or nil, and
// then the body, its trailers, the error it ended with (io.EOF if none) and the bytes left over.
func ReadMessage(r io.Reader, method string) (status int, header http.Header, length int64, rest func() ([]byte, http.Header, error, int), err error) {
	rd := getReader(r)
	block, err := rd.block(defaultMaxHeaderBytes)
	if err != nil {
		return 0, nil, 0, nil, err
	}
	var h head
	if err := h.parse(&rd.head, block, method, false, nil); err != nil {
		return 0, nil, 0, nil, err
	}
	rest = func() ([]byte, http.Header, error, int) {
		x := &exchange{rd: rd, head: h}
		if h.length == 0 {
			return nil, nil, io.EOF, rd.buffered()
		}
		x.body.start(x)
		var all []byte
		buf := make([]byte, 777)
		for {
			n, err := x.body.read(buf)
			all = append(all, buf[:n]...)
			if err != nil {
				return all, x.resp.Trailer, err, rd.buffered()
			}
		}
	}
	return h.status, h.header, h.length, rest, nil
}
