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

// States of an upload.
const (
	uploadRunning int32 = iota
	uploadLast          // the body is read to its end; its last bytes are being written
	uploadSent
	uploadFailed
)

// uploading is an upload: it sends a request's body, in its own fiber.
type uploading struct {
	to       *httppool.Conn // connection of the lease; x.lease itself can change while the body is sent
	finished fiber.Group
	foreseen *foreseen // of the exchange, until uploaded
	state    atomic.Int32
	begun    atomic.Bool  // some of the body has arrived
	began    time.Time    // a time with a monotonic reading
	at       atomic.Int64 // when the last byte was written or sending ended, in ns since began; 0 = not yet
	err      error        // read it only after over
	n        int64        // bytes of content sent; read it only after over
	more     bool         // bytes were read that had not arrived with the head, and are not kept; read it only after over
	whole    bool         // all of the body was read from the client, and in has only what follows it; read it only after over
	keeps    bool         // the bytes read last are kept
	// mayKeep says that the body should be kept, because the request might be sent again.
	mayKeep bool
	in      stream // data read beyond the client's buffer; read it only after over
	on      fiber.Transfer
	until   atomic.Int64 // deadline of all writes once the exchange is over, in ns since began; 0 = the exchange is not over
}

// writeBy sets the deadline of the next write to c, unless the exchange is over.
func (u *uploading) writeBy(c fiber.Stream, at time.Time) {
	_ = c.SetWriteDeadline(at)
	if at := u.until.Load(); at != 0 { // endUpload may have set its deadline before the line above
		_ = c.SetWriteDeadline(u.time(at))
	}
}

// writeUntil sets the deadline of all further writes to c.
func (u *uploading) writeUntil(c fiber.Stream, at time.Time) {
	u.until.Store(int64(at.Sub(u.began)))
	_ = c.SetWriteDeadline(at)
}

// sent reports whether the whole body has been written.
func (u *uploading) sent() bool { return u.state.Load() == uploadSent }

// read reports whether the whole body has been read from the client; its last bytes may still be on their way.
func (u *uploading) read() bool {
	state := u.state.Load()
	return state == uploadSent || state == uploadLast
}

// ended reports whether the upload has ended, completely or not.
func (u *uploading) ended() bool { return u.at.Load() != 0 }

// time converts at or until to a time.
func (u *uploading) time(since int64) time.Time { return u.began.Add(time.Duration(since)) }

// errNoUpload is the error of an upload that has panicked; it is set until the upload has returned.
var errNoUpload = fmt.Errorf("%w: %w", httppool.ErrRequestBody, errPanicked)

// startUpload starts a fiber that sends the body while the session waits for the response.
func (s *session) startUpload() {
	up := &uploading{to: s.ex.lease.Value(), err: errNoUpload, began: time.Now(), mayKeep: s.keeps(), foreseen: s.ex.foreseen}
	s.ex.up, s.ex.foreseen = up, nil
	up.in.use(s.client.conn)
	up.in.held = &s.held
	up.finished.Go(func() {
		defer s.p.recovered(s.lc)
		defer s.uploaded(up)
		if up.err = s.upload(up); up.err == nil {
			s.finishCopy()
		}
		up.in.release() // the response may take hours
	})
}

// uploaded is called when the upload has ended.
func (s *session) uploaded(up *uploading) {
	up.foreseen.end()
	if up.err == nil {
		up.state.Store(uploadSent)
	} else {
		up.state.Store(uploadFailed)
	}
	up.at.Store(max(int64(time.Since(up.began)), 1))
	if errors.Is(up.err, httppool.ErrRequestBody) || errors.Is(up.err, os.ErrDeadlineExceeded) {
		_ = up.to.Close() // the request cannot be completed, or the server reads nothing
	}
	if s.awaiting.Load() { // the time-out for the response begins now
		_ = s.server.conn.SetReadDeadline(time.Now())
	}
}

// errAbandoned is for an exchange that ended before its body was sent.
var errAbandoned = errors.New("the exchange is over")

func (s *session) upload(up *uploading) error {
	ahead := s.client.bytes()[s.ex.size:]
	if k := s.ex.kept.b; len(k) > 0 {
		ahead = slices.Concat(ahead, k)
		s.held.add(len(ahead))
		defer s.held.add(-len(ahead))
	}
	up.begun.Store(len(ahead) > 0)
	s.restartCopy()
	if s.req.Length == httpwire.Chunked {
		return s.uploadChunks(up, ahead)
	}
	n := min(int64(len(ahead)), s.req.Length)
	up.in.put(ahead[n:]) // bytes of the next request
	if err := s.toServer(up, ahead[:n], n == s.req.Length); err != nil {
		return err
	}
	up.n += n
	s.copyBody(ahead[:n])
	left, keep := s.req.Length-n, int64(0)
	switch {
	case s.smallBody(up) || s.ex.copied.wants():
		keep = left
	case up.mayKeep && s.place() != nil: // what most HTTP/2 servers can be sent of a request before they process it
		keep = maxKept - n
	}
	left, err := s.uploadKept(up, left, keep)
	if err != nil || left == 0 {
		return err
	}
	up.in.release()
	return s.uploadContent(up, left, true)
}

// uploadKept is uploadContent for the first bytes of a body, at least as many as keep says, which are kept so that they can be sent again.
// It returns how many are left.
func (s *session) uploadKept(up *uploading, left, keep int64) (int64, error) {
	for left > 0 && (keep > 0 || len(up.in.bytes()) > 0) {
		if len(up.in.bytes()) == 0 {
			if err := s.moreBody(up, func() (int, error) { return s.fillKept(up) }); err != nil {
				return left, err
			}
		}
		piece := up.in.upTo(int(left))
		left -= int64(len(piece))
		keep -= int64(len(piece))
		up.in.take(len(piece)) // its bytes stay until the next read
		if err := s.toServer(up, piece, left == 0); err != nil {
			return left, err
		}
		up.n += int64(len(piece))
		s.copyBody(piece)
	}
	return left, nil
}

// uploadContent moves the next left bytes of content from the client to the server. last says that nothing of the
// request follows them. It reads no further bytes.
func (s *session) uploadContent(up *uploading, left int64, last bool) error {
	defer up.on.Drop()
	most, claimed := s.pieces()
	defer s.unclaim(claimed)
	took := func(n int) {
		up.n += int64(n)
		up.writeBy(s.server.conn, s.within())
	}
	for left > 0 {
		err := s.moreBody(up, func() (n int, err error) {
			n, err = up.on.Receive(s.client.conn, s.server.conn, min(left, most))
			left -= int64(n)
			return n, err
		})
		if err == nil {
			err = s.writing(up, last && left == 0)
		}
		if err == nil {
			err = s.sendPiece(&up.on, s.server.conn, took)
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
	if up.state.Load() == uploadFailed { // endUpload may have set its deadline before the line above
		return errAbandoned
	}
	up.keeps = false
	n, err := receive()
	s.count(n, 0)
	if n > 0 {
		up.begun.Store(true)
		if !up.keeps && !up.more {
			up.more = true
			s.dropKept() // the kept part is useless without this one
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

// writing prepares the write of a piece of the body.
func (s *session) writing(up *uploading, last bool) error {
	up.writeBy(s.server.conn, s.within())
	next := uploadRunning
	if last {
		next = uploadLast
	}
	if !up.state.CompareAndSwap(uploadRunning, next) {
		return errAbandoned
	}
	up.whole = last
	return nil
}

// uploadChunks decodes a body without a length and sends it in the framing of the server. Bytes after the body stay in up.in.
func (s *session) uploadChunks(up *uploading, ahead []byte) error {
	s.upChunks.Reset(s.stream)
	up.in.put(ahead)
	var out []byte
	if s.place() == nil {
		chunk := takeBuffer(&s.held)
		defer putBuffer(&s.held, chunk)
		out = chunk[:0]
	}
	for {
		content, n, done, err := next(&s.upChunks, &up.in)
		switch {
		case errors.Is(err, httpwire.ErrIncomplete):
			if err := s.moreChunks(up, out); err != nil {
				return err
			}
			continue
		case err != nil:
			return fmt.Errorf("%w: %w", httppool.ErrRequestBody, err)
		case s.tooLong(up.n + int64(len(content))):
			return s.errTooLong()
		}
		up.in.take(n) // its bytes stay until the next read
		if err := s.contentToServer(up, out, content, done); err != nil {
			return err
		}
		up.n += int64(len(content))
		s.copyBody(content)
		if done {
			return nil
		}
	}
}

// contentToServer sends content of a body without a length, the last if done. out is an empty buffer for chunks.
func (s *session) contentToServer(up *uploading, out, content []byte, done bool) error {
	var trailers []httpwire.Field
	if done {
		up.begun.Store(true)
		s.withholdTrailers()
		trailers = s.upChunks.permitted(s.ex.target.requestRules)
	}
	p := s.place()
	switch {
	case p == nil && done:
		return s.toServer(up, appendTrailers(appendChunk(out, content), trailers), true)
	case p == nil:
		return s.toServer(up, appendChunk(out, content), false)
	case !done:
		return s.toServer(up, content, false)
	}
	if err := s.writing(up, true); err != nil {
		return err
	}
	return p.sendEnd(content, trailers)
}

// moreChunks reads more of a chunked body, or moves the remainder of a long chunk unchanged. out is a buffer for its
// framing.
func (s *session) moreChunks(up *uploading, out []byte) error {
	left := s.upChunks.Left()
	if left < longChunk || s.ex.copied.wants() {
		return s.moreBody(up, func() (int, error) { return s.fillKept(up) })
	}
	if s.tooLong(up.n + left) {
		return s.errTooLong()
	}
	up.in.release()
	if s.place() != nil {
		err := s.uploadContent(up, left, false)
		s.upChunks.Skip(left)
		return err
	}
	if err := s.toServer(up, appendChunkSize(out, left), false); err != nil {
		return err
	}
	if err := s.uploadContent(up, left, false); err != nil {
		return err
	}
	s.upChunks.Skip(left)
	return s.toServer(up, []byte(crlf), false)
}

// endUpload ends the upload with the exchange, and reports whether the body was sent completely. If it was not even read
// completely, the client's connection ends too, because the remainder of the body would be taken for a request.
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
	up.finished.Wait()
	x.result.BytesIn = up.n
	if up.sent() {
		return true
	}
	x.close = x.close || !up.whole
	return false
}
