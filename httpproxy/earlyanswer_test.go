package httpproxy_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"

	"golang.org/x/net/http2"
)

// TestServerThatLeavesABody: a server answers and leaves a body whose end it gives no room. A client whose whole body was read keeps its
// connection, also with a request right behind the body; in chunks, whose end was not read yet, it is told that the connection ends.
func TestServerThatLeavesABody(t *testing.T) {
	p := h2cTo(t, serveFrames(t, func(s *frames) {
		for left := ""; ; {
			f := s.await(http2.FrameHeaders, http2.FrameData)
			if f == nil {
				return
			}
			if f, ok := f.(*http2.MetaHeadersFrame); ok && f.StreamEnded() {
				s.fields(f.StreamID, true, ":status", "204", "left", left)
				continue
			}
			if f, ok := f.(*http2.DataFrame); ok {
				left = string(f.Data())
				s.fields(f.StreamID, true, ":status", "204")
			}
		}
	}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 10}))
	const inChunks = "Transfer-Encoding: chunked\r\n\r\n14\r\n01234567890123456789\r\n0\r\n\r\n"
	for _, body := range []string{"Content-Length: 20\r\n\r\n01234567890123456789", inChunks} {
		for _, behind := range []bool{false, true} {
			t.Run(fmt.Sprintf("%.8s, the next request right behind it: %v", body, behind), func(t *testing.T) {
				c, err := net.Dial("tcp", p.addr)
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				next := "GET /next HTTP/1.1\r\nHost: x\r\n\r\n"
				request := "POST / HTTP/1.1\r\nHost: x\r\n" + body
				if behind {
					request += next
				}
				_, _ = io.WriteString(c, request)
				br := bufio.NewReader(c)
				for i := range 2 {
					resp, err := http.ReadResponse(br, nil)
					if err != nil {
						t.Fatalf("answer %d: %v", i, err)
					}
					if left := resp.Header.Get("Left"); resp.StatusCode != http.StatusNoContent || resp.Close != (body == inChunks) || i == 1 && left != "0123456789" {
						t.Errorf("answer %d: %s, close %v, the server had got %q of the last body", i, resp.Status, resp.Close, left)
					}
					if resp.Close {
						break
					}
					if i == 0 && !behind {
						_, _ = io.WriteString(c, next)
					}
				}
			})
		}
	}
}
