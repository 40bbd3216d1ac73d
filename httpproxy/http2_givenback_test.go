package httpproxy_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"testing"

	"golang.org/x/net/http2"
)

// TestServerHTTP2GivesALongBodyBack: a server takes as much of a body as its window allows, without processing the request, and sends GOAWAY.
// All of the body reaches it on the next connection, however long it is.
func TestServerHTTP2GivesALongBodyBack(t *testing.T) {
	const window = 64<<10 - 1
	serve := func(s *frames) {
		f, ok := s.await(http2.FrameHeaders).(*http2.MetaHeadersFrame)
		if !ok {
			return
		}
		if s.number > 1 {
			_ = s.WriteWindowUpdate(0, 1<<20)
			_ = s.WriteWindowUpdate(f.StreamID, 1<<20)
		}
		sum, n := sha256.New(), 0
		for {
			d, ok := s.await(http2.FrameData).(*http2.DataFrame)
			if !ok {
				return
			}
			sum.Write(d.Data())
			n += len(d.Data())
			switch {
			case s.number == 1 && n == window:
				_ = s.WriteGoAway(0, http2.ErrCodeNo, nil)
				s.drain()
				return
			case d.StreamEnded():
				s.answer(f.StreamID, fmt.Sprintf("%x", sum.Sum(nil)))
				s.drain()
				return
			}
		}
	}
	body := make([]byte, 300<<10)
	for i := range body {
		body[i] = byte(i * 7 / 3)
	}
	want := fmt.Sprintf("200 %x", sha256.Sum256(body))
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		t.Run(proto, func(t *testing.T) {
			p := h2cTo(t, serveFrames(t, serve))
			resp, err := clientFor(t, proto).Post(p.url, "", bytes.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			var got bytes.Buffer
			_, _ = got.ReadFrom(resp.Body)
			_ = resp.Body.Close()
			if answer := fmt.Sprint(resp.StatusCode, " ", got.String()); answer != want {
				t.Errorf("%s", answer)
			}
		})
	}
}
