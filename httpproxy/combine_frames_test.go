package httpproxy_test

import (
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http2"
)

// combineFrames is a connection of the server "framed", which writes its frames itself: so it can refuse requests, by REFUSED_STREAM or
// GOAWAY, break answers off by any code, and split, pad and delay what it sends. One goroutine uses it.
type combineFrames struct {
	*frames
	s       *combineServers
	rnd     *rand.Rand
	open    map[uint32]*combineStream
	window  int64 // that the gateway grants the connection
	initial int64 // and a stream
	served  int
	last    uint32
	limit   uint32 // streams above are ignored
}

// combineStream is a request, and what of its answer has not been sent.
type combineStream struct {
	c        *combined
	try      *combineTry
	n        int
	req      *http.Request
	body     []byte
	window   int64
	out      []byte
	tunnels  bool // it is an upgraded connection, and out what is said on it
	answers  bool // the answer has begun
	whole    bool // all of it is in out
	trailers []string
	reset    http2.ErrCode // what follows it
	resets   bool
}

// serveFramed starts the server.
func (s *combineServers) serveFramed() string {
	rnd := rand.New(rand.NewPCG(s.round.seed, 2)) //nolint:gosec // for tests
	return serveFrames(s.round.t, func(f *frames) {
		c := &combineFrames{
			frames: f, s: s, rnd: rand.New(rand.NewPCG(s.round.seed, uint64(1000+f.number))), //nolint:gosec // for tests
			open: map[uint32]*combineStream{}, window: 65535, initial: 65535, limit: 1<<31 - 1,
		}
		c.serve()
	}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: pick[uint32](rnd, 900, 65535, 1<<20)}, http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: pick[uint32](rnd, 1, 3, 100)},
		http2.Setting{ID: http2.SettingEnableConnectProtocol, Val: 1})
}

func (f *combineFrames) serve() {
	for f.limit == 1<<31-1 || len(f.open) > 0 {
		frame, err := f.ReadFrame()
		if err != nil {
			return
		}
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				if v, ok := frame.Value(http2.SettingInitialWindowSize); ok {
					for _, st := range f.open {
						st.window += int64(v) - f.initial
					}
					f.initial = int64(v)
				}
				_ = f.WriteSettingsAck()
			}
		case *http2.PingFrame:
			if !frame.IsAck() {
				_ = f.WritePing(true, frame.Data)
			}
		case *http2.WindowUpdateFrame:
			if frame.StreamID == 0 {
				f.window += int64(frame.Increment)
			} else if st := f.open[frame.StreamID]; st != nil {
				st.window += int64(frame.Increment)
			}
		case *http2.RSTStreamFrame:
			delete(f.open, frame.StreamID)
		case *http2.MetaHeadersFrame:
			f.head(frame)
		case *http2.DataFrame:
			f.data(frame)
		case *http2.GoAwayFrame:
			if frame.ErrCode != http2.ErrCodeNo {
				f.s.round.t.Errorf("the gateway ends the connection: %v %s", frame.ErrCode, frame.DebugData())
			}
		}
		f.pump()
	}
	_ = f.Conn.(*net.TCPConn).CloseWrite()
	f.drain()
}

// head is the head of a request, or its trailers.
func (f *combineFrames) head(frame *http2.MetaHeadersFrame) {
	id := frame.StreamID
	if st := f.open[id]; st != nil {
		for _, field := range frame.Fields {
			st.req.Trailer.Add(field.Name, field.Value)
		}
		f.end(id, st)
		return
	}
	if id > f.limit || id <= f.last {
		return
	}
	f.last = id
	st := &combineStream{req: requestOfFields(frame), window: f.initial}
	if st.c = f.s.round.find(st.req.Header.Get("X-Tag")); st.c == nil {
		return
	}
	st.try, st.n = st.c.begin()
	f.s.checkHead(st.c, st.req)
	if want := st.c.serverName(); want != "framed" {
		f.s.round.failed(st.c, "the server framed gets it, not %s", want)
	}
	f.open[id] = st
	if st.req.Header.Get("Expect") != "" && !(st.try.early && st.try.gaveBack()) {
		f.fields(id, false, ":status", "100")
	}
	switch {
	case st.try.early && st.try.gaveBack():
		f.giveBack(id, st)
	case st.try.fault == "early" && !frame.StreamEnded():
		f.answer(id, st)
		st.resets, st.reset = true, http2.ErrCodeNo
	case st.try.duplex && st.try.fault == "" && !frame.StreamEnded():
		f.beginAnswer(id, st)
		st.out = st.out[:len(st.out)/2]
	}
	switch {
	case st.c.upgrades(st.try):
		st.tunnels = true
		head := []string{":status", "200"}
		for _, field := range st.c.agreement(st.n) {
			head = append(head, strings.ToLower(field[0]), field[1])
		}
		f.fields(id, false, head...)
		st.out = []byte(st.c.greeting())
	case frame.StreamEnded() || st.c.upgrade != "" && f.open[id] == st:
		f.end(id, st)
	}
}

// requestOfFields is the head of a request.
func requestOfFields(frame *http2.MetaHeadersFrame) *http.Request {
	req := &http.Request{Proto: "HTTP/2.0", Header: http.Header{}, Trailer: http.Header{}, Method: frame.PseudoValue("method"), Host: frame.PseudoValue("authority")}
	req.URL, _ = url.ParseRequestURI(frame.PseudoValue("path"))
	if protocol := frame.PseudoValue("protocol"); protocol != "" { // the same request as text
		req.Method = http.MethodGet
		req.Header.Set("Upgrade", protocol)
	}
	for _, field := range frame.RegularFields() {
		req.Header.Add(field.Name, field.Value)
	}
	return req
}

// giveBack refuses a request. GOAWAY refuses all that come later, too.
func (f *combineFrames) giveBack(id uint32, st *combineStream) {
	delete(f.open, id)
	if st.try.fault == "refuse" || f.last > id || !f.mayLeave() {
		_ = f.WriteRSTStream(id, http2.ErrCodeRefusedStream)
		return
	}
	f.limit = id - 1
	_ = f.WriteGoAway(f.limit, http2.ErrCodeNo, nil)
}

// data is a part of a body.
func (f *combineFrames) data(frame *http2.DataFrame) {
	if frame.Length > 0 {
		_ = f.WriteWindowUpdate(0, frame.Length)
	}
	st := f.open[frame.StreamID]
	if st == nil {
		return
	}
	if st.tunnels {
		st.out = append(st.out, frame.Data()...)
		st.whole = frame.StreamEnded()
	} else {
		st.body = append(st.body, frame.Data()...)
	}
	if st.tunnels && st.whole {
		return
	}
	if frame.StreamEnded() {
		f.end(frame.StreamID, st)
	} else if frame.Length > 0 {
		_ = f.WriteWindowUpdate(frame.StreamID, frame.Length)
	}
}

// end is for a request that has come whole.
func (f *combineFrames) end(id uint32, st *combineStream) {
	if n := st.req.Header.Get("Content-Length"); n != "" && n != strconv.Itoa(len(st.body)) {
		f.s.round.failed(st.c, "a body of %d bytes has the length %s", len(st.body), n)
	}
	f.s.checkBody(st.c, st.req, st.body, nil)
	switch {
	case st.try.gaveBack():
		f.giveBack(id, st)
	case st.try.fault == "stall":
	case st.try.fault == "reset" || st.try.fault == "close":
		delete(f.open, id)
		_ = f.WriteRSTStream(id, pick(f.rnd, http2.ErrCodeInternal, http2.ErrCodeCancel, http2.ErrCodeProtocol, http2.ErrCodeEnhanceYourCalm, http2.ErrCodeNo))
	default:
		f.answer(id, st)
	}
}

// beginAnswer sends the head of the answer. All of its content is to be sent then.
func (f *combineFrames) beginAnswer(id uint32, st *combineStream) {
	c, try := st.c, st.try
	st.answers = true
	for range try.interims {
		f.fields(id, false, ":status", "103", "link", "</a>; rel=preload", "x-tag", c.tag)
	}
	head := []string{":status", strconv.Itoa(try.status)}
	for _, field := range c.fields(try, st.n, "framed") {
		head = append(head, strings.ToLower(field[0]), field[1])
	}
	st.out = c.content(st.n)
	if try.framing == "length" && (!try.bodiless() || try.status == http.StatusNotModified) {
		head = append(head, "content-length", strconv.Itoa(len(st.out)))
	}
	if try.trailers && !try.bodiless() && c.method != http.MethodHead {
		for _, field := range c.trailing() {
			st.trailers = append(st.trailers, strings.ToLower(field[0]), field[1])
			head = append(head, "trailer", field[0])
		}
	}
	if try.bodiless() || c.method == http.MethodHead {
		st.out = nil
	}
	ends := len(st.out) == 0 && st.trailers == nil && try.framing == "length" && one(f.rnd, 2) && !try.duplex // which states the length 0
	if f.fields(id, ends, head...); ends {
		delete(f.open, id)
	}
}

// answer sends the answer, or what is missing of it.
func (f *combineFrames) answer(id uint32, st *combineStream) {
	if st.answers {
		rest := st.c.content(st.n)
		if st.try.bodiless() || st.c.method == http.MethodHead {
			rest = nil
		}
		st.out = append(slices.Clone(st.out), rest[len(rest)/2:]...)
	} else {
		f.beginAnswer(id, st)
	}
	if st.try.fault == "cut" && len(st.out) > 1 {
		st.out, st.trailers = st.out[:len(st.out)/2], nil
		st.resets, st.reset = true, pick(f.rnd, http2.ErrCodeInternal, http2.ErrCodeCancel, http2.ErrCodeNo, http2.ErrCodeRefusedStream)
	}
	st.whole = true
}

// pump sends what the gateway takes.
func (f *combineFrames) pump() {
	for id, st := range f.open {
		for len(st.out) > 0 && min(f.window, st.window) > 300 {
			n := min(len(st.out), int(f.window)-256, int(st.window)-256, pick(f.rnd, 1, 100, 3000, 16000))
			pad := make([]byte, pick(f.rnd, 0, 0, 0, 200))
			ends := st.whole && n == len(st.out) && st.trailers == nil && !(st.resets && st.try.fault == "cut") && one(f.rnd, 2)
			used := n
			if len(pad) > 0 {
				used += 1 + len(pad)
			}
			_ = f.WriteDataPadded(id, ends, st.out[:n], pad)
			st.out = st.out[n:]
			f.window -= int64(used)
			st.window -= int64(used)
			if ends {
				f.over(id, st)
			}
		}
		if len(st.out) > 0 || !st.whole || f.open[id] == nil {
			continue
		}
		switch {
		case st.resets && st.try.fault == "cut":
		case st.trailers != nil:
			f.fields(id, true, st.trailers...)
		default:
			_ = f.WriteData(id, true, nil)
		}
		f.over(id, st)
	}
}

// mayLeave reports whether the connection may end: not again and again before the same request, which the gateway sends eight times.
func (f *combineFrames) mayLeave() bool { return f.limit == 1<<31-1 && f.served >= 2*combineClients }

// over is for a stream whose answer has been sent.
func (f *combineFrames) over(id uint32, st *combineStream) {
	delete(f.open, id)
	if st.resets {
		_ = f.WriteRSTStream(id, st.reset)
	}
	if f.served++; st.try.closes && f.mayLeave() {
		f.limit = f.last
		_ = f.WriteGoAway(f.last, http2.ErrCodeNo, nil)
	}
}
