package httpproxy_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha1"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/enginetest"
	"github.com/headpond/headpond/listener"
)

// connectRequest is the head of an extended CONNECT for a WebSocket.
var connectRequest = []string{
	":method", "CONNECT", ":protocol", "websocket", ":scheme", "http", ":path", "/ws?a=b", ":authority", "a",
	"sec-websocket-version", "13", "sec-websocket-protocol", "chat", "origin", "http://a",
}

func acceptOf(key string) string {
	sum := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	return base64.StdEncoding.EncodeToString(sum[:])
}

// serveSocket is a server of WebSockets that checks what it is asked, and gives the connection to f after its 101.
func serveSocket(t testing.TB, f func(net.Conn, *bufio.Reader)) string {
	return serveRaw(t, func(c net.Conn) {
		br := bufio.NewReader(c)
		r, err := http.ReadRequest(br)
		if err != nil {
			return
		}
		keys := r.Header["Sec-Websocket-Key"]
		if r.Method != http.MethodGet || r.RequestURI != "/ws?a=b" || r.Host != "a" || !strings.EqualFold(r.Header.Get("Connection"), "upgrade") || r.Header.Get("Upgrade") != "websocket" ||
			len(keys) != 1 || len(keys[0]) != 24 || r.Header.Get("Sec-Websocket-Version") != "13" || r.Header.Get("Origin") != "http://a" || r.ContentLength > 0 || len(r.TransferEncoding) > 0 {
			t.Errorf("the server is asked %v", r)
			return
		}
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Protocol: chat\r\n"+
			"Sec-WebSocket-Accept: "+acceptOf(keys[0])+"\r\n\r\ngreeting ")
		f(c, br)
	})
}

// serveConnect is a server of WebSockets over HTTP/2.
func serveConnect(t testing.TB, f func(net.Conn, *bufio.Reader)) string {
	return serveFrames(t, func(s *frames) {
		head, ok := s.await(http2.FrameHeaders).(*http2.MetaHeadersFrame)
		if !ok {
			return
		}
		got := map[string]string{}
		for _, f := range head.Fields {
			got[f.Name] = f.Value
		}
		_, key := got["sec-websocket-key"]
		if got[":method"] != "CONNECT" || got[":protocol"] != "websocket" || got[":path"] != "/ws?a=b" || got[":authority"] != "a" || got[":scheme"] != "http" ||
			got["sec-websocket-version"] != "13" || got["origin"] != "http://a" || key || head.StreamEnded() {
			t.Errorf("the server is asked %v", head.Fields)
		}
		s.fields(head.StreamID, false, ":status", "200", "sec-websocket-protocol", "chat")
		_ = s.WriteData(head.StreamID, false, []byte("greeting "))
		end := &h2End{Conn: s.Conn, Framer: s.Framer, id: head.StreamID}
		f(end, bufio.NewReader(end))
		_ = end.CloseWrite()
		s.drain()
	}, http2.Setting{ID: http2.SettingEnableConnectProtocol, Val: 1})
}

// h2End is one end of a tunnel in a stream of HTTP/2.
type h2End struct {
	net.Conn
	*http2.Framer
	id     uint32
	unread bytes.Buffer
	ended  bool
	closed bool
}

func (e *h2End) Read(p []byte) (int, error) {
	for e.unread.Len() == 0 {
		if e.ended {
			return 0, io.EOF
		}
		f, err := e.ReadFrame()
		if err != nil {
			return 0, err
		}
		switch f := f.(type) {
		case *http2.DataFrame:
			if f.StreamID == e.id {
				e.unread.Write(f.Data())
				e.ended = f.StreamEnded()
				if n := uint32(len(f.Data())); n > 0 {
					_ = errors.Join(e.WriteWindowUpdate(0, n), e.WriteWindowUpdate(e.id, n))
				}
			}
		case *http2.RSTStreamFrame:
			if f.StreamID == e.id {
				return 0, http2.StreamError{StreamID: e.id, Code: f.ErrCode}
			}
		case *http2.GoAwayFrame:
			if f.ErrCode != http2.ErrCodeNo {
				return 0, http2.ConnectionError(f.ErrCode)
			}
		case *http2.PingFrame:
			if !f.IsAck() {
				_ = e.WritePing(true, f.Data)
			}
		}
	}
	return e.unread.Read(p)
}

func (e *h2End) Write(p []byte) (int, error) { return len(p), e.WriteData(e.id, false, p) }

func (e *h2End) CloseWrite() error {
	if e.closed {
		return nil
	}
	e.closed = true
	return e.WriteData(e.id, true, nil)
}

// socket is the client's end of a WebSocket.
type socket interface {
	io.ReadWriteCloser
	CloseWrite() error
}

type h1Socket struct {
	net.Conn
	br *bufio.Reader
}

func (s h1Socket) Read(p []byte) (int, error) { return s.br.Read(p) }

func (s h1Socket) CloseWrite() error { return s.Conn.(interface{ CloseWrite() error }).CloseWrite() }

// upgradeH1 asks for a WebSocket in HTTP/1.1.
func upgradeH1(t testing.TB, c net.Conn) socket {
	t.Helper()
	const key = "dGhlIHNhbXBsZSBub25jZQ=="
	_, _ = io.WriteString(c, "GET /ws?a=b HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: "+key+"\r\n"+
		"Sec-WebSocket-Version: 13\r\nOrigin: http://a\r\nSec-WebSocket-Protocol: chat\r\n\r\n")
	br := bufio.NewReader(c)
	resp, err := http.ReadResponse(br, nil)
	if err != nil {
		t.Fatal(err)
	}
	if h := resp.Header; resp.StatusCode != 101 || h.Get("Upgrade") != "websocket" || len(h["Sec-Websocket-Accept"]) != 1 || h.Get("Sec-Websocket-Accept") != acceptOf(key) || h.Get("Sec-Websocket-Protocol") != "chat" {
		t.Fatalf("%s %v", resp.Status, h)
	}
	return h1Socket{c, br}
}

// connect asks for a WebSocket in a stream.
func (h *h2Client) connect(id uint32) *h2End {
	h.t.Helper()
	h.ask(id, false, connectRequest...)
	f := h.next(func(f http2.Frame) bool {
		head, ok := f.(*http2.MetaHeadersFrame)
		return ok && head.StreamID == id
	}).(*http2.MetaHeadersFrame)
	got := map[string]string{}
	for _, field := range f.Fields {
		got[field.Name] = field.Value
	}
	if got[":status"] != "200" || got["sec-websocket-protocol"] != "chat" || len(got) != 2 {
		h.t.Fatalf("%v", f.Fields)
	}
	return &h2End{Conn: h.c, Framer: h.Framer, id: id}
}

func wantText(t testing.TB, r io.Reader, text string) {
	t.Helper()
	b := make([]byte, len(text))
	if _, err := io.ReadFull(r, b); err != nil || string(b) != text {
		t.Fatalf("got %.60q, %v; want %.60q", b, err, text)
	}
}

// TestTunnels: WebSockets between all versions of HTTP, with bytes and ends of both sides. While nothing is sent, a tunnel has neither a
// fiber nor a buffer.
func TestTunnels(t *testing.T) {
	for _, client := range []string{"h1", "h2", "h1 tls", "h2 tls"} {
		for _, server := range []string{"h1", "h2"} {
			t.Run(client+" to "+server, func(t *testing.T) {
				o, backend := httpproxy.UpstreamOptions{}, serveSocket(t, echo)
				if server == "h2" {
					o.Protocol, backend = httpproxy.ProtocolH2C, serveConnect(t, echo)
				}
				lines := &logLines{t: t}
				p, s := startTunnel(t, client, httpproxy.Config{AccessLog: &httpproxy.AccessLog{To: lines}, Routes: []httpproxy.Route{{Upstream: newUpstreamWith(t, o, backend)}}})
				wantText(t, s, "greeting ")
				long := strings.Repeat("0123456789", 5_000) // less than a window
				for range 3 {
					_, _ = io.WriteString(s, "message")
					wantText(t, s, "message")
					atRest(t, p, server)
				}
				for rest := long; len(rest) > 0; rest = rest[min(len(rest), 10_000):] {
					_, _ = io.WriteString(s, rest[:min(len(rest), 10_000)])
				}
				wantText(t, s, long)
				_, _ = io.WriteString(s, "message")
				wantText(t, s, "message")
				atRest(t, p, server)
				if err := s.CloseWrite(); err != nil {
					t.Fatal(err)
				}
				if rest, err := io.ReadAll(s); err != nil || len(rest) > 0 {
					t.Errorf("at the end: %q, %v", rest, err)
				}
				sent, version := len(long)+4*len("message"), map[string]string{"h1": "HTTP/1.1", "h2": "HTTP/2.0"}[client[:2]]
				wantFields(t, lines.fields(), map[string]any{
					"status": 101, "method": "GET", "path": "/ws", "host": "a", "bytes_in": sent, "bytes_out": sent + len("greeting "), "reason": nil, "protocol": version,
				})
				if st := p.Stats(); len(st.Errors) > 0 {
					t.Errorf("errors: %v", st.Errors)
				}
			})
		}
	}
}

// startTunnel starts a proxy, and a WebSocket to it.
func startTunnel(t *testing.T, client string, cfg httpproxy.Config) (running, socket) {
	t.Helper()
	var trust *tls.Config
	if strings.HasSuffix(client, "tls") {
		cfg.TLS, trust = certificates(t)
		cfg.TLS.NextProtos = []string{"h2", "http/1.1"}
	}
	p := startProxy(t, cfg)
	c, err := net.Dial("tcp", p.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	h2 := strings.HasPrefix(client, "h2")
	if trust != nil {
		trust = trust.Clone()
		trust.ServerName = "localhost"
		if trust.NextProtos = []string{"http/1.1"}; h2 {
			trust.NextProtos = []string{"h2"}
		}
		c = tls.Client(c, trust)
	}
	if h2 {
		return p, speakH2(t, c).connect(1)
	}
	return p, upgradeH1(t, c)
}

// atRest waits until the tunnel holds nothing.
func atRest(t *testing.T, p running, server string) {
	t.Helper()
	if enginetest.Kind() == fiber.Goroutine {
		return
	}
	most := 1 // accepts
	if server == "h2" {
		most += 2 // read and write
	}
	eventually(t, "the tunnel has no fiber", func() bool {
		fiber.Sleep(time.Millisecond)
		return enginetest.Fibers() <= most
	})
	if held := p.Stats().Buffered; held > 4<<10 {
		t.Errorf("%d bytes are held", held)
	}
}

// TestConnectWaitsForTheServer: what the client sends at once goes out after the server's answer, and not at all without it.
func TestConnectWaitsForTheServer(t *testing.T) {
	asked, answer := make(chan struct{}), make(chan string)
	p := startProxy(t, routeTo(newUpstream(t, serveRaw(t, func(c net.Conn) {
		br := bufio.NewReader(c)
		r, err := http.ReadRequest(br)
		if err != nil {
			return
		}
		asked <- struct{}{}
		head := <-answer
		if n := br.Buffered(); n > 0 {
			t.Errorf("%d bytes came before the answer", n)
		}
		refuses := head == ""
		if refuses {
			_ = c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
			if n, err := br.Read(make([]byte, 9)); n > 0 || err == nil {
				t.Errorf("%d bytes came before the answer", n)
			}
			head = "HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\nX: y\r\n\r\nno"
		}
		_ = c.SetReadDeadline(time.Now().Add(patience))
		_, _ = io.WriteString(c, strings.ReplaceAll(head, "ACCEPT", acceptOf(r.Header.Get("Sec-WebSocket-Key"))))
		if !refuses {
			echo(c, br)
		}
	}))))
	h := dialH2(t, p.addr)
	ask := func(id uint32, say string) string {
		h.ask(id, false, connectRequest...)
		h.do(0, h.WriteData(id, false, []byte("early")))
		<-asked
		answer <- say
		return h.outcome(id)
	}
	if got := ask(1, ""); got != "403 no" {
		t.Errorf("refused: %q", got)
	}
	const switching = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "
	for i, say := range []string{
		switching + "websocket\r\n\r\nsecret", switching + "websocket\r\nSec-WebSocket-Accept: ACCEPTx\r\n\r\nsecret", switching + "other\r\nSec-WebSocket-Accept: ACCEPT\r\n\r\nsecret",
		switching + "websocket\r\nSec-WebSocket-Accept: ACCEPT\r\nSec-WebSocket-Accept: ACCEPT\r\n\r\nsecret",
	} {
		if got := ask(uint32(3+2*i), say); !strings.HasPrefix(got, "502") || strings.Contains(got, "secret") {
			t.Errorf("%q: %q", say, got)
		}
	}
	h.ask(21, false, connectRequest...)
	h.do(0, h.WriteData(21, true, []byte("early")))
	<-asked
	answer <- switching + "websocket\r\nSec-WebSocket-Accept: ACCEPT\r\n\r\n"
	if got := h.outcome(21); strings.Join(strings.Fields(got), "") != "200early" {
		t.Errorf("%q", got)
	}
}

// TestMalformedConnect: what is no extended CONNECT begins no tunnel, and reaches no server.
func TestMalformedConnect(t *testing.T) {
	p := startProxy(t, routeTo(newUpstream(t, serveRaw(t, func(c net.Conn) {
		if n, _ := c.Read(make([]byte, 1)); n > 0 {
			t.Error("the server is asked")
		}
	}))))
	without := func(name string) []string {
		i := slices.Index(connectRequest, name)
		return slices.Delete(slices.Clone(connectRequest), i, i+2)
	}
	with := func(name, value string) []string {
		c := slices.Clone(connectRequest)
		if i := slices.Index(c, name); i >= 0 {
			c[i+1] = value
			return c
		}
		return append(c, name, value)
	}
	for name, c := range map[string]struct {
		head []string
		want string
	}{
		"GET":              {with(":method", "GET"), "reset PROTOCOL_ERROR"},
		"no path":          {without(":path"), "reset PROTOCOL_ERROR"},
		"no scheme":        {without(":scheme"), "reset PROTOCOL_ERROR"},
		"no authority":     {without(":authority"), "reset PROTOCOL_ERROR"},
		"an empty name":    {with(":protocol", ""), "reset PROTOCOL_ERROR"},
		"a list":           {with(":protocol", "websocket, other"), "reset PROTOCOL_ERROR"},
		"a path of *":      {with(":path", "*"), "reset PROTOCOL_ERROR"},
		"a length":         {with("content-length", "0"), "reset PROTOCOL_ERROR"},
		"Upgrade":          {with("upgrade", "websocket"), "reset PROTOCOL_ERROR"},
		"Connection":       {with("connection", "upgrade"), "reset PROTOCOL_ERROR"},
		"late":             {append(without(":protocol"), ":protocol", "websocket"), "reset PROTOCOL_ERROR"},
		"HTTP within HTTP": {with(":protocol", "h2c"), "501"},
		"plain CONNECT":    {[]string{":method", "CONNECT", ":authority", "a:1"}, "405"},
	} {
		h := dialH2(t, p.addr)
		h.ask(1, false, c.head...)
		if got := h.outcome(1); !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		_ = h.c.Close()
	}
}

// TestTunnelReset: a reset of one side is one for the other.
func TestTunnelReset(t *testing.T) {
	got, leave := make(chan error, 1), make(chan struct{})
	server := serveSocket(t, func(c net.Conn, br *bufio.Reader) {
		select {
		case <-leave:
			_ = c.(*net.TCPConn).SetLinger(0)
		default:
			_, err := io.Copy(io.Discard, br)
			got <- err
		}
	})
	p := startProxy(t, routeTo(newUpstream(t, server)))
	h := dialH2(t, p.addr)
	s := h.connect(1)
	wantText(t, s, "greeting ")
	h.do(0, h.WriteRSTStream(1, http2.ErrCodeCancel))
	if err := <-got; !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the server got %v", err)
	}
	close(leave)
	if _, err := io.ReadAll(h.connect(3)); err != (http2.StreamError{StreamID: 3, Code: http2.ErrCodeCancel}) {
		t.Errorf("the client got %v", err)
	}
	eventually(t, "both are counted", func() bool {
		e := p.Stats().Errors
		return e["backend_gone"] == 1 && e["client_gone"] == 1
	})
}

// TestTunnelEndIsWhole: what a side has ended with arrives whole, though nothing can be sent to that side any more.
func TestTunnelEndIsWhole(t *testing.T) {
	long := strings.Repeat("0123456789", 20_000) // more than a socket takes that nobody reads
	for _, ends := range []string{"server", "client"} {
		t.Run(ends, func(t *testing.T) {
			servers := make(chan net.Conn, 1)
			p, s := startTunnel(t, "h1", routeTo(newUpstream(t, serveSocket(t, func(c net.Conn, _ *bufio.Reader) {
				servers <- c
				<-t.Context().Done()
			}))))
			wantText(t, s, "greeting ")
			client, server := s.(h1Socket).Conn, <-servers
			end, reader, moved := server.(*net.TCPConn), client.(*net.TCPConn), func() (from, to uint64) { return p.Stats().BytesOut, p.Stats().BytesIn }
			if ends == "client" {
				end, reader, moved = reader, end, func() (from, to uint64) { return p.Stats().BytesIn, p.Stats().BytesOut }
			}
			_, _ = io.WriteString(end, long)
			_ = end.CloseWrite()
			eventually(t, "all is passed on", func() bool { from, _ := moved(); return from >= uint64(len(long)) })
			_, _ = io.WriteString(reader, "message")
			wantText(t, end, "message")
			_ = end.Close()
			for len(p.Sessions()) > 0 {
				_, was := moved()
				_, _ = io.WriteString(reader, "x")
				eventually(t, "it is passed on, or cannot be", func() bool { _, is := moved(); return is > was || len(p.Sessions()) == 0 })
			}
			if b, err := io.ReadAll(reader); err != nil || string(b) != long {
				t.Errorf("%d bytes arrive of %d, %v", len(b), len(long), err)
			}
		})
	}
}

// TestTunnelEndsWithItsClient: a client that has ended its side can still leave or be killed, and then takes its server with it.
func TestTunnelEndsWithItsClient(t *testing.T) {
	u := newUpstream(t, serveSocket(t, func(c net.Conn, br *bufio.Reader) {
		_, _ = io.Copy(io.Discard, br)
		_, _ = io.WriteString(c, "ended")
		<-t.Context().Done()
	}))
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Upstream: u, IdleTimeout: time.Hour}}})
	for how, leave := range map[string]func(*h2Client){
		"reset":      func(h *h2Client) { h.do(0, h.WriteRSTStream(1, http2.ErrCodeCancel)) },
		"connection": func(h *h2Client) { _ = h.c.Close() },
		"kill": func(*h2Client) {
			for _, info := range p.Sessions() {
				if id, stream, ok := listener.ParseID(info.ID); ok && stream == 1 {
					p.Kill(id, stream)
				}
			}
		},
	} {
		h := dialH2(t, p.addr)
		s := h.connect(1)
		_ = s.CloseWrite()
		wantText(t, s, "greeting ended")
		leave(h)
		eventually(t, how+": the server is cut off", func() bool { return u.Status().Endpoints[0].Pool.InUse == 0 })
		_ = h.c.Close()
		eventually(t, how+": the session is over", func() bool { return len(p.Sessions()) == 0 })
	}
}

// TestTunnelHalfOpen: each side may end first, and the stream counts for the client's limit until both have.
func TestTunnelHalfOpen(t *testing.T) {
	got := make(chan string, 3)
	u := newUpstream(t, serveSocket(t, func(c net.Conn, br *bufio.Reader) {
		_ = c.(*net.TCPConn).CloseWrite()
		b, _ := io.ReadAll(br)
		got <- string(b)
	}))
	p := startProxy(t, httpproxy.Config{MaxStreams: 2, Routes: []httpproxy.Route{{Upstream: u}}})
	h := dialH2(t, p.addr)
	var half []*h2End
	for id := uint32(1); id <= 3; id += 2 {
		s := h.connect(id)
		half = append(half, s)
		if b, err := io.ReadAll(s); err != nil || string(b) != "greeting " {
			t.Errorf("%q, %v", b, err)
		}
	}
	h.ask(5, true, plainGet...)
	if got := h.outcome(5); got != "reset REFUSED_STREAM" {
		t.Errorf("a third stream: %q", got)
	}
	for _, s := range half {
		_, _ = io.WriteString(s, "late")
		_ = s.CloseWrite()
	}
	eventually(t, "both are over", func() bool { return len(p.Sessions()) == 1 })
	s := h.connect(7)
	_, _ = io.WriteString(s, "late")
	_ = s.CloseWrite()
	if b, err := io.ReadAll(s); err != nil || string(b) != "greeting " {
		t.Errorf("%q, %v", b, err)
	}
	for range 3 {
		if b := <-got; b != "late" {
			t.Errorf("the server got %q", b)
		}
	}
}

// TestTunnelHeadIsCounted: the memory of a head counts as long as the tunnel lasts, also if a few bytes stand for it in HTTP/2.
func TestTunnelHeadIsCounted(t *testing.T) {
	const size, tunnels = 3_000, 8
	for _, client := range []string{"h1", "h2"} {
		p := startProxy(t, routeTo(newUpstream(t, serveRaw(t, func(c net.Conn) {
			br := bufio.NewReader(c)
			if r, err := http.ReadRequest(br); err == nil {
				_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: "+acceptOf(r.Header.Get("Sec-WebSocket-Key"))+"\r\n\r\n")
				echo(c, br)
			}
		}))))
		if client == "h1" {
			c, br := dialRaw(t, p.addr)
			if resp, _ := roundTrip(t, c, br, strings.Replace(upgradeRequest, "\r\n\r\n", "\r\nX: "+strings.Repeat("x", tunnels*size)+"\r\n\r\n", 1)); resp.StatusCode != 101 {
				t.Fatal(resp.Status)
			}
		} else {
			h := dialH2(t, p.addr)
			var block bytes.Buffer
			e := hpack.NewEncoder(&block)
			for id := uint32(1); id < 2*tunnels; id += 2 {
				block.Reset()
				for f := range slices.Chunk(append(slices.Clone(connectRequest), "x", strings.Repeat("x", size)), 2) {
					_ = e.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
				}
				h.do(0, h.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndHeaders: true}))
				h.next(func(f http2.Frame) bool { _, ok := f.(*http2.MetaHeadersFrame); return ok })
			}
		}
		eventually(t, "the heads are counted", func() bool { return p.Stats().Buffered >= tunnels*size })
	}
}

// TestTunnelBackPressure: a side that does not read stops the other one, and nothing is lost.
func TestTunnelBackPressure(t *testing.T) {
	read := make(chan int)
	total := make(chan int, 1)
	p := startProxy(t, routeTo(newUpstream(t, serveSocket(t, func(c net.Conn, br *bufio.Reader) {
		<-read
		n, _ := io.Copy(io.Discard, br)
		total <- int(n)
		_, _ = c.Write(make([]byte, 1<<20))
	}))))
	h := dialH2(t, p.addr)
	s := h.connect(1)
	wantText(t, s, "greeting ")
	sent, silent := 0, 0 // bytes, and PINGs since there was credit
	piece := make([]byte, 8<<10)
	for credit := 64<<10 - 1; silent < 200 && sent < 64<<20; silent++ {
		for ; credit >= len(piece); credit -= len(piece) {
			h.do(0, h.WriteData(1, false, piece))
			sent += len(piece)
			silent = 0
		}
		h.do(0, h.WritePing(false, [8]byte{1}))
		h.next(func(f http2.Frame) bool {
			if w, ok := f.(*http2.WindowUpdateFrame); ok && w.StreamID == 1 {
				credit += int(w.Increment)
			}
			ping, ok := f.(*http2.PingFrame)
			return ok && ping.IsAck()
		})
	}
	if sent >= 64<<20 {
		t.Error("the server does not stop the client")
	}
	if held := p.Stats().Buffered; held > 512<<10 {
		t.Errorf("%d bytes are held", held)
	}
	h.do(0, h.WriteData(1, true, nil))
	close(read)
	if n := <-total; n != sent {
		t.Errorf("the server got %d bytes of %d", n, sent)
	}
	if b, err := io.ReadAll(s); err != nil || len(b) != 1<<20 {
		t.Errorf("the client got %d bytes, %v", len(b), err)
	}
}

// TestTunnelStandsStill: a tunnel ends if nothing moves.
func TestTunnelStandsStill(t *testing.T) {
	paced(t, func(t testing.TB, unit time.Duration) {
		p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{IdleTimeout: unit, Upstream: newUpstream(t, serveSocket(t, echo))}}})
		if _, err := io.ReadAll(dialH2(t, p.addr).connect(1)); err != (http2.StreamError{StreamID: 1, Code: http2.ErrCodeCancel}) { //nolint:errorlint // it is the reader's own
			t.Fatalf("the client got %v", err)
		}
		eventually(t, "the time-out is counted", func() bool { return p.Stats().Errors["timeout"] == 1 })
	})
}

// TestDrainWaitsForTunnels: a client is told to begin no more, and its tunnel goes on until it is cut off.
func TestDrainWaitsForTunnels(t *testing.T) {
	p := startProxy(t, routeTo(newUpstream(t, serveSocket(t, echo))))
	h := dialH2(t, p.addr)
	s := h.connect(1)
	wantText(t, s, "greeting ")
	ctx, cancel := context.WithCancel(t.Context())
	drained := make(chan error, 1)
	go func() { drained <- p.Drain(ctx) }()
	if last := h.farewell(); last != 1 {
		t.Errorf("the last stream is %d", last)
	}
	for range 2 {
		_, _ = io.WriteString(s, "message")
		wantText(t, s, "message")
	}
	cancel()
	if err := <-drained; !errors.Is(err, context.Canceled) {
		t.Errorf("Drain: %v", err)
	}
	if b, err := io.ReadAll(s); err == nil {
		t.Errorf("%q after the drain", b)
	}
}

// TestTunnelInRegister: tunnels are listed, and each can be killed alone.
func TestTunnelInRegister(t *testing.T) {
	p := startProxy(t, routeTo(newUpstream(t, serveSocket(t, echo))))
	h := dialH2(t, p.addr)
	one, two := h.connect(1), h.connect(3)
	killed := false
	for _, info := range p.Sessions() {
		if id, stream, ok := listener.ParseID(info.ID); ok && stream == 1 {
			if killed = p.Kill(id, stream); info.Path != "/ws" || info.State != listener.StateActive {
				t.Errorf("%+v", info)
			}
		}
	}
	if _, err := io.ReadAll(one); !killed || err != (http2.StreamError{StreamID: 1, Code: http2.ErrCodeCancel}) {
		t.Errorf("killed: %v, %v", killed, err)
	}
	_, _ = io.WriteString(two, "x")
	eventually(t, "one is left", func() bool { return len(p.Sessions()) == 2 })
	_ = two.CloseWrite()
	if _, err := io.ReadAll(two); err != nil {
		t.Error(err)
	}
}

// TestTunnelsAreReset: a client that resets tunnels at once is as one that resets requests.
func TestTunnelsAreReset(t *testing.T) {
	p := startProxy(t, routeTo(newUpstream(t, serveSocket(t, echo))))
	h := dialH2(t, p.addr)
	go func() {
		for id := uint32(1); id < 4000; id += 2 {
			if h.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: h2Fields(connectRequest...), EndHeaders: true}) != nil || h.WriteRSTStream(id, http2.ErrCodeCancel) != nil {
				return
			}
		}
	}()
	if f := h.next(func(f http2.Frame) bool { _, ok := f.(*http2.GoAwayFrame); return ok }).(*http2.GoAwayFrame); f.ErrCode != http2.ErrCodeEnhanceYourCalm {
		t.Errorf("GOAWAY with %v", f.ErrCode)
	}
}

// TestTunnelEndIsLogged: the log on level debug says which side has ended a tunnel, and how long both were silent before.
func TestTunnelEndIsLogged(t *testing.T) {
	for name, tc := range map[string]struct {
		server func(net.Conn, *bufio.Reader)
		client func(c *net.TCPConn)
		want   string
	}{
		"the client": {echo, func(c *net.TCPConn) { _ = c.CloseWrite() }, "ended_by=client bytes_in=0 bytes_out=9 "},
		"the server": {func(net.Conn, *bufio.Reader) {}, func(*net.TCPConn) {}, "ended_by=server bytes_in=0 bytes_out=9 "},
		"neither":    {echo, func(c *net.TCPConn) { _ = c.SetLinger(0); _ = c.Close() }, `ended_by="" bytes_in=0 bytes_out=9 `},
	} {
		t.Run(name, func(t *testing.T) {
			var log conntest.Log
			cfg := routeTo(newUpstream(t, serveUpgrade(t, tc.server)))
			cfg.Listener.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
			p := startProxy(t, cfg)
			c, br := dialUpgrade(t, p.addr, "")
			if _, err := io.ReadFull(br, make([]byte, len("greeting "))); err != nil {
				t.Fatal(err)
			}
			tc.client(c)
			_, _ = io.Copy(io.Discard, br)
			_ = c.Close()
			eventually(t, "the log says so", func() bool {
				return log.Line("upgraded connection ended", "client="+c.LocalAddr().String(), tc.want, "silent=", " unended=0 ") != ""
			})
		})
	}
}
