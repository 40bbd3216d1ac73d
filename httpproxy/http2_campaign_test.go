package httpproxy_test

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/upstream"
)

// wildClient is an HTTP/2 client that does what a client may do, and what it must not. One goroutine writes, another reads
// and checks that what comes belongs to what was asked.
type wildClient struct {
	*http2.Framer
	t     *testing.T
	c     *net.TCPConn
	rnd   *rand.Rand
	name  string
	next  uint32
	block bytes.Buffer
	coder *hpack.Encoder
	seen  chan uint32   // streams whose answers have begun
	ended chan struct{} // the reader has

	mu   sync.Mutex
	tags map[uint32]string
}

// wildDial connects a client. A reader ends with the connection.
func wildDial(t *testing.T, addr, name string, rnd *rand.Rand) *wildClient {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Error(err)
		return nil
	}
	_ = c.SetDeadline(time.Now().Add(patience))
	h := &wildClient{
		Framer: http2.NewFramer(c, nil), t: t, c: c.(*net.TCPConn), rnd: rnd, name: name, next: 1,
		seen: make(chan uint32, 1000), ended: make(chan struct{}), tags: make(map[uint32]string),
	}
	h.AllowIllegalWrites = true
	h.coder = hpack.NewEncoder(&h.block)
	_, _ = io.WriteString(c, http2.ClientPreface)
	_ = h.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: []uint32{0, 1, 100, 5000, 65535, 1 << 20}[rnd.IntN(6)]})
	go h.read()
	return h
}

func (h *wildClient) read() {
	defer close(h.ended)
	fr := http2.NewFramer(nil, h.c)
	fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	fr.MaxHeaderListSize = 1 << 20
	got := make(map[uint32]*wildGot)
	for {
		f, err := fr.ReadFrame()
		if err != nil {
			if timeout, ok := err.(net.Error); ok && timeout.Timeout() { //nolint:errorlint // as the connection returns it
				h.t.Errorf("%s: the connection does not end", h.name)
			}
			return
		}
		switch f := f.(type) {
		case *http2.MetaHeadersFrame:
			for _, field := range f.Fields {
				if tag := h.tag(f.StreamID); (field.Name == "x-tag" || field.Name == "x-end") && field.Value != tag {
					h.t.Errorf("%s got %s of %s", tag, field.Name, field.Value)
				} else if field.Name == "x-tag" {
					got[f.StreamID] = &wildGot{tag: tag}
				}
			}
			select {
			case h.seen <- f.StreamID:
			default:
			}
		case *http2.DataFrame:
			if g := got[f.StreamID]; g != nil && !g.add(f.Data()) { // nil: it is the gateway's own answer
				h.t.Errorf("%s: got %.100q, %d bytes", g.tag, g.data, len(g.data))
			}
		}
	}
}

// wildGot is what has come of an answer.
type wildGot struct {
	tag  string
	data []byte
}

// add reports whether the data is the beginning of the answer's still.
func (g *wildGot) add(data []byte) bool {
	g.data = append(g.data, data...)
	piece, _, whole := bytes.Cut(g.data, []byte{'|'})
	begin := []byte(g.tag + " ")
	if n := min(len(begin), len(piece)); !bytes.Equal(piece[:n], begin[:n]) {
		return false
	}
	return !whole || bytes.HasPrefix(bytes.Repeat(g.data[:len(piece)+1], 1+len(g.data)/(len(piece)+1)), g.data)
}

func (h *wildClient) tag(id uint32) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.tags[id]
}

// fields codes a block.
func (h *wildClient) fields(kv ...string) []byte {
	h.block.Reset()
	for i := 0; i < len(kv); i += 2 {
		_ = h.coder.WriteField(hpack.HeaderField{Name: kv[i], Value: kv[i+1]})
	}
	return bytes.Clone(h.block.Bytes())
}

// request returns the ID and the head of another request.
func (h *wildClient) request(method string, more ...string) (id uint32, block []byte) {
	id = h.next
	h.next += 2
	tag := h.name + "-" + strconv.Itoa(int(id))
	h.mu.Lock()
	h.tags[id] = tag
	h.mu.Unlock()
	return id, h.fields(append([]string{
		":method", method, ":scheme", "http", ":path", "/", ":authority", "a", "x-tag", tag, "x-size", strconv.Itoa(h.rnd.IntN(3) * h.rnd.IntN(20_000)),
	}, more...)...)
}

// ask sends a head.
func (h *wildClient) ask(method string, ends bool, more ...string) uint32 {
	id, block := h.request(method, more...)
	_ = h.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block, EndStream: ends, EndHeaders: true})
	return id
}

// begun waits until the answer to a request has begun, or the connection has ended.
func (h *wildClient) begun(id uint32) {
	for {
		select {
		case got := <-h.seen:
			if got == id {
				return
			}
		case <-h.ended:
			return
		}
	}
}

func (h *wildClient) some() []byte { return make([]byte, h.rnd.IntN(6000)) }

// wildActs are what a client does, among other requests.
var wildActs = []func(h *wildClient){
	func(h *wildClient) { _ = h.WriteRSTStream(h.ask("GET", true), http2.ErrCodeCancel) },
	func(h *wildClient) { _ = h.WriteRSTStream(h.ask("POST", false), http2.ErrCodeCancel) },
	func(h *wildClient) { // in the middle of a body
		id := h.ask("POST", false)
		_ = h.WriteData(id, false, h.some())
		_ = h.WriteRSTStream(id, http2.ErrCodeInternal)
	},
	func(h *wildClient) { // after it
		id := h.ask("POST", false)
		_ = h.WriteData(id, true, h.some())
		_ = h.WriteRSTStream(id, http2.ErrCodeNo)
	},
	func(h *wildClient) { // in the middle of the answer
		id := h.ask("GET", true)
		h.begun(id)
		_ = h.WriteRSTStream(id, http2.ErrCodeCancel)
	},
	func(h *wildClient) { // and data after it
		id := h.ask("POST", false)
		_ = h.WriteRSTStream(id, http2.ErrCodeCancel)
		_ = h.WriteData(id, true, h.some())
	},
	func(h *wildClient) { // many
		for range 60 {
			_ = h.WriteRSTStream(h.ask("GET", true), http2.ErrCodeCancel)
		}
	},
	func(h *wildClient) { // windows that become negative, and are opened by pieces
		id := h.ask("GET", true)
		h.begun(id)
		for _, size := range []uint32{0, 3, 1000, 0, 1 << 20} {
			_ = h.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: size})
			_ = h.WriteWindowUpdate(id, 1+h.rnd.Uint32N(1000))
		}
		_ = h.WriteWindowUpdate(0, 1<<20)
	},
	func(h *wildClient) { _ = h.WriteWindowUpdate(h.ask("GET", true), 0) },
	func(h *wildClient) { _ = h.WriteWindowUpdate(h.ask("GET", true), 1<<31-1) },
	func(h *wildClient) { h.ask("GET", true); _ = h.WriteWindowUpdate(0, 1<<31-1) },
	func(h *wildClient) {
		h.ask("GET", true)
		for i := range uint32(2000) {
			_ = h.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: i}, http2.Setting{ID: http2.SettingHeaderTableSize, Val: i})
		}
	},
	func(h *wildClient) {
		h.ask("GET", true)
		for range 2000 {
			_ = h.WritePing(false, [8]byte{})
		}
	},
	func(h *wildClient) { // a block without an end, and another request
		id, block := h.request("GET")
		_ = h.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block, EndStream: true})
		h.ask("GET", true)
	},
	func(h *wildClient) { // and the connection's end
		id, block := h.request("GET")
		_ = h.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block[:len(block)/2], EndStream: true})
	},
	func(h *wildClient) { // CONTINUATION in pieces
		id, block := h.request("GET")
		_ = h.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block[:1], EndStream: true})
		for i := range block[1:] {
			_ = h.WriteContinuation(id, i+2 == len(block), block[i+1:i+2])
		}
	},
	func(h *wildClient) { _ = h.WriteContinuation(h.ask("GET", true), true, nil) },
	func(h *wildClient) { // trailers
		id := h.ask("POST", false)
		_ = h.WriteData(id, false, h.some())
		_ = h.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: h.fields("a", "b", "x-tag", "other"), EndStream: true, EndHeaders: true})
	},
	func(h *wildClient) { // trailers that are a request
		id := h.ask("POST", false)
		_ = h.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: h.fields(":method", "GET", ":path", "/", "x-tag", "other"), EndStream: true, EndHeaders: true})
	},
	func(h *wildClient) { // trailers without an end, and data
		id := h.ask("POST", false)
		_ = h.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: h.fields("a", "b"), EndHeaders: true})
		_ = h.WriteData(id, true, h.some())
	},
	func(h *wildClient) { // longer than its length
		id := h.ask("POST", false, "content-length", "10")
		_ = h.WriteData(id, false, make([]byte, 10))
		_ = h.WriteData(id, true, make([]byte, 10))
	},
	func(h *wildClient) { _ = h.WriteData(h.ask("POST", false, "content-length", "7000"), true, h.some()) },
	func(h *wildClient) { _ = h.WriteData(h.ask("GET", true), true, h.some()) },
	func(h *wildClient) { // after the answer
		id := h.ask("GET", true)
		h.begun(id)
		_ = h.WriteDataPadded(id, true, h.some(), make([]byte, 200))
	},
	func(h *wildClient) { // GOAWAY, and more requests
		h.ask("GET", true)
		_ = h.WriteGoAway(0, http2.ErrCodeNo, nil)
		h.ask("GET", true)
	},
	func(h *wildClient) { h.ask("GET", true); _ = h.WriteGoAway(0, http2.ErrCodeInternal, []byte("why")) },
	func(h *wildClient) { h.ask("CONNECT", false); h.ask("GET", true) },
	func(h *wildClient) { // a tunnel by extended CONNECT
		id, _ := h.request("CONNECT")
		block := h.fields(":method", "CONNECT", ":protocol", "websocket", ":scheme", "http", ":path", "/", ":authority", "a", "sec-websocket-version", "13", "x-tag", h.tag(id), "x-size", "1")
		_ = h.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block, EndHeaders: true})
		_ = h.WriteData(id, h.rnd.IntN(2) == 0, h.some())
	},
	func(h *wildClient) { // a stream that has been, and one of the server's
		h.ask("GET", true)
		h.next -= 2
		h.ask("GET", true)
	},
	func(h *wildClient) { h.next++; h.ask("GET", true) },
	func(h *wildClient) { _ = h.WriteRSTStream(h.next+100, http2.ErrCodeCancel) },
	func(h *wildClient) {
		id := h.ask("GET", true)
		_ = h.WritePriority(id, http2.PriorityParam{StreamDep: id})
	},
	func(h *wildClient) { // a body that the client's half of the connection ends
		_ = h.WriteData(h.ask("POST", false), false, h.some())
		_ = h.c.CloseWrite()
	},
	func(h *wildClient) { // half a frame
		id := h.ask("POST", false)
		_, _ = h.c.Write([]byte{0, 100, 0, 0, 0, 0, 0, 0, byte(id), 1, 2, 3})
	},
	func(h *wildClient) {
		h.ask("POST", false)
		_ = h.WriteRawFrame(http2.FrameData, 0, h.next-2, make([]byte, 17<<10))
	},
	func(h *wildClient) {
		_ = h.WriteRawFrame(http2.FramePushPromise, 4, h.ask("GET", true), []byte{0, 0, 0, 2, 0x88})
	},
	func(h *wildClient) { h.c.CloseRead() },
}

// wildConnection makes some requests, does what is not usual, and ends in one of three ways.
func wildConnection(t *testing.T, addr, name string, act int) {
	rnd := rand.New(rand.NewPCG(uint64(act), 13)) //nolint:gosec // for tests
	h := wildDial(t, addr, name, rnd)
	if h == nil {
		return
	}
	for range rnd.IntN(6) {
		if rnd.IntN(2) == 0 {
			h.ask("GET", true)
		} else {
			_ = h.WriteData(h.ask("POST", false), true, h.some())
		}
	}
	wildActs[act%len(wildActs)](h)
	switch rnd.IntN(3) {
	case 0:
		_ = h.c.SetLinger(0)
		fallthrough
	case 1:
		_ = h.c.Close()
	default:
		_ = h.WriteWindowUpdate(0, 1<<24)
		h.ask("GET", true)
		_ = h.c.CloseWrite()
	}
	<-h.ended
	_ = h.c.Close()
}

// wildHandler answers with the request's tag.
func wildHandler(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	tag := r.Header.Get("X-Tag")
	size, _ := strconv.Atoi(r.Header.Get("X-Size"))
	answer := wildAnswer(tag, body, size)
	w.Header().Set("X-Tag", tag)
	if size%2 == 0 {
		w.Header().Set("Trailer", "X-End")
		defer w.Header().Set("X-End", tag)
	}
	for piece := 1 + size%3*5000; len(answer) > piece; piece = max(piece, 1000) {
		_, _ = io.WriteString(w, answer[:piece])
		answer = answer[piece:]
		if size%3 > 0 {
			_ = http.NewResponseController(w).Flush()
		}
	}
	_, _ = io.WriteString(w, answer)
}

// TestClientsOfHTTP2GoWild: whatever clients of HTTP/2 do, each gets nothing of another's answer, honest ones beside them, on
// the same connections to the servers, get all of their own without an error, and nothing is left behind.
func TestClientsOfHTTP2GoWild(t *testing.T) {
	for name, u := range map[string]func() *httpproxy.Upstream{
		"HTTP/1.1": func() *httpproxy.Upstream {
			return newUpstreamWith(t, httpproxy.UpstreamOptions{Settings: wildPool}, serveHTTP(t, wildHandler))
		},
		"HTTP/2": func() *httpproxy.Upstream {
			return newUpstreamWith(t, httpproxy.UpstreamOptions{Settings: wildPool, Protocol: httpproxy.ProtocolH2C}, serveHTTP2(t, wildHandler).addr)
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := startProxy(t, routeTo(u()))
			clients := []*http.Client{clientFor(t, "HTTP/1.1"), clientFor(t, "HTTP/2.0"), clientFor(t, "HTTP/2.0")}
			var honest, wild sync.WaitGroup
			over := make(chan struct{})
			for i := range 3 {
				wild.Go(func() {
					for act := i; ; act += 3 {
						wildConnection(t, p.addr, fmt.Sprintf("wild-%d-%d", i, act), act)
						select {
						case <-over:
							if act > len(wildActs) {
								return
							}
						default:
						}
					}
				})
			}
			for i := range 6 {
				honest.Go(func() {
					rnd := rand.New(rand.NewPCG(uint64(i), 17)) //nolint:gosec // for tests
					for j := range wildRequests / 2 {
						wildRequest(t, clients[i%len(clients)], p.url, fmt.Sprintf("honest-%d-%d", i, j), rnd, true)
					}
				})
			}
			honest.Wait()
			close(over)
			wild.Wait()
			for _, c := range clients {
				c.CloseIdleConnections()
			}
			eventually(t, "all connections of clients end, and their memory is given back", func() bool { s := p.Stats(); return s.Active == 0 && s.Buffered == 0 })
		})
	}
}

// wildPool has a place for each request that waits for its client's window, as those of three wild clients may, and few more, so
// that requests of all clients meet.
var wildPool = upstream.Settings{Limits: pool.Limits{MaxSize: 32, AcquireTimeout: patience}}
