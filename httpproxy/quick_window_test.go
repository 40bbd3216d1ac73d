package httpproxy_test

import (
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/headpond/headpond/httpproxy"
)

// A server may answer a call whose body it has given no room for. The answer does not wait for the body.
func TestCallsAnsweredWithoutWindow(t *testing.T) {
	backend := serveFrames(t, func(s *frames) {
		for {
			f, ok := s.await(http2.FrameHeaders).(*http2.MetaHeadersFrame)
			if !ok {
				return
			}
			s.fields(f.StreamID, true, ":status", "200", "content-type", "application/grpc", "grpc-status", "7")
		}
	}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	u := newUpstreamWith(t, httpproxy.UpstreamOptions{Protocol: httpproxy.ProtocolH2C}, backend)
	cfg := routeTo(u)
	cfg.Routes[0].IdleTimeout = 20 * time.Second
	h := dialH2(t, startProxy(t, cfg).addr)
	for id, more := uint32(1), []string(nil); id < 9; id += 2 {
		if id > 4 {
			more = []string{"content-length", "5"}
		}
		h.write(h.request(id, append(append([]string(nil), callHead...), more...), "hello"))
		if got := h.reply(id); !strings.Contains(got, "grpc-status=7") {
			t.Errorf("call %d with %q got %s", id, more, got)
		}
	}
}
