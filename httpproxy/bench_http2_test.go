package httpproxy_test

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
	"net"
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

// serveFixedH2 answers every request of HTTP/2 with the same response, without allocating.
func serveFixedH2(t testing.TB, status string, body []byte) string {
	return serveRaw(t, func(c net.Conn) {
		br := bufio.NewReaderSize(c, 64<<10)
		if _, err := br.Discard(len(http2.ClientPreface)); err != nil {
			return
		}
		var frames bytes.Buffer
		f := http2.NewFramer(&frames, nil)
		_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: h2Fields(":status", status, "content-type", "text/plain"), EndHeaders: true})
		_ = f.WriteData(1, true, body)
		answer, data := frames.Bytes(), frames.Len()-len(body)-9
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
				binary.BigEndian.PutUint32(answer[5:], id)
				binary.BigEndian.PutUint32(answer[data+5:], id)
				if _, err := c.Write(answer); err != nil {
					return
				}
			}
		}
	})
}

// startH2Exchange returns a function that makes one request of HTTP/2 to a server of HTTP/2 and reads the answer, without allocating.
func startH2Exchange(t testing.TB, logs *httpproxy.AccessLog) (once func()) {
	t.Helper()
	u := newUpstreamWith(t, httpproxy.UpstreamOptions{Protocol: httpproxy.ProtocolH2C}, serveFixedH2(t, "200", bytes.Repeat([]byte("x"), 128)))
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
	_ = f.WriteHeaders(http2.HeadersFrameParam{
		StreamID: 1, EndStream: true, EndHeaders: true,
		BlockFragment: h2Fields(":method", "GET", ":scheme", "http", ":authority", "app.example", ":path", "/a/b?c", "user-agent", "bench", "accept", "*/*"),
	})
	br := bufio.NewReaderSize(c, 64<<10)
	var head [9]byte
	content := make([]byte, 1<<14)
	asked := uint32(1)
	return func() {
		binary.BigEndian.PutUint32(request.Bytes()[5:], asked)
		if _, err := c.Write(request.Bytes()); err != nil {
			t.Fatal(err)
		}
		for {
			kind, flags, id, err := nextFrame(br, &head, content)
			if err != nil || kind == http2.FrameGoAway || kind == http2.FrameRSTStream {
				t.Fatalf("%v: %v", kind, err)
			}
			if kind == http2.FrameData && id == asked && flags.Has(http2.FlagDataEndStream) {
				break
			}
		}
		asked += 2
	}
}

// BenchmarkHTTP2 is BenchmarkProxy for a client and a server of HTTP/2.
func BenchmarkHTTP2(b *testing.B) {
	once := startH2Exchange(b, nil)
	b.ReportAllocs()
	for b.Loop() {
		once()
	}
}
