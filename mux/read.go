package mux

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync/atomic"

	"github.com/headpond/headpond/mux/frame"
)

const (
	// readSize is the size of the read buffer: the most that one system call takes.
	readSize = 64 << 10
	// directMin is the least missing part of a payload that is read directly into its place; a
	// smaller one is read into the read buffer with the data after it, unless the frame is too
	// large for that.
	directMin = 2 << 10
	// bulkRead is the size of a read that looks for a large frame's header; other data in it is
	// copied.
	bulkRead = 4 << 10
)

// intake is input that was not parsed yet. It belongs to the goroutine that reads.
type intake struct {
	l    *link
	buf  []byte
	r, w int           // buf[r:w]
	more bool          // there may be whole frames in it
	got  atomic.Uint64 // bytes of large frames, ever: a slow large frame is a sign of life
	bulk bool          // the last data came in a large frame, and the next may: do not read it into buf

	// A large frame whose remaining body is read straight to its destination.
	big  bool
	h    frame.Header
	to   inbound // where core.begin wants it
	hold *buffer // or, in a session that can be resumed, the whole body
	rest []byte  // still to be filled
	skip int     // still to be dropped
}

// fetch waits for bytes, of a large frame for all of them. After an interruption it
// can be called again.
func (in *intake) fetch() error {
	for in.big {
		var n int
		var err error
		switch {
		case len(in.rest) > 0 && in.l.rawIn != nil:
			n, err = in.l.rawIn.read(in.rest, in.buf[:bulkRead]) // buf is empty
			in.w = max(0, n-len(in.rest))
			in.rest = in.rest[n-in.w:]
		case len(in.rest) > 0:
			n, err = in.l.conn.Read(in.rest)
			in.rest = in.rest[n:]
		case in.skip > 0:
			n, err = in.l.conn.Read(in.buf[:min(in.skip, len(in.buf))])
			in.skip -= n
		default:
			return nil
		}
		in.got.Add(uint64(n))
		if err != nil && len(in.rest)+in.skip > 0 {
			return err
		}
	}
	if in.r == in.w {
		in.r, in.w = 0, 0
	} else if len(in.buf)-in.w < directMin+frame.HeaderSize+frame.MaxControl {
		in.w = copy(in.buf, in.buf[in.r:in.w])
		in.r = 0
	}
	end := len(in.buf)
	if in.bulk {
		end = min(end, in.w+bulkRead)
	}
	n, err := in.l.conn.Read(in.buf[in.w:end])
	in.w += n
	if n > 0 {
		return nil // the next read returns an error again
	}
	return err
}

// parse handles every whole frame in the buffer, or a large frame that is whole
// now. mu is held, and released while writing.
func (s *Session) parse(in *intake) error {
	in.more = false
	if in.big {
		if err := s.large(in); err != nil {
			return err
		}
	}
	for in.w-in.r >= frame.HeaderSize {
		if e := s.core.eager; e != nil && (s.core.receiver.filled || e.ready.head != nil) {
			in.more = true // for the next reader
			break
		}
		if in.l.lost {
			return net.ErrClosed // the other input is sent again on the next connection
		}
		h, err := frame.ParseHeader(in.buf[in.r:in.w])
		if err != nil {
			return fmt.Errorf("%w: %w", ErrProtocol, err)
		}
		if h.Length > s.core.maxFrame {
			return protocolError("frame of %d bytes, over the %d agreed", h.Length, s.core.maxFrame)
		}
		body := in.buf[in.r+frame.HeaderSize : in.w]
		missing := int(h.Length) - len(body)
		switch {
		case (missing >= directMin || missing > 0 && h.Length > readSize/2) && h.Type == frame.TypeData && len(body) >= 4:
			if err = s.begin(in, h, body); err == nil {
				s.armAck()
				s.flush(nil, false)
				return nil
			}
		case missing > 0:
			s.armAck()
			s.flush(nil, false)
			return nil
		default:
			in.r += frame.HeaderSize + int(h.Length)
			in.bulk = in.bulk && h.Type != frame.TypeData
			err = s.frame(h, body[:h.Length])
		}
		if err != nil {
			return err
		}
	}
	s.armAck()
	s.flush(nil, false)
	return nil
}

// frame handles one whole frame. mu is held.
func (s *Session) frame(h frame.Header, body []byte) error {
	if s.core.replay != nil {
		return s.numbered(h, body)
	}
	return s.take(h, body)
}

func (s *Session) take(h frame.Header, body []byte) error {
	if h.Type != frame.TypeData {
		if err := s.core.input(h, body); err != nil {
			return asProtocol(err)
		}
		return nil
	}
	in, err := s.core.begin(h, sizeOf(h, body), true)
	if err != nil {
		return asProtocol(err)
	}
	if in.into {
		w := s.core.receiver
		w.n, w.filled = copy(w.into, body[len(body)-in.n:]), true
		s.core.counts.messagesReceived++
	}
	if in.b != nil && !in.whole {
		in.b.data = append(in.b.data, body[len(body)-in.n:]...)
	}
	return asProtocol(s.core.end(in))
}

func sizeOf(h frame.Header, body []byte) uint32 {
	if h.Flags&frame.FlagSized == 0 {
		return 0
	}
	return binary.BigEndian.Uint32(body)
}

func asProtocol(err error) error {
	if err != nil && errors.Is(err, frame.ErrInvalid) {
		return fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	return err
}

// begin handles the header of a large Data frame that begins with body; the remaining
// body is read next, to its destination. In a session that can be resumed that is a
// buffer for the whole frame, which is handled when it is complete: half of it could be
// lost with the connection. The read buffer is empty then. mu is held.
func (s *Session) begin(in *intake, h frame.Header, body []byte) error {
	in.big, in.h, in.bulk = true, h, true
	in.r, in.w = 0, 0
	if s.core.replay != nil {
		in.hold = newBuffer(int(h.Length))
		in.hold.data = in.hold.data[:h.Length]
		in.rest = in.hold.data[copy(in.hold.data, body):]
		return nil
	}
	to, err := s.core.begin(h, sizeOf(h, body), false)
	if err != nil {
		in.big = false
		return asProtocol(err)
	}
	missing := int(h.Length) - len(body)
	if in.to = to; to.b == nil {
		in.skip = missing
		return nil
	}
	body = body[int(h.Length)-to.n:]
	n := len(to.b.data)
	rest := to.b.data[n : n+to.n][:to.n]
	in.rest = rest[copy(rest, body):]
	return nil
}

// large handles the large frame, which is whole now. mu is held.
func (s *Session) large(in *intake) error {
	in.big, in.rest = false, nil
	if b := in.hold; b != nil {
		in.hold = nil
		if in.l.lost {
			b.release()
			return net.ErrClosed
		}
		s.core.whole = b
		err := s.frame(in.h, b.data)
		if s.core.whole != nil { // copied, or refused
			s.core.whole = nil
			b.release()
		}
		return err
	}
	to := in.to
	in.to = inbound{}
	if to.b != nil {
		to.b.data = to.b.data[:len(to.b.data)+to.n]
	}
	return asProtocol(s.core.end(to))
}

// drop gives up a large frame that will stay incomplete. mu is held.
func (s *Session) drop(in *intake) {
	if in.hold != nil {
		in.hold.release()
	} else if in.to.ch != nil && in.to.b != nil {
		s.core.lose(in.to)
	}
	in.big, in.rest, in.skip, in.hold, in.to = false, nil, 0, nil, inbound{}
}
