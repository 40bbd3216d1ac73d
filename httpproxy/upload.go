package httpproxy

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/httpwire"
	"github.com/headpond/headpond/pool/httppool"
)

// How far the sending of a request's body has come.
const (
	uploadRunning int32 = iota
	uploadLast          // read to its end; the last bytes are being written
	uploadSent
	uploadFailed
)

// uploading is the body of a request on its way, sent by its own fiber.
type uploading struct {
	to    *httppool.Conn // the lease's connection: the lease itself changes while the body is sent
	over  fiber.Group
	state atomic.Int32
	begun atomic.Bool  // something of the body has come
	began time.Time    // by the monotonic clock
	at    atomic.Int64 // when the last byte was written, or sending ended otherwise, in ns since began; 0 = not yet
	err   error        // to be read once over is
	n     int64        // bytes of content; likewise
	more  bool         // something of it was read that had not come with the head, and was not kept; likewise
	keeps bool         // what has just been read is kept
	// mayKeep: it makes sense to keep the body, as the request might be sent again.
	mayKeep bool
	in      stream // data read beyond the client's buffer; likewise
	on      fiber.Transfer
	until   atomic.Int64 // the deadline of all writes once the exchange is over, in ns since began; 0 = it is not
}

// writeBy sets the deadline of the next write to c, unless the exchange is over.
func (u *uploading) writeBy(c fiber.Stream, at time.Time) {
	_ = c.SetWriteDeadline(at)
	if at := u.until.Load(); at != 0 { // endUpload's may have come before this one
		_ = c.SetWriteDeadline(u.time(at))
	}
}

// writeUntil has all writes to c end at a time.
func (u *uploading) writeUntil(c fiber.Stream, at time.Time) {
	u.until.Store(int64(at.Sub(u.began)))
	_ = c.SetWriteDeadline(at)
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

// time returns the time of at or until.
func (u *uploading) time(since int64) time.Time { return u.began.Add(time.Duration(since)) }

// errNoUpload stands for a panic, until the upload has returned.
var errNoUpload = fmt.Errorf("%w: %w", httppool.ErrRequestBody, errPanicked)

// startUpload sends the body as it comes, while the response is waited for.
func (s *session) startUpload() {
	up := &uploading{to: s.ex.lease.Value(), err: errNoUpload, began: time.Now(), mayKeep: s.keeps()}
	s.ex.up = up
	up.in.use(s.client.conn)
	up.in.held = &s.held
	up.over.Go(func() {
		defer s.p.recovered(s.lc)
		defer s.uploaded(up)
		up.err = s.upload(up)
		up.in.release() // the answer may go on for hours
	})
}

// uploaded is called when nothing more of the body is sent.
func (s *session) uploaded(up *uploading) {
	if up.err == nil {
		up.state.Store(uploadSent)
	} else {
		up.state.Store(uploadFailed)
	}
	up.at.Store(max(int64(time.Since(up.began)), 1))
	if errors.Is(up.err, httppool.ErrRequestBody) || errors.Is(up.err, os.ErrDeadlineExceeded) {
		_ = up.to.Close() // the request can never be completed, or the server takes nothing
	}
	if s.awaiting.Load() { // the response's time begins
		_ = s.server.conn.SetReadDeadline(time.Now())
	}
}

// errAbandoned: the exchange was over before the body was sent.
var errAbandoned = errors.New("the exchange is over")

func (s *session) upload(up *uploading) error {
	ahead := s.client.bytes()[s.ex.size:]
	if k := s.ex.kept.b; len(k) > 0 {
		ahead = slices.Concat(ahead, k)
		s.held.add(len(ahead))
		defer s.held.add(-len(ahead))
	}
	up.begun.Store(len(ahead) > 0)
	if s.req.Length == httpwire.Chunked {
		return s.uploadChunks(up, ahead)
	}
	n := min(int64(len(ahead)), s.req.Length)
	up.in.put(ahead[n:]) // the next request
	if err := s.toServer(up, ahead[:n], n == s.req.Length); err != nil {
		return err
	}
	up.n += n
	if s.smallBody(up) {
		return s.uploadKept(up, s.req.Length-n)
	}
	return s.uploadContent(up, s.req.Length-n, true)
}

// uploadKept is uploadContent of a small body, which is kept.
func (s *session) uploadKept(up *uploading, left int64) error {
	for left > 0 {
		if len(up.in.bytes()) == 0 {
			if err := s.moreBody(up, func() (int, error) { return s.fillKept(up) }); err != nil {
				return err
			}
		}
		piece := up.in.upTo(int(left))
		left -= int64(len(piece))
		if err := s.toServer(up, piece, left == 0); err != nil {
			return err
		}
		up.n += int64(len(piece))
		up.in.take(len(piece))
	}
	return nil
}

// uploadContent moves the next left bytes of content from the client to the server; with last nothing comes behind them. It reads
// no more than these.
func (s *session) uploadContent(up *uploading, left int64, last bool) error {
	defer up.on.Drop()
	took := func(n int) {
		up.n += int64(n)
		up.writeBy(s.server.conn, s.within())
	}
	for left > 0 {
		err := s.moreBody(up, func() (n int, err error) {
			n, err = up.on.Receive(s.client.conn, s.server.conn, left)
			left -= int64(n)
			return n, err
		})
		if err == nil {
			err = s.writing(up, last && left == 0)
		}
		if err == nil {
			err = s.hand(&up.on, s.server.conn, took)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// moreBody reads once from the client, within the idle limit.
func (s *session) moreBody(up *uploading, receive func() (int, error)) error {
	_ = s.client.conn.SetReadDeadline(s.within())
	if up.state.Load() == uploadFailed { // endUpload's deadline may have come before this one
		return errAbandoned
	}
	up.keeps = false
	n, err := receive()
	s.count(n, 0)
	if n > 0 {
		up.begun.Store(true)
		if !up.keeps && !up.more {
			up.more = true
			s.dropKept() // it is of no use without the rest
		}
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
	if err := s.writing(up, last); err != nil {
		return err
	}
	_, err := s.server.conn.Write(p)
	return err
}

// writing begins the writing of a piece.
func (s *session) writing(up *uploading, last bool) error {
	up.writeBy(s.server.conn, s.within())
	next := uploadRunning
	if last {
		next = uploadLast
	}
	if !up.state.CompareAndSwap(uploadRunning, next) {
		return errAbandoned
	}
	return nil
}

// uploadChunks decodes a body and sends it in new chunks. Later bytes are left in up.in.
func (s *session) uploadChunks(up *uploading, ahead []byte) error {
	s.upChunks.Reset()
	s.upChunks.Own = s.stream != nil // made of DATA frames
	up.in.put(ahead)
	out := takeBuffer(&s.held)
	defer putBuffer(&s.held, out)
	for {
		content, n, done, err := next(&s.upChunks, &up.in)
		switch {
		case errors.Is(err, httpwire.ErrIncomplete):
			if err := s.moreChunks(up, out[:0]); err != nil {
				return err
			}
			continue
		case err != nil:
			return fmt.Errorf("%w: %w", httppool.ErrRequestBody, err)
		}
		piece := appendChunk(out[:0], content)
		if done {
			s.withholdTrailers()
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

// moreChunks reads more of a chunked body, or moves the rest of a long chunk unchanged. out is for its framing.
func (s *session) moreChunks(up *uploading, out []byte) error {
	left := s.upChunks.Left()
	if left < longChunk {
		return s.moreBody(up, func() (int, error) { return s.fillKept(up) })
	}
	up.in.release()
	if err := s.toServer(up, appendChunkSize(out, left), false); err != nil {
		return err
	}
	if err := s.uploadContent(up, left, false); err != nil {
		return err
	}
	s.upChunks.Skip(left)
	return s.toServer(up, []byte(crlf), false)
}

// endUpload ends the sending of the body when the exchange is over, and reports whether it was sent completely. If not,
// the client's connection ends too: the rest of the body would be taken for a request.
func (s *session) endUpload() bool {
	x := &s.ex
	up := x.up
	switch {
	case up.state.CompareAndSwap(uploadRunning, uploadFailed):
		past := time.Unix(1, 0)
		_ = s.client.conn.SetReadDeadline(past)
		up.writeUntil(s.server.conn, past)
	case up.state.Load() == uploadLast:
		up.writeUntil(s.server.conn, time.Now().Add(lastWrite))
	}
	up.over.Wait()
	x.result.BytesIn = up.n
	if up.sent() {
		return true
	}
	x.close = true
	return false
}
