package httpproxy

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/httpwire"
	"github.com/headpond/headpond/pool/httppool"
)

// lastWrite is how long a response's end waits for the request's last write to return.
const lastWrite = time.Second

// interim passes a 1xx response on; its head takes n bytes of the server's buffer.
func (s *session) interim(n int) error {
	x := &s.ex
	pass := true
	if s.resp.Status == 100 {
		pass = s.expects() && !x.told // else nobody waits for it, or any more
		x.leave, x.told = true, true
	}
	if pass {
		out := s.appendResponse(s.outgoing())
		s.out = out
		if err := s.toClient(out); err != nil {
			return err
		}
	}
	s.server.take(n)
	return nil
}

// proceed gives leave to send the body to a client that has waited for it for a while: not every server does, and some clients
// wait for ever (RFC 9110, section 10.1.1).
func (s *session) proceed() error {
	x := &s.ex
	if !s.expects() || x.told || x.up == nil || x.up.begun.Load() {
		return nil
	}
	x.told = true
	return s.toClient([]byte("HTTP/1.1 100 Continue\r\n\r\n"))
}

// respond passes the final response on; its head takes n bytes of the server's buffer.
func (s *session) respond(n int) error {
	x := &s.ex
	x.result.Status = s.resp.Status
	if s.p.isDraining() || x.up != nil && !x.up.read() { // the rest of the body is not waited for
		x.close = true
	}
	out := s.appendResponse(s.outgoing())
	s.out = out
	s.server.take(n)
	x.wrote = true
	var err error
	switch s.resp.Length {
	case httpwire.Chunked:
		err = s.chunkedBody(out)
	case httpwire.Unframed:
		err = s.unframedBody(out)
	default:
		err = s.lengthBody(out, s.resp.Length)
	}
	if err != nil {
		return s.fail("body", err)
	}
	return nil
}

// within is the time of a deadline d from now; none without d. It is to be set in any case: what was set for something
// else would last.
func within(d time.Duration) time.Time {
	if d <= 0 {
		return time.Time{}
	}
	return time.Now().Add(d)
}

// toClient writes to the client within the idle limit.
func (s *session) toClient(p []byte) error {
	_ = s.client.conn.SetWriteDeadline(within(s.ex.target.idle))
	n, err := s.client.conn.Write(p)
	s.count(0, n)
	if err != nil {
		return fmt.Errorf("%w: %w", httppool.ErrClientGone, err)
	}
	return nil
}

// fromServer reads once within the idle limit, in the middle of a body, for as long as the client stays.
func (s *session) fromServer() error {
	s.deadline = true
	now := time.Now()
	until := now.Add(s.ex.target.idle)
	for {
		next := now.Add(lookInterval)
		if s.ex.target.idle > 0 && until.Before(next) {
			next = until
		}
		_ = s.server.conn.SetReadDeadline(next)
		_, err := s.server.fill()
		switch now = time.Now(); {
		case errors.Is(err, errFull):
			return fmt.Errorf("%w: framing longer than %d bytes", httpwire.ErrMalformed, bufferSize)
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return err
		case s.ex.target.idle > 0 && !now.Before(until):
			return err
		case s.clientGone():
			return httppool.ErrClientGone
		}
	}
}

// unexpected turns an end of input into one that is not mistaken for the body's.
func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// lengthBody sends head and body, in one write what there is.
func (s *session) lengthBody(head []byte, left int64) error {
	if k := int(min(left, int64(len(s.server.bytes())), int64(cap(head)-len(head)))); k > 0 {
		head = append(head, s.server.bytes()[:k]...)
		s.server.take(k)
		left -= int64(k)
		s.ex.result.BytesOut += int64(k)
	}
	if err := s.toClient(head); err != nil {
		return err
	}
	for left > 0 {
		if s.server.r == s.server.w {
			if err := s.fromServer(); err != nil {
				return unexpected(err)
			}
		}
		k := int(min(left, int64(len(s.server.bytes()))))
		if err := s.toClient(s.server.bytes()[:k]); err != nil {
			return err
		}
		s.server.take(k)
		left -= int64(k)
		s.ex.result.BytesOut += int64(k)
	}
	return nil
}

// chunkedBody decodes a body and sends it in chunks of this proxy's own.
func (s *session) chunkedBody(out []byte) error {
	s.chunks.Reset()
	for {
		content, n, done, err := next(&s.chunks, &s.server)
		if err != nil && !errors.Is(err, httpwire.ErrIncomplete) {
			return err
		}
		if len(out)+len(content)+chunkOverhead > cap(out) && len(out) > 0 {
			if err := s.toClient(out); err != nil {
				return err
			}
			out = out[:0]
		}
		out = appendChunk(out, content)
		s.ex.result.BytesOut += int64(len(content))
		if done {
			out = appendTrailers(append(out, "0\r\n"...), &s.chunks)
			s.server.take(n)
			return s.toClient(out)
		}
		s.server.take(n)
		if err == nil && s.server.r < s.server.w {
			continue
		}
		if len(out) > 0 { // at once: the next piece may take its time
			if err := s.toClient(out); err != nil {
				return err
			}
			out = out[:0]
		}
		if err := s.fromServer(); err != nil {
			return unexpected(err)
		}
	}
}

// next decodes the next piece of a body, small enough to be put together with its framing.
func next(c *httpwire.Chunks, from *stream) (content []byte, n int, done bool, err error) {
	content, n, done, err = c.Next(from.upTo(bufferSize / 2))
	if errors.Is(err, httpwire.ErrIncomplete) && len(from.bytes()) > bufferSize/2 { // long trailers
		return c.Next(from.bytes())
	}
	return content, n, done, err
}

// unframedBody sends in chunks what comes up to the end of the connection.
func (s *session) unframedBody(out []byte) error {
	for {
		for len(s.server.bytes()) > 0 {
			content := s.server.upTo(bufferSize / 2)
			if len(out)+len(content)+chunkOverhead > cap(out) {
				if err := s.toClient(out); err != nil {
					return err
				}
				out = out[:0]
			}
			out = appendChunk(out, content)
			s.ex.result.BytesOut += int64(len(content))
			s.server.take(len(content))
		}
		if len(out) > 0 {
			if err := s.toClient(out); err != nil {
				return err
			}
			out = out[:0]
		}
		if err := s.fromServer(); err == io.EOF {
			return s.toClient(append(out, "0\r\n\r\n"...))
		} else if err != nil {
			return err
		}
	}
}

// chunkOverhead is what a chunk takes besides its content, at most.
const chunkOverhead = 24

func appendChunk(dst, content []byte) []byte {
	if len(content) == 0 {
		return dst
	}
	dst = strconv.AppendUint(dst, uint64(len(content)), 16)
	dst = append(dst, crlf...)
	dst = append(dst, content...)
	return append(dst, crlf...)
}

// appendTrailers appends what may come after the last chunk, and the empty line.
func appendTrailers(dst []byte, c *httpwire.Chunks) []byte {
	for i := range c.Trailer {
		if f := &c.Trailer[i]; !httpwire.ForbiddenTrailer(f.Name) {
			dst = appendField(dst, f)
		}
	}
	return append(dst, crlf...)
}

// How far the sending of a request's body has come.
const (
	uploadRunning int32 = iota
	uploadLast          // read to its end; the last bytes are being written
	uploadSent
	uploadFailed
)

// uploading is the body of a request on its way, sent by a fiber of its own.
type uploading struct {
	over  fiber.Group
	state atomic.Int32
	begun atomic.Bool  // something of the body has come
	at    atomic.Int64 // when the last byte was written, or no more was, in Unix nanoseconds; 0 = goes on
	err   error        // to be read once over is
	n     int64        // bytes of content; likewise
	more  bool         // something of it was read that had not come with the head; likewise
	in    stream       // what was read beyond the client's buffer; likewise
}

// sent reports whether the whole body has been written.
func (u *uploading) sent() bool { return u.state.Load() == uploadSent }

// read reports whether the whole body has been read from the client: then its last bytes are on their way at least.
func (u *uploading) read() bool {
	state := u.state.Load()
	return state == uploadSent || state == uploadLast
}

// ended reports whether nothing more of the body is sent.
func (u *uploading) ended() bool { return u.at.Load() != 0 }

// errNoUpload stands for a panic, until the upload has returned.
var errNoUpload = fmt.Errorf("%w: %w", httppool.ErrRequestBody, errPanicked)

// startUpload sends the body as it comes, while the response is waited for.
func (s *session) startUpload() {
	up := &uploading{err: errNoUpload}
	s.ex.up = up
	up.in.use(s.client.conn)
	up.over.Go(func() {
		defer s.p.recovered(s.lc)
		defer s.uploaded(up)
		up.err = s.upload(up)
	})
}

// uploaded is called when nothing more of the body is sent.
func (s *session) uploaded(up *uploading) {
	if up.err == nil {
		up.state.Store(uploadSent)
	} else {
		up.state.Store(uploadFailed)
	}
	up.at.Store(time.Now().UnixNano())
	if errors.Is(up.err, httppool.ErrRequestBody) || errors.Is(up.err, os.ErrDeadlineExceeded) {
		_ = s.ex.lease.Value().Close() // the request can never be completed, or the server takes nothing
	}
	if s.awaiting.Load() { // the response's time begins
		_ = s.server.conn.SetReadDeadline(time.Now())
	}
}

// errAbandoned: the exchange was over before the body was sent.
var errAbandoned = errors.New("the exchange is over")

func (s *session) upload(up *uploading) error {
	ahead := s.client.bytes()[s.ex.size:]
	up.begun.Store(len(ahead) > 0)
	if s.req.Length == httpwire.Chunked {
		return s.uploadChunks(up, ahead)
	}
	left := s.req.Length
	for {
		piece := ahead[:min(left, int64(len(ahead)))]
		left -= int64(len(piece))
		if err := s.toServer(up, piece, left == 0); err != nil {
			return err
		}
		up.n += int64(len(piece))
		if left == 0 {
			up.in.drop()
			return nil
		}
		up.in.drop()
		if err := s.moreBody(up, left); err != nil {
			return err
		}
		ahead = up.in.bytes()
	}
}

// moreBody reads once from the client, at most limit bytes, within the idle limit.
func (s *session) moreBody(up *uploading, limit int64) error {
	_ = s.client.conn.SetReadDeadline(within(s.ex.target.idle))
	if up.state.Load() == uploadFailed { // endUpload's deadline may have come before this one
		return errAbandoned
	}
	n, err := up.in.fillUpTo(limit)
	s.count(n, 0)
	if n > 0 {
		up.begun.Store(true)
		up.more = true
	}
	switch {
	case err != nil && up.state.Load() == uploadFailed:
		return errAbandoned
	case err != nil:
		return fmt.Errorf("%w: %w", httppool.ErrRequestBody, unexpected(err))
	}
	return nil
}

// toServer writes a piece of body within the idle limit.
func (s *session) toServer(up *uploading, p []byte, last bool) error {
	if len(p) == 0 {
		return nil
	}
	_ = s.server.conn.SetWriteDeadline(within(s.ex.target.idle))
	next := uploadRunning
	if last {
		next = uploadLast
	}
	if !up.state.CompareAndSwap(uploadRunning, next) { // endUpload's deadline may have come before this one
		return errAbandoned
	}
	_, err := s.server.conn.Write(p)
	return err
}

// uploadChunks decodes a body and sends it in chunks of this proxy's own. What follows it is left in up.in.
func (s *session) uploadChunks(up *uploading, ahead []byte) error {
	s.upChunks.Reset()
	s.upChunks.Own = s.stream != nil // made of DATA frames
	up.in.put(ahead)
	out := buffers.Get().(*[bufferSize]byte)
	defer buffers.Put(out)
	for {
		content, n, done, err := next(&s.upChunks, &up.in)
		switch {
		case errors.Is(err, httpwire.ErrIncomplete):
			if err := s.moreBody(up, bufferSize); err != nil {
				return err
			}
			continue
		case err != nil:
			return fmt.Errorf("%w: %w", httppool.ErrRequestBody, err)
		}
		piece := appendChunk(out[:0], content)
		if done {
			piece = appendTrailers(append(piece, "0\r\n"...), &s.upChunks)
		}
		if err := s.toServer(up, piece, done); err != nil {
			return err
		}
		up.n += int64(len(content))
		up.in.take(n)
		if done {
			return nil
		}
	}
}

// endUpload ends the sending of the body when the exchange is over, and reports whether it was sent whole. Without
// that the client's connection ends too: what is left of the body would be taken for a request.
func (s *session) endUpload() bool {
	x := &s.ex
	up := x.up
	switch {
	case up.state.CompareAndSwap(uploadRunning, uploadFailed):
		past := time.Unix(1, 0)
		_ = s.client.conn.SetReadDeadline(past)
		_ = s.server.conn.SetWriteDeadline(past)
	case up.state.Load() == uploadLast:
		_ = s.server.conn.SetWriteDeadline(time.Now().Add(lastWrite))
	}
	up.over.Wait()
	x.result.BytesIn = up.n
	if up.sent() {
		return true
	}
	x.close = true
	return false
}

// put makes a copy of b what is read next.
func (s *stream) put(b []byte) {
	if len(b) > 0 {
		s.buf = buffers.Get().(*[bufferSize]byte)[:]
		s.r, s.w = 0, copy(s.buf, b)
	}
}

// upTo returns at most n of the bytes that were read.
func (s *stream) upTo(n int) []byte {
	b := s.bytes()
	return b[:min(n, len(b))]
}
