package httpproxy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/headpond/headpond/httpwire"
)

// errNotFrames: what the server says first is HTTP/1.
var errNotFrames = errors.New("the server answers in HTTP/1: it does not speak HTTP/2 here")

// frame reads a frame and does what it says. The error is an h2Code if the server has broken a rule of the connection. by is as fill has
// it.
func (c *h2Server) frame(by time.Time) error {
	if err := c.need(frameHead, by); err != nil {
		return err
	}
	b := c.in.upTo(frameHead)
	n := int(b[0])<<16 | int(b[1])<<8 | int(b[2])
	kind, flags, id := b[3], b[4], binary.BigEndian.Uint32(b[5:])&(1<<31-1)
	if !c.settled && (kind != frameSettings || flags&flagAck != 0) {
		if strings.HasPrefix(string(b), "HTTP/1.") {
			return errNotFrames
		}
		return codeProtocol
	}
	c.in.take(frameHead)
	switch {
	case n > maxFrame:
		return codeSize
	case c.blockOf != 0 && (kind != frameContinuation || id != c.blockOf):
		return codeProtocol
	case kind == frameData:
		return c.data(id, n, flags)
	}
	if b = c.in.bytes(); len(b) >= n { // as nearly always
		err := c.act(kind, flags, id, b[:n])
		c.in.take(n)
		return err
	}
	if err := c.gather(n, by); err != nil {
		return err
	}
	err := c.act(kind, flags, id, c.content)
	c.content = nil
	return err
}

// gather reads n bytes that come in pieces. by is as fill has it.
func (c *h2Server) gather(n int, by time.Time) error {
	c.content = make([]byte, 0, n)
	for n > 0 {
		if err := c.need(1, by); err != nil {
			return err
		}
		piece := c.in.upTo(n)
		c.content = append(c.content, piece...)
		n -= len(piece)
		c.in.take(len(piece))
	}
	return nil
}

// act does what a frame says that is no DATA.
func (c *h2Server) act(kind, flags byte, id uint32, b []byte) error {
	switch kind {
	case frameHeaders:
		return c.headers(flags, id, b)
	case frameContinuation:
		if c.blockOf == 0 {
			return codeProtocol
		}
		return c.fragment(b, flags&flagEndHeaders != 0)
	case framePriority:
		if id == 0 {
			return codeProtocol
		}
		return sized(b, 5)
	case frameReset:
		return c.reset(id, b)
	case frameSettings:
		return c.settings(flags, id, b)
	case framePushPromise: // which SETTINGS forbid
		return codeProtocol
	case framePing:
		return c.ping(flags, id, b)
	case frameGoAway:
		return c.goAway(id, b)
	case frameWindow:
		return c.windowUpdate(id, b)
	}
	return nil // of an extension
}

// begun reports whether there was such a stream. mu is held.
func (c *h2Server) begun(id uint32) bool { return id%2 == 1 && id < c.next }

func (c *h2Server) headers(flags byte, id uint32, b []byte) error {
	c.mu.Lock()
	begun := c.begun(id)
	c.mu.Unlock()
	if !begun {
		return codeProtocol
	}
	b, err := unpad(flags, b)
	if err != nil {
		return err
	}
	if flags&flagPriority != 0 {
		if len(b) < 5 {
			return codeSize
		}
		b = b[5:]
	}
	c.blockOf, c.blockEnds, c.fragments, c.block = id, flags&flagEndStream != 0, 0, c.block[:0]
	return c.fragment(b, flags&flagEndHeaders != 0)
}

// fragment takes a piece of a block; with the last one it acts on it.
func (c *h2Server) fragment(b []byte, last bool) error {
	if c.fragments++; c.fragments > maxFragments || len(c.block)+len(b) > maxBlock*maxResponseHead {
		return codeCalm
	}
	if c.fragments > 1 || !last { // c.block has memory of its own: b is in a buffer that others get
		c.block = append(c.block, b...)
		b = c.block
	}
	if !last {
		return nil
	}
	id := c.blockOf
	c.blockOf = 0
	c.head.reset()
	if _, err := c.decoder.Write(b); err != nil || c.decoder.Close() != nil {
		return codeCompression
	}
	if cap(c.block) > bufferSize {
		c.block = nil
	}
	c.answered = true
	c.mu.Lock()
	defer c.mu.Unlock()
	st := c.streams[id]
	if st == nil { // it was reset
		return nil
	}
	if why := st.take(&c.head, c.blockEnds); why != "" {
		return c.abort(st, codeProtocol, why)
	}
	return nil
}

// take takes a block of the server's; why says what is wrong with it. mu is held.
func (st *h2Place) take(b *h2Answer, ends bool) (why string) {
	switch {
	case st.ended:
		return "fields after the end"
	case b.large:
		return fmt.Sprintf("a head of more than %d bytes", maxResponseHead)
	case b.bad:
		return "a malformed head"
	case st.answered: // trailers
		if b.status != 0 || !ends || b.length >= 0 || st.left > 0 {
			return "malformed trailers"
		}
		st.complete(b.fields)
		return ""
	case b.status == 0:
		return "a head without a status"
	}
	final := b.status >= 200
	bare := st.head || b.status == 204 || b.status == 304
	if !final && (ends || b.length >= 0) || ends && !bare && b.length > 0 {
		return "a head that contradicts its framing"
	}
	if len(st.framing) > maxResponseHead {
		return "more interim heads than anybody reads"
	}
	if len(st.framing) == 0 {
		st.framing = st.text1[:0]
	}
	chunked := false
	st.framing, chunked = b.appendHTTP1(st.framing, ends, st.head)
	if st.text1 = st.framing; cap(st.text1) > bufferSize {
		st.text1 = nil
	}
	if final {
		st.answered, st.chunked, st.left = true, chunked, b.length
		if bare {
			st.left = 0
		}
		if ends {
			st.complete(nil)
		}
	}
	st.reader.wake()
	return ""
}

// complete ends the response; mu is held.
func (st *h2Place) complete(trailers []byte) {
	st.h2Content.complete(trailers)
	st.ended = true
	st.reader.wake()
	if st.sentEnd {
		st.c.forget(st)
	}
}

// abort resets a stream for what the server did on it. mu is held.
func (c *h2Server) abort(st *h2Place, code h2Code, why string) error {
	c.out = appendReset(c.outgoing(), st.id, code)
	c.forget(st)
	st.err = fmt.Errorf("%w: %s", httpwire.ErrMalformed, why)
	st.wake()
	c.writer.wake()
	return c.control()
}

// data passes a piece of body on as it comes.
func (c *h2Server) data(id uint32, n int, flags byte) error {
	padding := 0
	if flags&flagPadded != 0 {
		if n == 0 {
			return codeSize
		}
		if err := c.need(1, time.Time{}); err != nil {
			return err
		}
		if padding = int(c.in.bytes()[0]); padding >= n {
			return codeProtocol
		}
		c.in.take(1)
		padding++ // with its length
	}
	c.answered = true
	ends := flags&flagEndStream != 0
	st, err := c.body(id, n, n-padding, ends)
	if err != nil {
		return err
	}
	if err := c.pour(st, n-padding, ends); err != nil {
		return err
	}
	return c.pour(nil, padding-1, false)
}

// body finds out to whom a DATA frame of n bytes with that much content goes; nil = nobody wants it.
func (c *h2Server) body(id uint32, n, content int, ends bool) (*h2Place, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.begun(id) {
		return nil, codeProtocol
	}
	if c.taken += int64(n); c.taken > h2AllWindow {
		return nil, codeFlow
	}
	if c.taken >= h2AllWindow/4 {
		c.writer.wake()
	}
	st := c.streams[id]
	switch {
	case st == nil: // it was reset
		return nil, nil
	case st.ended:
		return nil, c.abort(st, codeClosed, "content after the end")
	case !st.answered:
		return nil, c.abort(st, codeProtocol, "content before the head")
	case int64(n) > h2Window+st.extra-st.spent-int64(st.in.size()):
		return nil, c.abort(st, codeFlow, "more content than its window allows")
	case st.left >= 0 && (int64(content) > st.left || ends && int64(content) < st.left):
		return nil, c.abort(st, codeProtocol, "content of another length than was said")
	case st.left >= 0:
		st.left -= int64(content)
	}
	st.spent += int64(n - content) // padding is nobody's
	st.giveBack()
	return st, nil
}

// pour takes n bytes and appends them to what st is to read; nil = nobody reads them.
func (c *h2Server) pour(st *h2Place, n int, ends bool) error {
	for n > 0 {
		if err := c.need(1, time.Time{}); err != nil {
			return err
		}
		piece := c.in.upTo(n)
		n -= len(piece)
		st.put(piece, ends && n == 0)
		c.in.take(len(piece))
		if n == 0 {
			return nil
		}
	}
	st.put(nil, ends)
	return nil
}

// put takes a piece of the response's body, the last one if it ends there.
func (st *h2Place) put(piece []byte, ends bool) {
	if st == nil {
		return
	}
	st.c.mu.Lock()
	defer st.c.mu.Unlock()
	if !st.open {
		return
	}
	st.in.put(piece)
	if !st.chunked && st.left == 0 && st.in.size() > 0 {
		st.held = 1 // so that nobody takes the response for whole before the stream is
	}
	if ends {
		st.complete(nil)
		return
	}
	if len(piece) > 0 {
		st.reader.wake()
	}
}

// reset ends a stream as the server wants.
func (c *h2Server) reset(id uint32, b []byte) error {
	if err := sized(b, 4); err != nil {
		return err
	}
	code := h2Code(binary.BigEndian.Uint32(b))
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.begun(id) {
		return codeProtocol
	}
	st := c.streams[id]
	if st == nil {
		return nil
	}
	c.forget(st)
	if code == codeRefused && !st.answered {
		c.count(streamsRefused)
		st.refused = true
		st.fail(errRefused)
		return nil
	}
	st.fail(fmt.Errorf("%w (%w)", errServerReset, code))
	return nil
}

func (c *h2Server) settings(flags byte, id uint32, b []byte) error {
	switch {
	case id != 0:
		return codeProtocol
	case flags&flagAck != 0:
		return sized(b, 0)
	case len(b)%6 != 0:
		return codeSize
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for ; len(b) > 0; b = b[6:] {
		if err := c.setting(binary.BigEndian.Uint16(b), binary.BigEndian.Uint32(b[2:])); err != nil {
			return err
		}
	}
	c.settled = true
	c.out = appendFrame(c.outgoing(), 0, frameSettings, flagAck, 0)
	c.widened = true
	c.writer.wake()
	return c.control()
}

// setting takes one over. mu is held.
func (c *h2Server) setting(id uint16, value uint32) error {
	switch id {
	case settingPush: // which is not for servers to say
		if value != 0 {
			return codeProtocol
		}
	case settingStreams:
		c.most = int(min(value, uint32(c.g.o.most)))
	case settingFrame: // more than everybody takes is not used
		if value < maxFrame || value >= 1<<24 {
			return codeProtocol
		}
	case settingWindow:
		if value > maxWindow || c.overflows(int64(value)) {
			return codeFlow
		}
		c.initial = int64(value) // part of each stream's window
	}
	return nil
}

// overflows reports whether an initial window makes that of a stream larger than may be (RFC 9113, section 6.9.2). mu is held.
func (c *h2Server) overflows(initial int64) bool {
	for _, st := range c.streams {
		if initial+st.window > maxWindow {
			return true
		}
	}
	return false
}

// control is called after each answer to something that the server may send without end. mu is held.
func (c *h2Server) control() error {
	if c.owed++; c.owed > maxOwed {
		return codeCalm
	}
	return nil
}

func (c *h2Server) ping(flags byte, id uint32, b []byte) error {
	switch {
	case id != 0:
		return codeProtocol
	case len(b) != 8:
		return codeSize
	case flags&flagAck != 0:
		return nil // it has been heard
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out = append(appendFrame(c.outgoing(), 8, framePing, flagAck, 0), b...)
	c.writer.wake()
	return c.control()
}

// goAway has the streams end that the server has begun to serve; the others are for another connection.
func (c *h2Server) goAway(id uint32, b []byte) error {
	if len(b) < 8 {
		return codeSize
	}
	if id != 0 {
		return codeProtocol
	}
	last := binary.BigEndian.Uint32(b) & maxStream
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.dismissed {
		c.count(connsLeft)
	}
	c.gone, c.dismissed = true, true
	for id, st := range c.streams {
		if id > last {
			c.forget(st)
			st.refused = !st.answered
			st.fail(errNotBegun)
		}
	}
	return nil
}

func (c *h2Server) windowUpdate(id uint32, b []byte) error {
	if err := sized(b, 4); err != nil {
		return err
	}
	n := int64(binary.BigEndian.Uint32(b) & maxWindow)
	c.mu.Lock()
	defer c.mu.Unlock()
	if id == 0 {
		if c.window += n; n == 0 {
			return codeProtocol
		} else if c.window > maxWindow {
			return codeFlow
		}
		c.widened = true
		return nil
	}
	if !c.begun(id) {
		return codeProtocol
	}
	st := c.streams[id]
	if st == nil {
		return nil
	}
	st.window += n
	c.widened = true
	switch {
	case n == 0:
		return c.abort(st, codeProtocol, "a window of nothing")
	case c.initial+st.window > maxWindow:
		return c.abort(st, codeFlow, "a window beyond all")
	}
	return nil
}
