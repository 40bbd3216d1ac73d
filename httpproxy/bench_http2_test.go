package httpproxy_test

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/headpond/headpond/httpproxy"
)

// h2Fields codes fields without the table that a connection remembers, so that the block can be sent again.
func h2Fields(fields ...string) []byte {
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	e.SetMaxDynamicTableSize(0)
	for i := 0; i < len(fields); i += 2 {
		_ = e.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	return b.Bytes()
}

// nextFrame reads a frame into content, without allocating.
func nextFrame(r *bufio.Reader, head *[9]byte, content []byte) (kind http2.FrameType, flags http2.Flags, id uint32, err error) {
	if _, err = io.ReadFull(r, head[:]); err != nil {
		return 0, 0, 0, err
	}
	n := int(head[0])<<16 | int(head[1])<<8 | int(head[2])
	_, err = io.ReadFull(r, content[:n])
	return http2.FrameType(head[3]), http2.Flags(head[4]), binary.BigEndian.Uint32(head[5:]), err
}

// serveFixedH2 answers every request of HTTP/2 with the same response, without allocating. A response with trailers has that of a call.
func serveFixedH2(t testing.TB, body []byte, trailers bool) string {
	return serveRaw(t, func(c net.Conn) {
		br := bufio.NewReaderSize(c, 64<<10)
		if _, err := br.Discard(len(http2.ClientPreface)); err != nil {
			return
		}
		var frames bytes.Buffer
		f := http2.NewFramer(&frames, nil)
		_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: h2Fields(":status", "200", "content-type", "application/grpc"), EndHeaders: true})
		at := []int{0, frames.Len()} // where the frames begin
		if _ = f.WriteData(1, !trailers, body); trailers {
			at = append(at, frames.Len())
			_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: h2Fields("grpc-status", "0", "grpc-message", ""), EndHeaders: true, EndStream: true})
		}
		answer := frames.Bytes()
		settings := http2.NewFramer(c, nil)
		_ = settings.WriteSettings()
		_ = settings.WriteSettingsAck()
		_ = settings.WriteWindowUpdate(0, 1<<30)
		var head [9]byte
		content := make([]byte, 1<<14)
		for {
			kind, flags, id, err := nextFrame(br, &head, content)
			if err != nil {
				return
			}
			if (kind == http2.FrameHeaders || kind == http2.FrameData) && flags.Has(http2.FlagDataEndStream) {
				for _, begins := range at {
					binary.BigEndian.PutUint32(answer[begins+5:], id)
				}
				if _, err := c.Write(answer); err != nil {
					return
				}
			}
		}
	})
}

// startH2Exchange returns a function that makes n concurrent requests of HTTP/2 to a server of HTTP/2 and reads the
// answers, without allocating. Calls have a body, and their answers have trailers.
func startH2Exchange(t testing.TB, logs *httpproxy.AccessLog, streams int, calls bool) (once func()) {
	t.Helper()
	body := bytes.Repeat([]byte("x"), 128)
	u := newUpstreamWith(t, httpproxy.UpstreamOptions{Protocol: httpproxy.ProtocolH2C}, serveFixedH2(t, body, calls))
	p := startProxy(t, httpproxy.Config{AccessLog: logs, Tracer: &traces{t: t, none: true}, Routes: []httpproxy.Route{{Upstream: u}}})
	c, err := net.Dial("tcp", p.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	var request bytes.Buffer
	f := http2.NewFramer(&request, nil)
	_, _ = io.WriteString(c, http2.ClientPreface)
	_ = f.WriteSettings()
	_ = f.WriteSettingsAck()
	_ = f.WriteWindowUpdate(0, 1<<30)
	_, _ = c.Write(request.Bytes())
	request.Reset()
	method := http.MethodGet
	if calls {
		method = http.MethodPost
	}
	var at []int // where the frames begin
	for range streams {
		at = append(at, request.Len())
		_ = f.WriteHeaders(http2.HeadersFrameParam{
			StreamID: 1, EndStream: !calls, EndHeaders: true,
			BlockFragment: h2Fields(":method", method, ":scheme", "http", ":authority", "app.example", ":path", "/a/b?c", "user-agent", "bench", "accept", "*/*"),
		})
		if calls {
			at = append(at, request.Len())
			_ = f.WriteData(1, true, body)
		}
	}
	br := bufio.NewReaderSize(c, 64<<10)
	var head [9]byte
	content := make([]byte, 1<<14)
	asked := uint32(1)
	return func() {
		for i, begins := range at {
			binary.BigEndian.PutUint32(request.Bytes()[begins+5:], asked+uint32(2*(i*streams/len(at))))
		}
		if _, err := c.Write(request.Bytes()); err != nil {
			t.Fatal(err)
		}
		for left := streams; left > 0; {
			kind, flags, _, err := nextFrame(br, &head, content)
			if err != nil || kind == http2.FrameGoAway || kind == http2.FrameRSTStream {
				t.Fatalf("%v: %v", kind, err)
			}
			if (kind == http2.FrameData || kind == http2.FrameHeaders) && flags.Has(http2.FlagDataEndStream) {
				left--
			}
		}
		asked += uint32(2 * streams)
	}
}

// BenchmarkHTTP2 is BenchmarkProxy for a client and a server of HTTP/2.
func BenchmarkHTTP2(b *testing.B) {
	for _, streams := range []int{1, 64} {
		for name, calls := range map[string]bool{"GET": false, "call": true} {
			b.Run(fmt.Sprintf("%s/%d", name, streams), func(b *testing.B) {
				once := startH2Exchange(b, nil, streams, calls)
				b.ReportAllocs()
				for b.Loop() {
					once()
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*streams), "ns/request")
			})
		}
	}
}
