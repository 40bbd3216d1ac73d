package httpproxy_test

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/headpond/headpond/httpproxy"
)

// h2Client speaks HTTP/2 frame by frame.
type h2Client struct {
	*http2.Framer
	t     testing.TB
	c     net.Conn
	block bytes.Buffer
	coder *hpack.Encoder
}

// dialH2 connects with prior knowledge; the server's settings are read.
func dialH2(t testing.TB, addr string, settings ...http2.Setting) *h2Client {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	return speakH2(t, c, settings...)
}

// speakH2 begins an HTTP/2 connection.
func speakH2(t testing.TB, c net.Conn, settings ...http2.Setting) *h2Client {
	t.Helper()
	h := &h2Client{Framer: http2.NewFramer(c, c), t: t, c: c}
	h.AllowIllegalWrites = true
	h.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	h.coder = hpack.NewEncoder(&h.block)
	h.do(io.WriteString(c, http2.ClientPreface))
	h.do(0, h.WriteSettings(settings...))
	h.next(func(f http2.Frame) bool { s, ok := f.(*http2.SettingsFrame); return ok && s.IsAck() })
	return h
}

func (h *h2Client) do(_ int, err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

// next reads up to the frame that is wanted.
func (h *h2Client) next(want func(http2.Frame) bool) http2.Frame {
	h.t.Helper()
	for {
		f, err := h.ReadFrame()
		if err != nil {
			h.t.Fatalf("waiting for a frame: %v", err)
		}
		if want(f) {
			return f
		}
	}
}

// fields is a block of them: names and values in turn.
func (h *h2Client) fields(kv ...string) []byte {
	h.block.Reset()
	for i := 0; i < len(kv); i += 2 {
		_ = h.coder.WriteField(hpack.HeaderField{Name: kv[i], Value: kv[i+1]})
	}
	return bytes.Clone(h.block.Bytes())
}

// lastOut reads until GOAWAY, and returns the last stream it names.
func (h *h2Client) farewell() uint32 {
	h.t.Helper()
	goAway := func(f http2.Frame) bool { _, ok := f.(*http2.GoAwayFrame); return ok }
	if f := h.next(goAway).(*http2.GoAwayFrame); f.ErrCode != http2.ErrCodeNo || f.LastStreamID != 1<<31-1 {
		h.t.Errorf("the first GOAWAY is %v", f)
	}
	ping := h.next(func(f http2.Frame) bool { _, ok := f.(*http2.PingFrame); return ok }).(*http2.PingFrame)
	h.do(0, h.WritePing(true, ping.Data))
	f := h.next(goAway).(*http2.GoAwayFrame)
	if f.ErrCode != http2.ErrCodeNo {
		h.t.Errorf("GOAWAY with %v", f.ErrCode)
	}
	return f.LastStreamID
}

// ask sends a request's head.
func (h *h2Client) ask(id uint32, ends bool, kv ...string) {
	h.t.Helper()
	h.do(0, h.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: h.fields(kv...), EndStream: ends, EndHeaders: true}))
}

// outcome reads the outcome of a stream: "200 body", "reset CODE", or "goaway CODE" of the connection.
func (h *h2Client) outcome(id uint32) string {
	got := ""
	for {
		f, err := h.ReadFrame()
		if err != nil {
			return got + " " + err.Error()
		}
		switch f := f.(type) {
		case *http2.GoAwayFrame:
			return "goaway " + f.ErrCode.String()
		case *http2.RSTStreamFrame:
			if f.StreamID == id {
				return strings.TrimSpace(got + " reset " + f.ErrCode.String())
			}
		case *http2.MetaHeadersFrame:
			if f.StreamID == id {
				got += f.PseudoValue("status")
			}
			if f.StreamID == id && f.StreamEnded() {
				return got
			}
		case *http2.DataFrame:
			if f.StreamID == id {
				got += " " + string(f.Data())
			}
			if f.StreamID == id && f.StreamEnded() {
				return got
			}
		}
	}
}

var plainGet = []string{":method", "GET", ":scheme", "http", ":path", "/", ":authority", "a"}

var plainPost = []string{":method", "POST", ":scheme", "http", ":path", "/", ":authority", "a"}

var http2Requests = map[string]struct {
	head    []string
	body    []string // DATA
	trailer []string
	outcome string
	want    string // what the server sees
}{
	"get":                      {head: plainGet, outcome: "200 ok", want: "GET / "},
	"host instead":             {head: []string{":method", "GET", ":scheme", "http", ":path", "/", "host", "a"}, outcome: "200 ok", want: "GET / "},
	"body":                     {head: plainPost, body: []string{"h", "", "i"}, outcome: "200 ok", want: "POST / hi"},
	"body with length":         {head: append(plainPost, "content-length", "2"), body: []string{"hi"}, outcome: "200 ok", want: "POST / hi"},
	"body and trailers":        {head: plainPost, body: []string{"hi"}, trailer: []string{"a", "b"}, outcome: "200 ok", want: "POST / hi"},
	"cookies":                  {head: append(plainGet, "cookie", "a=1", "cookie", "b=2"), outcome: "200 ok", want: "GET / "},
	"options":                  {head: []string{":method", "OPTIONS", ":scheme", "http", ":path", "*", ":authority", "a"}, outcome: "400", want: "OPTIONS * "},
	"longer than its length":   {head: append(plainPost, "content-length", "2"), body: []string{"hi!"}, outcome: "reset PROTOCOL_ERROR"},
	"shorter than its length":  {head: append(plainPost, "content-length", "9"), body: []string{"hi"}, outcome: "reset PROTOCOL_ERROR"},
	"length, and no body":      {head: append(plainPost, "content-length", "9"), outcome: "reset PROTOCOL_ERROR"},
	"two lengths":              {head: append(plainPost, "content-length", "2", "content-length", "2"), body: []string{"hi"}, outcome: "reset PROTOCOL_ERROR"},
	"signed length":            {head: append(plainPost, "content-length", "+2"), body: []string{"hi"}, outcome: "reset PROTOCOL_ERROR"},
	"coding":                   {head: append(plainPost, "transfer-encoding", "chunked"), body: []string{"hi"}, outcome: "reset PROTOCOL_ERROR"},
	"connection":               {head: append(plainGet, "connection", "x"), outcome: "reset PROTOCOL_ERROR"},
	"upgrade":                  {head: append(plainGet, "upgrade", "h2c"), outcome: "reset PROTOCOL_ERROR"},
	"te":                       {head: append(plainGet, "te", "gzip"), outcome: "reset PROTOCOL_ERROR"},
	"line feed in a value":     {head: append(plainGet, "a", "b\r\nevil: 1"), outcome: "reset PROTOCOL_ERROR"},
	"NUL in a value":           {head: append(plainGet, "a", "b\x00"), outcome: "reset PROTOCOL_ERROR"},
	"blank before a value":     {head: append(plainGet, "a", " b"), outcome: "reset PROTOCOL_ERROR"},
	"colon in a name":          {head: append(plainGet, "a:b", "c"), outcome: "reset PROTOCOL_ERROR"},
	"capitals":                 {head: append(plainGet, "A", "b"), outcome: "reset PROTOCOL_ERROR"},
	"empty name":               {head: append(plainGet, "", "b"), outcome: "reset PROTOCOL_ERROR"},
	"space in the path":        {head: []string{":method", "GET", ":scheme", "http", ":path", "/ HTTP/1.1\r\nx:", ":authority", "a"}, outcome: "reset PROTOCOL_ERROR"},
	"space in the method":      {head: []string{":method", "GET /", ":scheme", "http", ":path", "/", ":authority", "a"}, outcome: "reset PROTOCOL_ERROR"},
	"path that is none":        {head: []string{":method", "GET", ":scheme", "http", ":path", "a", ":authority", "a"}, outcome: "reset PROTOCOL_ERROR"},
	"no path":                  {head: []string{":method", "GET", ":scheme", "http", ":authority", "a"}, outcome: "reset PROTOCOL_ERROR"},
	"two paths":                {head: append(plainGet, ":path", "/x"), outcome: "reset PROTOCOL_ERROR"},
	"pseudo after field":       {head: append([]string{"a", "b"}, plainGet...), outcome: "reset PROTOCOL_ERROR"},
	"unknown pseudo":           {head: append(plainGet, ":protocol", "websocket"), outcome: "reset PROTOCOL_ERROR"},
	"two hosts":                {head: append(plainGet, "host", "b"), outcome: "reset PROTOCOL_ERROR"},
	"pseudo in trailers":       {head: plainPost, body: []string{"hi"}, trailer: []string{":path", "/"}, outcome: "reset PROTOCOL_ERROR"},
	"length in trailers":       {head: plainPost, body: []string{"hi"}, trailer: []string{"content-length", "2"}, outcome: "reset PROTOCOL_ERROR"},
	"trailers before the end":  {head: append(plainPost, "content-length", "9"), body: []string{"hi"}, trailer: []string{"a", "b"}, outcome: "reset PROTOCOL_ERROR"},
	"no host":                  {head: []string{":method", "GET", ":scheme", "http", ":path", "/"}, outcome: "400"},
	"dot segments":             {head: []string{":method", "GET", ":scheme", "http", ":path", "/a/../b", ":authority", "a"}, outcome: "400"},
	"CONNECT":                  {head: []string{":method", "CONNECT", ":authority", "a:1"}, outcome: "405"},
	"CONNECT with a path":      {head: []string{":method", "CONNECT", ":scheme", "http", ":path", "/", ":authority", "a:1"}, outcome: "reset PROTOCOL_ERROR"},
	"a head that is too large": {head: append(plainGet, "a", strings.Repeat("a", 30000), "b", strings.Repeat("b", 40000)), outcome: "431"},
}

// TestHTTP2Requests: refused requests never reach the server; others reach it as exactly one request.
func TestHTTP2Requests(t *testing.T) {
	for name, tc := range http2Requests {
		t.Run(name, func(t *testing.T) {
			rec := &recorder{}
			p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Upstream: newUpstream(t, serveRaw(t, rec.serve))}}})
			h := dialH2(t, p.addr)
			block := h.fields(tc.head...)
			first := min(len(block), 16<<10)
			ends := tc.body == nil && tc.trailer == nil
			h.do(0, h.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block[:first], EndStream: ends, EndHeaders: first == len(block)}))
			for block = block[first:]; len(block) > 0; {
				n := min(len(block), 16<<10)
				h.do(0, h.WriteContinuation(1, n == len(block), block[:n]))
				block = block[n:]
			}
			for i, piece := range tc.body {
				h.do(0, h.WriteDataPadded(1, i == len(tc.body)-1 && tc.trailer == nil, []byte(piece), make([]byte, i)))
			}
			if tc.trailer != nil {
				h.ask(1, true, tc.trailer...)
			}
			got := h.outcome(1)
			if status, _, _ := strings.Cut(got, " "); status == "400" || status == "405" {
				got = status // with an explanation
			}
			if got != tc.outcome && !(name == "options") {
				t.Errorf("the client got %q, want %q", got, tc.outcome)
			}
			h.ask(3, true, plainGet...)
			if got := h.outcome(3); got != "200 ok" {
				t.Errorf("the next stream: %q", got)
			}
			seen := strings.Join(rec.seen(), "|")
			if want := strings.Trim(tc.want+"|GET / ", "|"); seen != want && name != "options" {
				t.Errorf("the server saw %q, want %q", seen, want)
			}
			if len(rec.garbage) > 0 {
				t.Errorf("the server saw %q", rec.garbage)
			}
		})
	}
}

// TestHTTP2Connections that break a rule end, with the reason.
func TestHTTP2Connections(t *testing.T) {
	frame := func(kind http2.FrameType, flags http2.Flags, id uint32, payload string) func(*h2Client) {
		return func(h *h2Client) { h.do(0, h.WriteRawFrame(kind, flags, id, []byte(payload))) }
	}
	for name, tc := range map[string]struct {
		send func(*h2Client)
		want string
	}{
		"even stream":          {func(h *h2Client) { h.ask(2, true, plainGet...) }, "PROTOCOL_ERROR"},
		"compression":          {frame(http2.FrameHeaders, http2.FlagHeadersEndHeaders, 1, "\xff\xff\xff\xff\xff\xff"), "COMPRESSION_ERROR"},
		"cut block":            {frame(http2.FrameHeaders, http2.FlagHeadersEndHeaders, 1, "\x00\x05ab"), "COMPRESSION_ERROR"},
		"continuation":         {frame(http2.FrameContinuation, 0, 1, ""), "PROTOCOL_ERROR"},
		"data of no stream":    {frame(http2.FrameData, 0, 1, "x"), "PROTOCOL_ERROR"},
		"data on stream 0":     {frame(http2.FrameData, 0, 0, "x"), "PROTOCOL_ERROR"},
		"long frame":           {frame(http2.FrameSettings, 0, 0, strings.Repeat("\x00\x09\x00\x00\x00\x00", 4000)), "FRAME_SIZE_ERROR"},
		"settings in part":     {frame(http2.FrameSettings, 0, 0, "\x00"), "FRAME_SIZE_ERROR"},
		"settings of a stream": {frame(http2.FrameSettings, 0, 1, ""), "PROTOCOL_ERROR"},
		"push":                 {frame(http2.FrameSettings, 0, 0, "\x00\x02\x00\x00\x00\x02"), "PROTOCOL_ERROR"},
		"window setting":       {frame(http2.FrameSettings, 0, 0, "\x00\x04\x80\x00\x00\x00"), "FLOW_CONTROL_ERROR"},
		"frame setting":        {frame(http2.FrameSettings, 0, 0, "\x00\x05\x00\x00\x00\x01"), "PROTOCOL_ERROR"},
		"short ping":           {frame(http2.FramePing, 0, 0, "x"), "FRAME_SIZE_ERROR"},
		"ping of a stream":     {frame(http2.FramePing, 0, 1, "12345678"), "PROTOCOL_ERROR"},
		"push promise":         {frame(http2.FramePushPromise, 0, 1, "\x00\x00\x00\x02"), "PROTOCOL_ERROR"},
		"reset of no stream":   {frame(http2.FrameRSTStream, 0, 7, "\x00\x00\x00\x08"), "PROTOCOL_ERROR"},
		"empty window update":  {frame(http2.FrameWindowUpdate, 0, 0, "\x00\x00\x00\x00"), "PROTOCOL_ERROR"},
		"window of no stream":  {frame(http2.FrameWindowUpdate, 0, 5, "\x00\x00\x00\x01"), "PROTOCOL_ERROR"},
		"window overflow":      {frame(http2.FrameWindowUpdate, 0, 0, "\x7f\xff\xff\xff"), "FLOW_CONTROL_ERROR"},
		"short goaway":         {frame(http2.FrameGoAway, 0, 0, "1234"), "FRAME_SIZE_ERROR"},
		"padding":              {frame(http2.FrameHeaders, http2.FlagHeadersPadded, 1, "\x05abc"), "PROTOCOL_ERROR"},
		"interrupted block": {func(h *h2Client) {
			frame(http2.FrameHeaders, 0, 1, "")(h)
			frame(http2.FramePing, 0, 0, "12345678")(h)
		}, "PROTOCOL_ERROR"},
		"endless block": {func(h *h2Client) {
			frame(http2.FrameHeaders, 0, 1, "")(h)
			for range 100 {
				if h.WriteRawFrame(http2.FrameContinuation, 0, 1, nil) != nil {
					return
				}
			}
		}, "ENHANCE_YOUR_CALM"},
		"large block": {func(h *h2Client) {
			frame(http2.FrameHeaders, 0, 1, "")(h)
			for range 20 {
				if h.WriteRawFrame(http2.FrameContinuation, 0, 1, make([]byte, 16<<10)) != nil {
					return
				}
			}
		}, "ENHANCE_YOUR_CALM"},
	} {
		t.Run(name, func(t *testing.T) {
			rec := &recorder{}
			p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Upstream: newUpstream(t, serveRaw(t, rec.serve))}}})
			h := dialH2(t, p.addr)
			tc.send(h)
			if got := h.outcome(1); got != "goaway "+tc.want {
				t.Errorf("got %q, want %s", got, tc.want)
			}
			if seen := rec.seen(); len(seen) > 0 {
				t.Errorf("the server saw %q", seen)
			}
			eventually(t, "it is counted", func() bool { return p.Stats().Errors["protocol_error"] == 1 })
		})
	}
}

// TestHTTP2SettingsOverflow: no initial window may make that of a stream too large, even for a moment (RFC 9113, section
// 6.9.2); an ended stream does not count.
func TestHTTP2SettingsOverflow(t *testing.T) {
	backend := serveHTTP(t, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	p := startProxy(t, routeTo(newUpstream(t, backend)))
	initial := func(size uint32) http2.Setting { return http2.Setting{ID: http2.SettingInitialWindowSize, Val: size} }
	for name, settings := range map[string][]http2.Setting{"at last": {initial(1 << 30)}, "for a moment": {initial(1 << 30), initial(1)}} {
		h := dialH2(t, p.addr)
		h.ask(1, false, plainPost...)
		h.do(0, h.WriteWindowUpdate(1, 1<<30))
		h.do(0, h.WriteRSTStream(1, http2.ErrCodeCancel))
		h.do(0, h.WriteSettings(settings...))
		h.do(0, h.WriteSettings(initial(1000)))
		h.ask(3, false, plainPost...)
		h.do(0, h.WriteWindowUpdate(3, 1<<30))
		h.do(0, h.WriteSettings(initial(1<<30-1)))
		h.do(0, h.WriteSettings(settings...))
		if got := h.outcome(3); got != "goaway FLOW_CONTROL_ERROR" {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// TestHTTP2FlowControl: the client gets no more than either window allows, and the rest when it opens them.
func TestHTTP2FlowControl(t *testing.T) {
	body := strings.Repeat("0123456789", 20000)
	backend := serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) })
	p := startProxy(t, routeTo(newUpstream(t, backend)))
	h := dialH2(t, p.addr, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1000})
	h.ask(1, true, plainGet...)
	var got strings.Builder
	read := func(upTo int) {
		t.Helper()
		for got.Len() < upTo {
			f := h.next(func(f http2.Frame) bool { _, ok := f.(*http2.DataFrame); return ok })
			got.Write(f.(*http2.DataFrame).Data())
		}
		if got.Len() != upTo {
			t.Fatalf("got %d bytes, %d were asked for", got.Len(), upTo)
		}
		h.do(0, h.WritePing(false, [8]byte{}))
		h.next(func(f http2.Frame) bool {
			if f, ok := f.(*http2.DataFrame); ok && len(f.Data()) > 0 {
				t.Fatal("more than was asked for")
			}
			_, ok := f.(*http2.PingFrame)
			return ok
		})
	}
	read(1000)
	h.do(0, h.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 3000}))
	read(3000)
	h.do(0, h.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})) // which leaves a debt
	h.do(0, h.WriteWindowUpdate(1, 4000))
	read(4000)
	h.do(0, h.WriteWindowUpdate(1, 1<<20))
	read(65535) // the connection's
	h.do(0, h.WriteWindowUpdate(0, 1<<20))
	for got.Len() < len(body) {
		f := h.next(func(f http2.Frame) bool { _, ok := f.(*http2.DataFrame); return ok })
		got.Write(f.(*http2.DataFrame).Data())
	}
	if got.String() != body {
		t.Error("another body")
	}
}

// TestHTTP2Uploads: a body larger than the windows passes, and one the server does not take waits at the client.
func TestHTTP2Uploads(t *testing.T) {
	take := make(chan struct{})
	backend := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		<-take
		n, _ := io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, n)
	})
	p := startProxy(t, routeTo(newUpstream(t, backend)))
	client := clientFor(t, "HTTP/2.0")
	sent := make(chan string, 3)
	for range 3 {
		go func() {
			resp, err := client.Post(p.url, "text/plain", io.LimitReader(zeros{}, 20<<20))
			if err != nil {
				sent <- err.Error()
				return
			}
			defer resp.Body.Close()
			b, _ := io.ReadAll(resp.Body)
			sent <- string(b)
		}()
	}
	close(take)
	for range 3 {
		if got := <-sent; got != fmt.Sprint(20<<20) {
			t.Errorf("got %s", got)
		}
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// TestHTTP2WindowOfARequest: a stream whose client exceeds the window is reset; the connection continues.
func TestHTTP2WindowOfARequest(t *testing.T) {
	got := make(chan struct{})
	backend := serveRaw(t, func(c net.Conn) {
		_, _ = c.Read(make([]byte, 1))
		<-got
	})
	p := startProxy(t, routeTo(newUpstream(t, backend)))
	h := dialH2(t, p.addr)
	h.ask(1, false, ":method", "POST", ":scheme", "http", ":path", "/", ":authority", "a")
	go func() {
		for range 4000 {
			if h.WriteData(1, false, make([]byte, 16<<10)) != nil {
				return
			}
		}
	}()
	if got := h.outcome(1); got != "reset FLOW_CONTROL_ERROR" && !strings.HasPrefix(got, "goaway") {
		t.Errorf("got %q", got)
	}
	close(got)
}

// TestHTTP2SmallPieces sends a body a byte at a time, as a terminal does.
func TestHTTP2SmallPieces(t *testing.T) {
	const pieces = 10000
	backend := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, n, " ", err)
	})
	p := startProxy(t, routeTo(newUpstream(t, backend)))
	h := dialH2(t, p.addr)
	h.ask(1, false, plainPost...)
	for i := range pieces {
		h.do(0, h.WriteData(1, i == pieces-1, []byte{'x'}))
	}
	if got := h.outcome(1); got != "200 10000 <nil>" {
		t.Errorf("got %q", got)
	}
}

// TestHTTP2Reset: a reset ends the request at the server, in every phase, and nothing else.
func TestHTTP2Reset(t *testing.T) {
	for name, answer := range map[string]string{
		"before the answer": "",
		"in the answer":     "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n",
	} {
		for _, method := range []string{"GET", "POST"} {
			t.Run(name+" to "+method, func(t *testing.T) {
				asked, closed := make(chan struct{}), make(chan struct{})
				backend := serveRaw(t, func(c net.Conn) {
					b := make([]byte, 4096)
					n, _ := c.Read(b)
					if strings.HasPrefix(string(b[:n]), "GET /other") {
						_, _ = io.WriteString(c, "HTTP/1.1 204 No Content\r\n\r\n")
						return
					}
					_, _ = io.WriteString(c, answer)
					close(asked)
					_, _ = io.Copy(io.Discard, c)
					close(closed)
				})
				p := startProxy(t, routeTo(newUpstream(t, backend)))
				h := dialH2(t, p.addr)
				h.ask(1, method == "GET", ":method", method, ":scheme", "http", ":path", "/", ":authority", "a")
				<-asked
				if answer != "" {
					h.next(func(f http2.Frame) bool { _, ok := f.(*http2.DataFrame); return ok })
				}
				h.do(0, h.WriteRSTStream(1, http2.ErrCodeCancel))
				<-closed
				h.ask(3, true, ":method", "GET", ":scheme", "http", ":path", "/other", ":authority", "a")
				if got := h.outcome(3); got != "204" {
					t.Errorf("another stream: %q", got)
				}
				eventually(t, "it is counted", func() bool { return p.Stats().Errors["client_gone"] == 1 })
			})
		}
	}
}

// TestHTTP2MaxStreams: one more is refused, so that the client may send it again.
func TestHTTP2MaxStreams(t *testing.T) {
	hold := make(chan struct{})
	backend := serveHTTP(t, func(http.ResponseWriter, *http.Request) { <-hold })
	cfg := routeTo(newUpstream(t, backend))
	cfg.MaxStreams = 2
	p := startProxy(t, cfg)
	h := dialH2(t, p.addr)
	for id := uint32(1); id <= 5; id += 2 {
		h.ask(id, true, plainGet...)
	}
	if got := h.outcome(5); got != "reset REFUSED_STREAM" {
		t.Errorf("got %q", got)
	}
	wantError(t, p, "rejected")
	close(hold)
	if got := h.outcome(3); !strings.HasPrefix(got, "200") {
		t.Errorf("got %q", got)
	}
}

// TestHTTP2Drain: requests under way finish, the client is told not to send more, and the connection ends.
func TestHTTP2Drain(t *testing.T) {
	asked, hold := make(chan struct{}), make(chan struct{})
	backend := serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) {
		close(asked)
		<-hold
		_, _ = io.WriteString(w, "ok")
	})
	p := startProxy(t, routeTo(newUpstream(t, backend)))
	idle, busy := dialH2(t, p.addr), dialH2(t, p.addr)
	busy.ask(1, true, plainGet...)
	<-asked
	drained := make(chan error, 1)
	go func() { drained <- p.Drain(t.Context()) }()
	if last := idle.farewell(); last != 0 {
		t.Errorf("the idle connection: stream %d", last)
	}
	if _, err := idle.ReadFrame(); err != io.EOF {
		t.Errorf("the idle connection: %v", err)
	}
	if last := busy.farewell(); last != 1 {
		t.Errorf("the last stream is %d", last)
	}
	busy.ask(3, true, plainGet...)
	if got := busy.outcome(3); got != "reset REFUSED_STREAM" {
		t.Errorf("a stream after GOAWAY: %q", got)
	}
	if e := p.Stats().Errors; len(e) > 0 {
		t.Errorf("errors: %v, want none: the client sends the request again", e)
	}
	close(hold)
	if got := busy.outcome(1); got != "200 ok" {
		t.Errorf("the request under way: %q", got)
	}
	if err := <-drained; err != nil {
		t.Error(err)
	}
}

// TestHTTP2BrokenAnswer: a broken answer has no clean end.
func TestHTTP2BrokenAnswer(t *testing.T) {
	for _, answer := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhi",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n",
	} {
		backend := serveRaw(t, func(c net.Conn) {
			_, _ = c.Read(make([]byte, 4096))
			_, _ = io.WriteString(c, answer)
		})
		p := startProxy(t, routeTo(newUpstream(t, backend)))
		h := dialH2(t, p.addr)
		h.ask(1, true, plainGet...)
		if got := h.outcome(1); got != "200 hi reset INTERNAL_ERROR" {
			t.Errorf("%q: %q", answer, got)
		}
	}
}

// TestHTTP2EarlyAnswer: an answer that comes before the request's end ends the stream, and the client is told to stop.
func TestHTTP2EarlyAnswer(t *testing.T) {
	backend := serveRaw(t, func(c net.Conn) {
		_, _ = c.Read(make([]byte, 4096))
		_, _ = io.WriteString(c, "HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
	})
	p := startProxy(t, routeTo(newUpstream(t, backend)))
	h := dialH2(t, p.addr)
	h.ask(1, false, ":method", "POST", ":scheme", "http", ":path", "/", ":authority", "a")
	if got := h.outcome(1); got != "413" {
		t.Errorf("got %q", got)
	}
	if got := h.outcome(1); got != "reset NO_ERROR" {
		t.Errorf("then %q", got)
	}
}

// TestHTTP2OnlyByALPN: a client that chose HTTP/1.1 by ALPN gets no HTTP/2.
func TestHTTP2OnlyByALPN(t *testing.T) {
	server, client := certificates(t)
	backend := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Header.Get("X-Forwarded-Proto"))
	})
	cfg := routeTo(newUpstream(t, backend))
	cfg.TLS = server
	p := startProxy(t, cfg)
	client.NextProtos = []string{"http/1.1"}
	c, err := tls.Dial("tcp", p.addr, client)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	if b, _ := io.ReadAll(c); !strings.HasPrefix(string(b), "HTTP/1.1 400") && !strings.HasPrefix(string(b), "HTTP/1.1 505") {
		t.Errorf("got %q", b)
	}
}

// TestHTTP2IdleTimeouts: an idle connection ends with GOAWAY, and so does one that stops within a frame or a head.
func TestHTTP2IdleTimeouts(t *testing.T) {
	paced(t, func(t testing.TB, unit time.Duration) {
		cfg := routeTo(newUpstream(t, serveHTTP(t, func(http.ResponseWriter, *http.Request) {})))
		cfg.ClientIdleTimeout = unit
		p := startProxy(t, cfg)
		h := dialH2(t, p.addr)
		h.ask(1, true, plainGet...)
		h.outcome(1)
		if last := h.farewell(); last != 1 {
			t.Errorf("the last stream is %d", last)
		}
		cfg.ClientIdleTimeout, cfg.ReadHeaderTimeout = 0, unit
		p = startProxy(t, cfg)
		for _, part := range []string{"\x00", "\x00\x00\x08\x06\x00\x00\x00\x00\x00ping", "\x00\x00\x00\x01\x01\x00\x00\x00\x01"} {
			h := dialH2(t, p.addr)
			h.do(io.WriteString(h.c, part))
			f, err := h.ReadFrame()
			if bye, ok := f.(*http2.GoAwayFrame); !ok || bye.LastStreamID != 0 || bye.ErrCode != http2.ErrCodeNo {
				t.Errorf("%q: %v, %v", part, f, err)
			}
			if f, err := h.ReadFrame(); err != io.EOF {
				t.Errorf("%q: after GOAWAY %v, %v", part, f, err)
			}
		}
	})
}

// TestHTTP2PingFlood: answers that a client does not read are not kept.
func TestHTTP2PingFlood(t *testing.T) {
	p := startProxy(t, routeTo(newUpstream(t, serveHTTP(t, func(http.ResponseWriter, *http.Request) {}))))
	h := dialH2(t, p.addr)
	pings := bytes.Repeat([]byte("\x00\x00\x08\x06\x00\x00\x00\x00\x0012345678"), 1000)
	_ = h.c.SetWriteDeadline(time.Now().Add(300 * time.Millisecond))
	sent := 0
	for err := error(nil); err == nil && sent < 1<<30; sent += len(pings) {
		_, err = h.c.Write(pings)
	}
	if sent >= 1<<30 {
		t.Error("a client that reads nothing is listened to for ever")
	}
}

// TestHTTP2AnswersWithoutBody and interim ones.
func TestHTTP2AnswersWithoutBody(t *testing.T) {
	backend := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/204":
			w.Header().Set("Link", "</a>")
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(http.StatusNoContent)
		case "/304":
			w.WriteHeader(http.StatusNotModified)
		default:
			_, _ = io.WriteString(w, r.Header.Get("X-Forwarded-For")+" "+r.Header.Get("Cookie")+" "+r.Header.Get("Via"))
		}
	})
	cfg := routeTo(newUpstream(t, backend))
	cfg.Via = "pond"
	p := startProxy(t, cfg)
	h := dialH2(t, p.addr)
	for i, want := range []string{"103204", "304", "200", "200 127.0.0.1 a=1; b=2 2.0 pond"} {
		method, path := "GET", []string{"/204", "/304", "/", "/"}[i]
		if i == 2 {
			method = "HEAD"
		}
		id := uint32(2*i + 1)
		h.ask(id, true, ":method", method, ":scheme", "http", ":path", path, ":authority", "a", "cookie", "a=1", "cookie", "b=2")
		if got := h.outcome(id); got != want {
			t.Errorf("%s %s: %q, want %q", method, path, got, want)
		}
	}
}
