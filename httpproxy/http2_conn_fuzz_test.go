package httpproxy_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/httpwire"
)

// strict is a server that counts requests and everything else.
type strict struct{ requests, malformed atomic.Int64 }

func (s *strict) serve(c net.Conn) {
	var (
		b   []byte
		req httpwire.Request
	)
	more := func() bool {
		p := make([]byte, 4096)
		n, err := c.Read(p)
		b = append(b, p[:n]...)
		return n > 0 && err == nil
	}
	for {
		n, err := req.Parse(b)
		if errors.Is(err, httpwire.ErrMalformed) {
			s.malformed.Add(1)
			return
		}
		if err != nil {
			if !more() {
				return
			}
			continue
		}
		s.requests.Add(1)
		length := req.Length
		b = append([]byte(nil), b[n:]...)
		for length > int64(len(b)) {
			if !more() {
				return
			}
		}
		var chunks httpwire.Chunks
		for done := length != httpwire.Chunked; !done; {
			_, n, done, err = chunks.Next(b)
			b = b[n:]
			switch {
			case errors.Is(err, httpwire.ErrMalformed):
				s.malformed.Add(1)
				return
			case err != nil && !more():
				return
			}
		}
		b = b[max(length, 0):]
		if _, err := io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"); err != nil {
			return
		}
	}
}

// h2Frames are those that f writes.
func h2Frames(f func(fr *http2.Framer, fields func(kv ...string) []byte)) []byte {
	var out, block bytes.Buffer
	coder := hpack.NewEncoder(&block)
	fr := http2.NewFramer(&out, nil)
	fr.AllowIllegalWrites = true
	f(fr, func(kv ...string) []byte {
		block.Reset()
		for i := 0; i < len(kv); i += 2 {
			_ = coder.WriteField(hpack.HeaderField{Name: kv[i], Value: kv[i+1]})
		}
		return bytes.Clone(block.Bytes())
	})
	return out.Bytes()
}

// broken reports whether x/net's reader takes the frames, or the complete field blocks, for a violation that ends the
// connection.
func broken(frames []byte) bool {
	const priorityUpdate = 0x10 // an extension that is ignored here
	var known []byte            // that are whole
	for len(frames) >= 9 {
		n := 9 + int(frames[0])<<16 + int(frames[1])<<8 + int(frames[2])
		if n > len(frames) && n-9 <= 16<<10 {
			break
		}
		if n = min(n, len(frames)); frames[3] != priorityUpdate {
			known = append(known, frames[:n]...)
		}
		frames = frames[n:]
	}
	fr := http2.NewFramer(nil, bytes.NewReader(known))
	fr.SetMaxReadFrameSize(16 << 10)
	decoder := hpack.NewDecoder(4096, nil)
	var block []byte
	for {
		f, err := fr.ReadFrame()
		_, breach := errors.AsType[http2.ConnectionError](err)
		_, ofStream := errors.AsType[http2.StreamError](err)
		switch {
		case breach || errors.Is(err, http2.ErrFrameTooLarge):
			return true
		case ofStream:
			continue
		case err != nil:
			return false
		}
		ends := false
		switch f := f.(type) {
		case *http2.HeadersFrame:
			block, ends = bytes.Clone(f.HeaderBlockFragment()), f.HeadersEnded()
		case *http2.ContinuationFrame:
			block, ends = append(block, f.HeaderBlockFragment()...), f.HeadersEnded()
		}
		if ends {
			if _, err := decoder.DecodeFull(block); err != nil {
				return true
			}
		}
	}
}

// readAnswers reads frames with x/net's reader, in a valid order, to their end. It returns the code of the last GOAWAY.
func readAnswers(t *testing.T, c net.Conn) (code http2.ErrCode) {
	fr := http2.NewFramer(nil, c)
	fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	const begun, ended, reset = 1, 2, 3
	streams := make(map[uint32]int)
	last := uint32(1<<31 - 1)
	for {
		f, err := fr.ReadFrame()
		_, breach := errors.AsType[http2.ConnectionError](err)
		_, ofStream := errors.AsType[http2.StreamError](err)
		switch {
		case breach || ofStream || errors.Is(err, http2.ErrFrameTooLarge):
			t.Errorf("answered with what is no frame: %v", err)
			return code
		case errors.Is(err, os.ErrDeadlineExceeded):
			t.Error("the connection does not end")
			return code
		case err != nil:
			return code
		}
		id, state := f.Header().StreamID, streams[f.Header().StreamID]
		switch f := f.(type) {
		case *http2.GoAwayFrame:
			if code = f.ErrCode; f.LastStreamID > last {
				t.Errorf("GOAWAY names stream %d after %d", f.LastStreamID, last)
			}
			last = f.LastStreamID
		case *http2.MetaHeadersFrame:
			if state >= ended {
				t.Errorf("%v after the end", f)
			}
			if streams[id] = begun; f.StreamEnded() {
				streams[id] = ended
			}
		case *http2.DataFrame:
			if state != begun {
				t.Errorf("%v in state %d", f, state)
			}
			if f.StreamEnded() {
				streams[id] = ended
			}
		case *http2.RSTStreamFrame:
			if state == reset || state == ended && f.ErrCode == http2.ErrCodeInternal {
				t.Errorf("%v in state %d", f, state)
			}
			streams[id] = reset
		case *http2.WindowUpdateFrame:
			if state == reset {
				t.Errorf("%v after a reset", f)
			}
		}
	}
}

// FuzzHTTP2Connection: whatever frames come, the server sees well-formed requests only, and no more than there were
// streams; the answers are frames in order; a client that breaks a rule that x/net's reader knows gets the error; and
// the connection ends when the client has gone.
func FuzzHTTP2Connection(f *testing.F) {
	f.Add(h2Frames(func(fr *http2.Framer, fields func(...string) []byte) {
		_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: fields(plainGet...), EndStream: true, EndHeaders: true})
		_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: fields(plainPost...), EndHeaders: true})
		_ = fr.WriteDataPadded(3, false, []byte("hi"), make([]byte, 3))
		_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: fields("a", "b"), EndStream: true, EndHeaders: true})
		_ = fr.WritePing(false, [8]byte{})
	}))
	f.Add(h2Frames(func(fr *http2.Framer, fields func(...string) []byte) {
		block := fields(append(plainPost, "content-length", "2", "cookie", "a=b", "te", "trailers")...)
		_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block[:3]})
		_ = fr.WriteContinuation(1, true, block[3:])
		_ = fr.WriteData(1, true, []byte("hi"))
		_ = fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1})
		_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: fields(append(plainPost, "content-length", "2")...), EndHeaders: true})
		_ = fr.WriteData(3, false, []byte("hi"))
		_ = fr.WriteWindowUpdate(3, 1)
		_ = fr.WriteData(3, true, []byte("GET / HTTP/1.1\r\n\r\n"))
		_ = fr.WriteRSTStream(3, http2.ErrCodeCancel)
		_ = fr.WriteGoAway(0, http2.ErrCodeNo, nil)
	}))
	var (
		seen    strict
		streams atomic.Int64
	)
	p := startProxy(f, httpproxy.Config{Routes: []httpproxy.Route{{Upstream: newUpstream(f, serveRaw(f, seen.serve))}}})
	f.Fuzz(func(t *testing.T, frames []byte) {
		for b := frames; len(b) >= 9; {
			if b[3] == byte(http2.FrameHeaders) {
				streams.Add(1)
			}
			b = b[min(len(b), 9+int(b[0])<<16+int(b[1])<<8+int(b[2])):]
		}
		c, err := net.Dial("tcp", p.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(patience))
		sent := append([]byte(http2.ClientPreface+"\x00\x00\x00\x04\x00\x00\x00\x00\x00"), frames...)
		_, err = c.Write(sent)
		if err == nil {
			_ = c.(*net.TCPConn).CloseWrite()
		}
		if code := readAnswers(t, c); err == nil && code == http2.ErrCodeNo && broken(sent[len(http2.ClientPreface):]) {
			t.Error("a breach goes unnoticed")
		}
		if n := seen.malformed.Load(); n > 0 {
			t.Errorf("%d malformed requests", n)
		}
		if got, most := seen.requests.Load(), streams.Load(); got > most {
			t.Errorf("%d requests of %d streams", got, most)
		}
	})
}
