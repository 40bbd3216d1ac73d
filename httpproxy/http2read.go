package httpproxy

import "encoding/binary"

// notSettings implements h2Side.
func (h *http2) notSettings([]byte) error { return codeProtocol }

// begins implements h2Side.
func (h *http2) begins(id uint32) (trails bool, err error) {
	if id%2 == 0 {
		return false, codeProtocol
	}
	return id <= h.last, nil
}

// handleGoAway implements h2Side: the client will close the connection when it has its answers.
func (h *http2) handleGoAway([]byte) error { return nil }

// handleHead begins a stream, or ends a request's body.
func (h *http2) handleHead(id uint32, ends bool) error {
	if id > h.last {
		h.skipped = h.skipped || id != h.last+2 && id != 1
		h.last = id
		return h.open(id, ends)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if st := h.streams[id]; st != nil {
		return h.trailers(st)
	}
	return h.stray(id, ends)
}

// trailers ends a request's body. mu is held.
func (h *http2) trailers(st *h2Stream) error {
	switch over, ended := st.endState(h.blockEnds); {
	case over && ended:
		return codeClosed
	case over:
		return nil
	case ended:
		return h.abort(st, codeClosed)
	case !h.blockEnds || h.head.bad || h.head.large || st.left > 0 || st.tunnels:
		return h.abort(st, codeProtocol)
	}
	st.complete(&h.head)
	return nil
}

// ended reports whether the stream has ended here, and whether the client had ended it. ends: it does so now. mu is held.
func (st *h2Stream) endState(ends bool) (over, ended bool) {
	over, ended = st.err != nil || st.finished && !st.tunnels, st.ended
	if over && ends {
		st.ended = true
		st.reader.wake()
	}
	return over, ended
}

// complete ends the request; b holds its trailers, nil = none. mu is held.
func (st *h2Stream) complete(b *h2Head) {
	st.h2Content.complete(b)
	st.ended = true
	if st.waitsForBody {
		st.h.completed = st
	}
	st.bodyArrived()
	if st.finished { // a tunnel, of which this is the second end
		st.deactivate()
	}
	st.reader.wake()
}

// body implements h2Side.
func (h *http2) body(id uint32, n, content int, ends bool) (h2Pourer, error) {
	if id == 0 || id > h.last {
		return nil, codeProtocol
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.taken += int64(n); h.taken > h2AllWindow {
		return nil, codeFlow
	}
	st := h.streams[id]
	if st == nil {
		return nil, h.stray(id, ends)
	}
	over, ended := st.endState(ends)
	switch {
	case over && ended:
		return nil, codeClosed
	case over:
		if st.lingers {
			st.spent += int64(n)
			st.returnCredit()
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
	st.returnCredit()
	return st, nil
}

// put adds a piece of the request's body.
func (st *h2Stream) put(piece []byte, ends bool) error {
	h := st.h
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.streams[st.id] != st {
		return nil // the stream ended while the frame arrived, and may be another request's next
	}
	switch {
	case st.drops:
		st.spent += int64(len(piece))
		st.returnCredit()
	case st.err == nil:
		st.in.put(piece)
		st.content += int64(len(piece))
		st.reader.wake()
	}
	switch {
	case !ends:
		return nil
	case st.left > 0:
		return h.abort(st, codeProtocol)
	}
	st.complete(nil)
	return nil
}

// settings implements h2Side.
func (h *http2) settings(b []byte) error {
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

// setting applies one setting. mu is held.
func (h *http2) setting(id uint16, value uint32) error {
	if err := validSetting(id, value); err != nil {
		return err
	}
	switch id {
	case settingPush:
		if value > 1 {
			return codeProtocol
		}
	case settingWindow:
		if h.overflows(int64(value)) {
			return codeFlow
		}
		h.initial = int64(value) // part of each stream's window
	}
	return nil
}

// overflows reports whether an initial window makes that of a stream too large (RFC 9113, section 6.9.2). mu is held.
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

// ping implements h2Side.
func (h *http2) ping(acknowledges bool, b []byte) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !acknowledges {
		h.out = append(appendFrame(h.outgoing(), 8, framePing, flagAck, 0), b...)
		return h.control()
	}
	if !h.drainBegan.IsZero() && !h.closing && string(b) == drainPing {
		h.goAway(codeNone)
	}
	return nil
}

// windowUpdate implements h2Side.
func (h *http2) windowUpdate(id uint32, b []byte) error {
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
