package mux

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"

	"github.com/headpond/headpond/mux/frame"
)

const (
	// readSize is the size of the read buffer: what one system call takes at most.
	readSize = 64 << 10
	// directMin is the least missing part of a payload that is read straight into
	// its place; a smaller one is read into the read buffer with what follows it,
	// unless the frame is too large for that.
	directMin = 2 << 10
	// bulkRead is how much is read to find a large frame's header; what else it
	// brings is copied.
	bulkRead = 4 << 10
)

// intake is the reader's own: bytes that came and were not parsed yet.
type intake struct {
	l    *link
	buf  []byte
	r, w int  // buf[r:w]
	bulk bool // the last data came in a large frame, and the next may: do not read it here
}

// read is l's reader. It never waits for anything but bytes.
func (s *Session) read(l *link) {
	defer close(l.readerDone)
	in := &intake{l: l, buf: make([]byte, readSize)}
	err := s.readFrames(in)
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.leave(l)
	var bye *GoAwayError
	switch {
	case l.lost: // whoever found out has done what there is to do
	case s.core.err != nil && !s.dead && !s.closing:
		s.fail(err)
	case errors.Is(err, errFlood):
		s.finish(fmt.Errorf("%w: %w", ErrSessionLost, err), frame.CodeFlood, err.Error())
	case errors.Is(err, ErrProtocol) && !errors.As(err, &bye):
		s.finish(fmt.Errorf("%w: %w", ErrSessionLost, err), frame.CodeProtocol, err.Error())
	case errors.As(err, &bye):
		s.fail(bye)
	case s.closing:
		s.over(err) // Close, or the writer, closes the connection
	default:
		s.lose(l, lost(err))
	}
}

func (s *Session) readFrames(in *intake) error {
	for {
		end := len(in.buf)
		if in.bulk {
			end = min(end, in.w+bulkRead)
		}
		n, err := in.l.conn.Read(in.buf[in.w:end])
		if n > 0 {
			in.w += n
			if err := s.parse(in); err != nil {
				return err
			}
			runtime.Gosched() // whoever was woken answers before the next look at the socket
		}
		if err != nil {
			return err
		}
		if in.r == in.w {
			in.r, in.w = 0, 0
		} else if len(in.buf)-in.w < directMin+frame.HeaderSize+frame.MaxControl {
			in.w = copy(in.buf, in.buf[in.r:in.w])
			in.r = 0
		}
	}
}

// parse handles every frame that is whole in the buffer, and reads the rest of
// a large one.
func (s *Session) parse(in *intake) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for in.w-in.r >= frame.HeaderSize {
		if in.l.lost {
			return net.ErrClosed // what else is here comes again on the next connection
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
			err = s.large(in, h, body)
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

// frame handles one that is whole. mu is held.
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
	if in.b != nil {
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

// direct handles a Data frame of which body is the beginning: the rest is read
// to its place without mu, which is held again on return. The read buffer is
// empty then.
func (s *Session) direct(in *intake, h frame.Header, body []byte) error {
	to, err := s.core.begin(h, sizeOf(h, body), false)
	if err != nil {
		return asProtocol(err)
	}
	missing := int(h.Length) - len(body)
	body = body[int(h.Length)-to.n:]
	var rest []byte
	if to.b != nil {
		n := len(to.b.data)
		rest = to.b.data[n : n+to.n][:to.n]
		rest = rest[copy(rest, body):]
	}
	in.r, in.w = 0, 0
	in.bulk = true
	s.flush(nil, false)
	s.mu.Unlock()
	if to.b != nil {
		_, err = io.ReadFull(in.l.conn, rest)
	} else {
		err = skip(in.l.conn, missing, in.buf)
	}
	s.mu.Lock()
	if to.b != nil && err == nil {
		to.b.data = to.b.data[:len(to.b.data)+to.n]
	}
	return cmpErr(asProtocol(s.core.end(to)), err)
}

// large handles a Data frame of which body is the beginning, and much is missing.
// In a session that can be resumed it is read whole before it is looked at:
// otherwise half of it could be lost with the connection.
func (s *Session) large(in *intake, h frame.Header, body []byte) error {
	if s.core.replay == nil {
		return s.direct(in, h, body)
	}
	b := newBuffer(int(h.Length))
	defer b.release()
	b.data = b.data[:h.Length]
	rest := b.data[copy(b.data, body):]
	in.r, in.w = 0, 0
	in.bulk = true
	s.armAck()
	s.flush(nil, false)
	s.mu.Unlock()
	_, err := io.ReadFull(in.l.conn, rest)
	s.mu.Lock()
	switch {
	case err != nil:
		return err
	case in.l.lost:
		return net.ErrClosed
	}
	return s.frame(h, b.data)
}

// skip reads n bytes and throws them away.
func skip(r io.Reader, n int, buf []byte) error {
	for n > 0 {
		m, err := r.Read(buf[:min(n, len(buf))])
		if n -= m; err != nil && n > 0 {
			return err
		}
	}
	return nil
}
