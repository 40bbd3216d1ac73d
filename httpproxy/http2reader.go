package httpproxy

import (
	"encoding/binary"
	"time"
)

// h2Side is what connections to clients and to servers do differently with received frames. Only the connection's reader
// calls its methods. Errors end the connection; an h2Code if the peer has broken a rule.
type h2Side interface {
	// fill reads once, into h2Reader.in.
	fill() error
	// notSettings returns the error of a connection that does not begin with SETTINGS; head is its first frame's header.
	notSettings(head []byte) error
	// begins checks that a field block may begin on a stream; trails: it holds trailers.
	begins(id uint32) (trails bool, err error)
	// handleHead handles the block, which is in h2Reader.head.
	handleHead(id uint32, ends bool) error
	// body returns the receiver of a DATA frame of n bytes; nil = the content is dropped.
	body(id uint32, n, content int, ends bool) (h2Pourer, error)
	handleReset(id uint32, b []byte) error
	settings(b []byte) error
	ping(acknowledges bool, b []byte) error
	handleGoAway(b []byte) error
	windowUpdate(id uint32, b []byte) error
}

// h2Pourer receives content. ends: nothing follows piece. It must not retain piece.
type h2Pourer interface {
	put(piece []byte, ends bool) error
}

// h2Reader reads the frames of a connection. It belongs to the reader, a fiber of the connection's loop.
type h2Reader struct {
	side        h2Side
	in          stream
	head        h2Head
	decoder     hpackDecoder
	block       []byte // the fields received so far; it shares no memory with in
	blockOf     uint32 // its stream; 0 = no block has begun
	blockEnds   bool   // END_STREAM
	trails      bool   // it holds trailers
	fragments   int
	content     []byte    // of a frame that arrived in pieces
	gotSettings bool      // SETTINGS have come
	lastRead    time.Time // when the last bytes arrived
	started     time.Time // when the current frame or block began; zero = none
	pouring     bool      // within a DATA frame
}

// begin makes r ready for a connection; limit bounds the size of the peer's heads.
func (r *h2Reader) begin(side h2Side, ofServer bool, limit int) {
	r.side = side
	r.head = h2Head{ofServer: ofServer, limit: limit}
	r.decoder.most, r.decoder.emit = tableSize, r.head.field
}

// need waits until n bytes are buffered, or the connection ends.
func (r *h2Reader) need(n int) error {
	for len(r.in.bytes()) < n {
		if err := r.side.fill(); err != nil {
			return err
		}
	}
	return nil
}

// frame reads and handles one frame.
func (r *h2Reader) frame() error {
	if r.blockOf == 0 {
		r.started = time.Time{}
	}
	if err := r.need(1); err != nil { // may take long
		return err
	}
	if r.started.IsZero() {
		r.started = r.lastRead
	}
	if err := r.need(frameHead); err != nil {
		return err
	}
	b := r.in.upTo(frameHead)
	n := int(b[0])<<16 | int(b[1])<<8 | int(b[2])
	kind, flags, id := b[3], b[4], binary.BigEndian.Uint32(b[5:])&(1<<31-1)
	if !r.gotSettings && (kind != frameSettings || flags&flagAck != 0) {
		return r.side.notSettings(b)
	}
	r.in.take(frameHead)
	switch {
	case n > maxFrame:
		return codeSize
	case r.blockOf != 0 && (kind != frameContinuation || id != r.blockOf):
		return codeProtocol
	case kind == frameData:
		return r.data(id, n, flags)
	}
	if b = r.in.bytes(); len(b) >= n { // nearly always
		err := r.act(kind, flags, id, b[:n])
		r.in.take(n)
		return err
	}
	if err := r.gather(n); err != nil {
		return err
	}
	err := r.act(kind, flags, id, r.content)
	r.content = nil
	return err
}

// gather reads n bytes that arrive in pieces.
func (r *h2Reader) gather(n int) error {
	r.content = make([]byte, 0, n)
	for n > 0 {
		if err := r.need(1); err != nil {
			return err
		}
		piece := r.in.upTo(n)
		r.content = append(r.content, piece...)
		n -= len(piece)
		r.in.take(len(piece))
	}
	return nil
}

// act handles a frame other than DATA. b is valid until it returns.
func (r *h2Reader) act(kind, flags byte, id uint32, b []byte) error {
	switch kind {
	case frameHeaders:
		return r.headers(flags, id, b)
	case frameContinuation:
		if r.blockOf == 0 {
			return codeProtocol
		}
		return r.fragment(b, flags&flagEndHeaders != 0)
	case framePriority:
		if id == 0 {
			return codeProtocol
		}
		return sized(b, 5)
	case frameReset:
		if err := sized(b, 4); err != nil {
			return err
		}
		return r.side.handleReset(id, b)
	case frameSettings:
		return r.handleSettings(flags, id, b)
	case framePushPromise: // servers must not send it to us, and clients never may
		return codeProtocol
	case framePing:
		if id != 0 {
			return codeProtocol
		}
		if err := sized(b, 8); err != nil {
			return err
		}
		return r.side.ping(flags&flagAck != 0, b)
	case frameGoAway:
		if len(b) < 8 {
			return codeSize
		}
		if id != 0 {
			return codeProtocol
		}
		return r.side.handleGoAway(b)
	case frameWindow:
		if err := sized(b, 4); err != nil {
			return err
		}
		return r.side.windowUpdate(id, b)
	}
	return nil // of an extension
}

func sized(b []byte, n int) error {
	if len(b) != n {
		return codeSize
	}
	return nil
}

// handleSettings handles a SETTINGS frame.
func (r *h2Reader) handleSettings(flags byte, id uint32, b []byte) error {
	switch {
	case id != 0:
		return codeProtocol
	case flags&flagAck != 0:
		return sized(b, 0)
	case len(b)%6 != 0:
		return codeSize
	}
	r.gotSettings = true
	return r.side.settings(b)
}

// unpad removes the padding (RFC 9113, section 6.1).
func unpad(flags byte, b []byte) ([]byte, error) {
	if flags&flagPadded == 0 {
		return b, nil
	}
	if len(b) == 0 || int(b[0]) >= len(b) {
		return nil, codeProtocol
	}
	return b[1 : len(b)-int(b[0])], nil
}

func (r *h2Reader) headers(flags byte, id uint32, b []byte) error {
	trails, err := r.side.begins(id)
	if err != nil {
		return err
	}
	b, err = unpad(flags, b)
	if err != nil {
		return err
	}
	if flags&flagPriority != 0 {
		if len(b) < 5 {
			return codeSize
		}
		b = b[5:]
	}
	r.blockOf, r.blockEnds, r.trails, r.fragments, r.block = id, flags&flagEndStream != 0, trails, 0, r.block[:0]
	return r.fragment(b, flags&flagEndHeaders != 0)
}

// fragment adds a piece of a field block, and handles the block with its last piece.
func (r *h2Reader) fragment(b []byte, last bool) error {
	if r.fragments++; r.fragments > maxFragments || len(r.block)+len(b) > maxBlock*r.head.limit {
		return codeCalm
	}
	if r.fragments > 1 || !last { // r.block has its own memory: b is in a buffer that is reused
		r.block = append(r.block, b...)
		b = r.block
	}
	if !last {
		return nil
	}
	id := r.blockOf
	r.blockOf = 0
	r.head.reset(r.trails)
	if r.decoder.decode(b, &r.head.text) != nil {
		return codeCompression
	}
	if cap(r.block) > bufferSize {
		r.block = nil
	}
	err := r.side.handleHead(id, r.blockEnds)
	r.head.reset(false) // its fields have been passed on
	return err
}

// data passes the content of a DATA frame on as it arrives.
func (r *h2Reader) data(id uint32, n int, flags byte) error {
	padding := 0
	if flags&flagPadded != 0 {
		if n == 0 {
			return codeSize
		}
		if err := r.need(1); err != nil {
			return err
		}
		if padding = int(r.in.bytes()[0]); padding >= n {
			return codeProtocol
		}
		r.in.take(1)
		padding++ // with its length byte
	}
	ends := flags&flagEndStream != 0
	to, err := r.side.body(id, n, n-padding, ends)
	if err != nil {
		return err
	}
	r.started, r.pouring = time.Time{}, true // the stream's session has the time-out of a body
	defer func() { r.pouring = false }()
	if err := r.pour(to, n-padding, ends); err != nil {
		return err
	}
	return r.pour(nil, padding-1, false)
}

// pour reads n bytes and gives them to a receiver; nil drops them.
func (r *h2Reader) pour(to h2Pourer, n int, ends bool) error {
	for n > 0 {
		if err := r.need(1); err != nil {
			return err
		}
		piece := r.in.upTo(n)
		n -= len(piece)
		if to != nil {
			if err := to.put(piece, ends && n == 0); err != nil {
				return err
			}
			ends = ends && n > 0
		}
		r.in.take(len(piece))
	}
	if to == nil || !ends {
		return nil
	}
	return to.put(nil, true)
}
