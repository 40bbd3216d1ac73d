package httpproxy_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/headpond/headpond/httpproxy"
)

// TestBodiesWithoutLength: content, end and trailers pass in both directions, between all versions, whether the end comes with the last
// content or later.
func TestBodiesWithoutLength(t *testing.T) {
	for _, protocol := range []httpproxy.Protocol{httpproxy.ProtocolH1, httpproxy.ProtocolH2C} {
		arrived := make(chan struct{}, 1)
		u := newUpstreamWith(t, httpproxy.UpstreamOptions{Protocol: protocol}, serveEither(t, func(w http.ResponseWriter, r *http.Request) {
			var size int64
			_, _ = fmt.Sscan(r.Header.Get("Size"), &size)
			body, _ := io.ReadAll(io.LimitReader(r.Body, size))
			arrived <- struct{}{}
			more, err := io.ReadAll(r.Body)
			w.Header().Set("Trailer", "Seen, Missing")
			later := r.Header.Get("Later") != ""
			if later {
				_ = http.NewResponseController(w).Flush()
			}
			_, _ = w.Write(body)
			_ = http.NewResponseController(w).Flush()
			if later {
				<-arrived // the client has the content
			}
			w.Header().Set("Seen", fmt.Sprintf("%d+%d %v %s %d", len(body), len(more), err, r.Trailer.Get("Check"), r.ContentLength))
		}))
		p := startProxy(t, routeTo(u))
		for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
			for _, size := range []int{0, 1, 4000, 8 << 10, 16<<10 - 1, 16 << 10, 40_000, 300_000} {
				for _, later := range []bool{false, true} {
					for _, check := range []string{"", "checked"} {
						name := fmt.Sprintf("%s to %v, %d bytes, end later: %v, trailer %q", proto, protocol, size, later, check)
						content := bytes.Repeat([]byte("0123456789abcdef"), size/16+1)[:size]
						body, client := io.Pipe()
						r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, p.url, body)
						r.Header.Set("Size", fmt.Sprint(size))
						if check != "" {
							r.Trailer = http.Header{"Check": {check}}
						}
						if later {
							r.Header.Set("Later", "yes")
						}
						go func() {
							_, _ = client.Write(content)
							if later {
								<-arrived
							}
							_ = client.Close()
						}()
						resp, err := clientFor(t, proto).Do(r)
						if err != nil {
							t.Fatalf("%s: %v", name, err)
						}
						got := make([]byte, size)
						_, err = io.ReadFull(resp.Body, got)
						if later {
							arrived <- struct{}{}
						} else {
							<-arrived
						}
						rest, endErr := io.ReadAll(resp.Body)
						_ = resp.Body.Close()
						if err != nil && size > 0 || !bytes.Equal(got, content) || len(rest) > 0 || endErr != nil {
							t.Errorf("%s: the answer's body: %d bytes (%v), %d more (%v)", name, len(got), err, len(rest), endErr)
						}
						if want := fmt.Sprintf("%d+0 <nil> %s -1", size, check); resp.Trailer.Get("Seen") != want || resp.ContentLength != -1 {
							t.Errorf("%s: the server has seen %q, want %q; a length of %d", name, resp.Trailer.Get("Seen"), want, resp.ContentLength)
						}
					}
				}
			}
		}
	}
}
