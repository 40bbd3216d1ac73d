package httpproxy

import (
	"encoding/binary"
	"time"
)

// frame reads a frame and handles it. The error is an h2Code if the client has broken a rule.
func (h *http2) frame() error {
	if err := h.need(1); err != nil { // which may take its time
		return err
	}
	if h.begun.IsZero() {
		h.begun = h.heard
	}
	if err := h.need(frameHead); err != nil {
		return err
	}
	b := h.in.upTo(frameHead)
	n := int(b[0])<<16 | int(b[1])<<8 | int(b[2])
	kind, flags, id := b[3], b[4], binary.BigEndian.Uint32(b[5:])&(1<<31-1)
	h.in.take(frameHead)
	switch {
	case n > maxFrame:
		return codeSize
	case !h.settled && kind != frameSettings:
		return codeProtocol
	case h.blockOf != 0 && (kind != frameContinuation || id != h.blockOf):
		return codeProtocol
	case kind == frameData:
		return h.data(id, n, flags)
	}
	h.content = h.content[:0]
	for n > 0 {
		if err := h.need(1); err != nil {
			return err
		}
		piece := h.in.upTo(n)
		h.content = append(h.content, piece...)
		n -= len(piece)
		h.in.take(len(piece))
	}
	err := h.act(kind, flags, id, h.content)
	if cap(h.content) > 1<<10 {
		h.content = nil
	}
	return err
}

// act handles a frame other than DATA.
func (h *http2) act(kind, flags byte, id uint32, b []byte) error {
	switch kind {
	case frameHeaders:
		return h.headers(flags, id, b)
	case frameContinuation:
		if h.blockOf == 0 {
			return codeProtocol
		}
		return h.fragment(b, flags&flagEndHeaders != 0)
	case framePriority:
		if id == 0 {
			return codeProtocol
		}
		return sized(b, 5)
	case frameReset:
		if id == 0 || id > h.last {
			return codeProtocol
		}
		if err := sized(b, 4); err != nil {
			return err
		}
		return h.reset(id)
	case frameSettings:
		return h.settings(flags, id, b)
	case framePushPromise:
		return codeProtocol
	case framePing:
		return h.ping(flags, id, b)
	case frameGoAway:
		if len(b) < 8 {
			return codeSize
		}
		if id != 0 {
			return codeProtocol
		}
		return nil // it will close the connection when it has its answers
	case frameWindow:
		return h.windowUpdate(id, b)
	}
	return nil // of an extension
}

func sized(b []byte, n int) error {
	if len(b) != n {
		return codeSize
	}
	return nil
}

// unpad takes the padding off (RFC 9113, section 6.1).
func unpad(flags byte, b []byte) ([]byte, error) {
	if flags&flagPadded == 0 {
		return b, nil
	}
	if len(b) == 0 || int(b[0]) >= len(b) {
		return nil, codeProtocol
	}
	return b[1 : len(b)-int(b[0])], nil
}

func (h *http2) headers(flags byte, id uint32, b []byte) error {
	if id%2 == 0 {
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
	h.blockOf, h.blockEnds, h.fragments, h.block = id, flags&flagEndStream != 0, 0, h.block[:0]
	return h.fragment(b, flags&flagEndHeaders != 0)
}

// fragment takes a piece of a block; with the last one it acts on it.
func (h *http2) fragment(b []byte, last bool) error {
	h.block = append(h.block, b...)
	if h.fragments++; h.fragments > maxFragments || len(h.block) > maxBlock*h.limits.head {
		return codeCalm
	}
	if !last {
		return nil
	}
	id := h.blockOf
	h.blockOf = 0
	h.mu.Lock()
	st := h.streams[id]
	h.mu.Unlock()
	h.fields.reset(id <= h.last)
	if _, err := h.decoder.Write(h.block); err != nil {
		return codeCompression
	}
	if h.decoder.Close() != nil {
		return codeCompression
	}
	if cap(h.block) > bufferSize {
		h.block = nil
	}
	switch {
	case id > h.last:
		h.skipped = h.skipped || id != h.last+2 && id != 1
		h.last = id
		return h.open(id, h.blockEnds)
	case st == nil:
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.stray(id, h.blockEnds)
	}
	return h.trailers(st)
}

// trailers ends a request's body.
func (h *http2) trailers(st *h2Stream) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch over, ended := st.over(h.blockEnds); {
	case over && ended:
		return codeClosed
	case over:
		return nil
	case ended:
		return h.abort(st, codeClosed)
	case !h.blockEnds || h.fields.bad || h.fields.large || st.left > 0:
		return h.abort(st, codeProtocol)
	}
	st.complete(h.fields.fields)
	return nil
}

// over reports whether the stream is over on this side, and whether the client had ended it. ends: it does so now. mu
// is held.
func (st *h2Stream) over(ends bool) (over, ended bool) {
	over, ended = st.err != nil || st.finished, st.ended
	if over && ends {
		st.ended = true
		st.reader.wake()
	}
	return over, ended
}

// complete ends the request; mu is held.
func (st *h2Stream) complete(trailers []byte) {
	st.h2Content.complete(trailers)
	st.ended = true
	st.reader.wake()
}

// data passes a piece of body on as it comes.
func (h *http2) data(id uint32, n int, flags byte) error {
	if id == 0 || id > h.last {
		return codeProtocol
	}
	padding := 0
	if flags&flagPadded != 0 {
		if n == 0 {
			return codeSize
		}
		if err := h.need(1); err != nil {
			return err
		}
		if padding = int(h.in.bytes()[0]); padding >= n {
			return codeProtocol
		}
		h.in.take(1)
		padding++ // with its length
	}
	ends := flags&flagEndStream != 0
	st, err := h.body(id, n, n-padding, ends)
	if err != nil {
		return err
	}
	h.begun, h.pouring = time.Time{}, true // the stream's session looks after how long a body takes
	defer func() { h.pouring = false }()
	if err := h.pour(st, n-padding, ends); err != nil {
		return err
	}
	return h.pour(nil, padding-1, false)
}

// body returns the stream of a DATA frame of n bytes with that much content; nil = its content is dropped.
func (h *http2) body(id uint32, n, content int, ends bool) (*h2Stream, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.taken += int64(n); h.taken > h2AllWindow {
		return nil, codeFlow
	}
	st := h.streams[id]
	if st == nil {
		return nil, h.stray(id, ends)
	}
	over, ended := st.over(ends)
	switch {
	case over && ended:
		return nil, codeClosed
	case over:
		if st.lingers {
			st.spent += int64(n)
			st.giveBack()
		}
		return nil, nil
	case ended:
		return nil, h.abort(st, codeClosed)
	case int64(n) > h2Window+st.extra-st.spent-int64(st.in.size()):
		return nil, h.abort(st, codeFlow)
	case st.left >= 0 && int64(content) > st.left:
		return nil, h.abort(st, codeProtocol)
	case st.left >= 0:
		st.left -= int64(content)
	}
	st.spent += int64(n - content) // padding belongs to no stream
	st.giveBack()
	return st, nil
}

// pour takes n bytes and appends them to the body of st; nil drops them.
func (h *http2) pour(st *h2Stream, n int, ends bool) error {
	for n > 0 {
		if err := h.need(1); err != nil {
			return err
		}
		piece := h.in.upTo(n)
		if st != nil {
			st.put(piece)
		}
		n -= len(piece)
		h.in.take(len(piece))
	}
	if st == nil || !ends {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if st.left > 0 {
		return h.abort(st, codeProtocol)
	}
	st.complete(nil)
	return nil
}

// put takes a piece of the request's body.
func (st *h2Stream) put(piece []byte) {
	st.h.mu.Lock()
	defer st.h.mu.Unlock()
	if st.err == nil {
		st.in.put(piece)
		st.reader.wake()
	}
}

func (h *http2) settings(flags byte, id uint32, b []byte) error {
	switch {
	case id != 0:
		return codeProtocol
	case flags&flagAck != 0:
		if len(b) != 0 || !h.settled {
			return codeSize
		}
		return nil
	case len(b)%6 != 0:
		return codeSize
	}
	h.settled = true
	h.mu.Lock()
	defer h.mu.Unlock()
	for ; len(b) > 0; b = b[6:] {
		if err := h.setting(binary.BigEndian.Uint16(b), binary.BigEndian.Uint32(b[2:])); err != nil {
			return err
		}
	}
	h.out = appendFrame(h.outgoing(), 0, frameSettings, flagAck, 0)
	h.widened = true
	return h.control()
}

// setting takes one over. mu is held.
func (h *http2) setting(id uint16, value uint32) error {
	switch id {
	case settingPush:
		if value > 1 {
			return codeProtocol
		}
	case settingFrame: // larger frames are not used
		if value < maxFrame || value >= 1<<24 {
			return codeProtocol
		}
	case settingWindow:
		if value > maxWindow || h.overflows(int64(value)) {
			return codeFlow
		}
		h.initial = int64(value) // part of each stream's window
	}
	return nil
}

// overflows reports whether an initial window makes that of a stream larger than may be (RFC 9113, section 6.9.2). mu is held.
func (h *http2) overflows(initial int64) bool {
	if initial+h.widest <= maxWindow {
		return false
	}
	h.widest = 0
	for _, st := range h.streams {
		if st.err == nil {
			h.widest = max(h.widest, st.window)
		}
	}
	return initial+h.widest > maxWindow
}

func (h *http2) ping(flags byte, id uint32, b []byte) error {
	switch {
	case id != 0:
		return codeProtocol
	case len(b) != 8:
		return codeSize
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if flags&flagAck == 0 {
		h.out = append(appendFrame(h.outgoing(), 8, framePing, flagAck, 0), b...)
		return h.control()
	}
	if !h.leaving.IsZero() && !h.gone && string(b) == goodbye {
		h.goAway(codeNone)
	}
	return nil
}

func (h *http2) windowUpdate(id uint32, b []byte) error {
	if len(b) != 4 {
		return codeSize
	}
	n := int64(binary.BigEndian.Uint32(b) & maxWindow)
	if id > h.last || n == 0 && id == 0 {
		return codeProtocol
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if id == 0 {
		if h.window += n; h.window > maxWindow {
			return codeFlow
		}
		h.widened = true
		return nil
	}
	st := h.streams[id]
	if st == nil {
		return nil
	}
	st.window += n
	h.widest = max(h.widest, st.window)
	h.widened = true
	switch {
	case n == 0:
		return h.abort(st, codeProtocol)
	case h.initial+st.window > maxWindow:
		return h.abort(st, codeFlow)
	}
	return nil
}
