package httpproxy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/headpond/headpond/httpwire"
)

// errNotFrames: the server's first bytes are HTTP/1.
var errNotFrames = errors.New("the server answers in HTTP/1: it does not speak HTTP/2 here")

// notSettings implements h2Side.
func (c *h2Server) notSettings(head []byte) error {
	if strings.HasPrefix(string(head), "HTTP/1.") {
		return errNotFrames
	}
	return codeProtocol
}

// begun reports whether the stream has ever begun. mu is held.
func (c *h2Server) begun(id uint32) bool { return id%2 == 1 && id < c.next }

// begins implements h2Side.
func (c *h2Server) begins(id uint32) (trails bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.begun(id) {
		return false, codeProtocol
	}
	return false, nil
}

// handleHead implements h2Side: it passes the block to the stream.
func (c *h2Server) handleHead(id uint32, ends bool) error {
	c.answered = true
	c.mu.Lock()
	defer c.mu.Unlock()
	st := c.streams[id]
	if st == nil { // it was reset
		return nil
	}
	if why := st.take(&c.head, ends); why != "" {
		return c.abort(st, codeProtocol, why)
	}
	return nil
}

// take handles a field block of the response; why says what is wrong with it. mu is held.
func (st *h2Place) take(b *h2Head, ends bool) (why string) {
	switch {
	case st.ended:
		return "fields after the end"
	case b.large:
		return fmt.Sprintf("a head of more than %d bytes", maxResponseHead)
	case b.bad:
		return "a malformed head"
	case st.answered: // trailers
		if st.tunnels || b.status != 0 || !ends || b.length >= 0 || st.left > 0 {
			return "malformed trailers"
		}
		st.complete(b)
		return ""
	case b.status == 0:
		return "a head without a status"
	}
	final := b.status >= 200
	bare := st.head || b.status == 204 || b.status == 304 || st.tunnels && b.status < 300
	if !final && (ends || b.length >= 0) || ends && !bare && b.length > 0 {
		return "a head that contradicts its framing"
	}
	if st.unread += b.size; st.unread > maxUnread {
		return "more interim heads than anybody reads"
	}
	if len(st.heads) > 0 {
		st.headText = nil // an unread head refers to it
	}
	st.tunnels = st.tunnels && (!final || b.status < 300)
	lengthless := b.response(st.nextHead(), &st.headText, ends, st.head || st.tunnels)
	switch {
	case final && st.tunnels:
		if st.answered, st.lengthless, st.left = true, false, -1; ends {
			st.complete(nil)
		}
	case final:
		st.answered, st.lengthless, st.left = true, lengthless, b.length
		if bare {
			st.left = 0
		}
		if ends {
			st.complete(nil)
		}
	}
	st.wakeReader()
	return ""
}

// complete ends the response; b holds its trailers, nil = none. mu is held.
func (st *h2Place) complete(b *h2Head) {
	st.h2Content.complete(b)
	st.ended = true
	st.wakeReader()
	if st.parked != nil {
		st.c.completed = st
	}
	if st.sentEnd {
		st.c.forget(st)
	}
}

// abort resets a stream because the server broke a rule. mu is held.
func (c *h2Server) abort(st *h2Place, code h2Code, why string) error {
	c.out = appendReset(c.outgoing(), st.id, code)
	c.forget(st)
	st.err = fmt.Errorf("%w: %s", httpwire.ErrMalformed, why)
	st.wake()
	c.writer.wake()
	return c.control()
}

// body implements h2Side.
func (c *h2Server) body(id uint32, n, content int, ends bool) (h2Pourer, error) {
	c.answered = true
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
	st.spent += int64(n - content) // padding belongs to no stream
	st.returnCredit()
	if ends && content <= maxAhead {
		c.arriving = st
	}
	return st, nil
}

// put adds a piece of the response's body.
func (st *h2Place) put(piece []byte, ends bool) error {
	st.c.mu.Lock()
	defer st.c.mu.Unlock()
	if !st.open {
		return nil
	}
	st.in.put(piece)
	if !st.lengthless && st.left == 0 && st.in.size() > 0 {
		st.held = 1 // so that the response does not count as complete before its stream does
	}
	if ends {
		st.complete(nil)
	} else {
		st.wakeReader()
	}
	return nil
}

// handleReset implements h2Side.
func (c *h2Server) handleReset(id uint32, b []byte) error {
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

// settings implements h2Side.
func (c *h2Server) settings(b []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for ; len(b) > 0; b = b[6:] {
		if err := c.setting(binary.BigEndian.Uint16(b), binary.BigEndian.Uint32(b[2:])); err != nil {
			return err
		}
	}
	c.usable = true
	c.out = appendFrame(c.outgoing(), 0, frameSettings, flagAck, 0)
	c.widened = true
	c.writer.wake()
	return c.control()
}

// setting applies one setting. mu is held.
func (c *h2Server) setting(id uint16, value uint32) error {
	if err := validSetting(id, value); err != nil {
		return err
	}
	switch id {
	case settingPush: // only clients may send it
		if value != 0 {
			return codeProtocol
		}
	case settingConnect:
		c.connects = c.connects || value == 1 // it must not be taken back
	case settingStreams:
		c.most = int(min(value, uint32(c.g.o.most)))
	case settingWindow:
		if c.overflows(int64(value)) {
			return codeFlow
		}
		c.initial = int64(value) // part of each stream's window
	}
	return nil
}

// overflows reports whether an initial window makes that of a stream too large (RFC 9113, section 6.9.2). mu is held.
func (c *h2Server) overflows(initial int64) bool {
	for _, st := range c.streams {
		if initial+st.window > maxWindow {
			return true
		}
	}
	return false
}

// control counts an answer to a frame that the server may repeat without end. mu is held.
func (c *h2Server) control() error {
	if c.controls++; c.controls > maxControls {
		return codeCalm
	}
	return nil
}

// ping implements h2Side.
func (c *h2Server) ping(acknowledges bool, b []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if acknowledges {
		if !c.asked.IsZero() { // the PONG says nothing about a request sent after the PING
			c.asked = c.lastRead.Add(1)
		}
		return nil
	}
	c.out = append(appendFrame(c.outgoing(), 8, framePing, flagAck, 0), b...)
	c.writer.wake()
	return c.control()
}

// handleGoAway lets the streams end that the server will process. The others are retried on other connections.
func (c *h2Server) handleGoAway(b []byte) error {
	last := binary.BigEndian.Uint32(b) & maxStream
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.goAwayReceived {
		c.count(connsLeft)
	}
	c.closing, c.goAwayReceived = true, true
	for id, st := range c.streams {
		if id > last {
			c.forget(st)
			st.refused = !st.answered
			st.fail(errNotBegun)
		}
	}
	return nil
}

// windowUpdate implements h2Side.
func (c *h2Server) windowUpdate(id uint32, b []byte) error {
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
