package httpproxy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/httpwire"
	"github.com/headpond/headpond/pool/httppool"
)

// lastWrite is how long the end of a response waits for the last write of the request to return.
const lastWrite = time.Second

// interim passes on a 1xx response, whose head takes n bytes of the server's buffer.
func (s *session) interim(n int) error {
	x := &s.ex
	pass := s.req.Minor > 0 // HTTP/1.0 has no interim responses
	if s.resp.Status == 100 {
		pass = s.req.Expects() && !x.clientContinues // otherwise the client does not wait for it, or has received one
		x.serverContinues, x.clientContinues = true, true
	}
	if pass {
		s.out = s.appendResponse(s.outgoing())
		out, err := s.headToClient(s.out)
		if err == nil && s.stream == nil {
			_ = s.client.conn.SetWriteDeadline(s.within())
			err = s.writeInterim(out)
		}
		if err != nil {
			return err
		}
	}
	s.server.take(n)
	return nil
}

// writeInterim writes an interim response to a client of HTTP/1.1 by its write deadline. If the exchange's time ends meanwhile, an answer still follows what the
// client has got of it, so what is missing is kept.
func (s *session) writeInterim(p []byte) error {
	n, err := s.client.conn.Write(p)
	s.count(0, n)
	if err == nil {
		return nil
	}
	if n > 0 {
		s.ex.unsent = bytes.Clone(p[n:])
	}
	return fmt.Errorf("%w: %w", httppool.ErrClientGone, err)
}

// headToClient sends a head if the client's stream takes heads as fields, as HTTP/2 does. Otherwise it returns the head
// as the first bytes to write.
func (s *session) headToClient(head []byte) (first []byte, err error) {
	if s.stream == nil {
		return head, nil
	}
	_ = s.stream.SetWriteDeadline(s.within())
	length := s.resp.Length
	if s.resp.Status < 200 {
		length = 0
	}
	if err := s.stream.sendHead(s.resp.Status, head, length); err != nil {
		return nil, fmt.Errorf("%w: %w", httppool.ErrClientGone, err)
	}
	if length == 0 || len(s.server.bytes()) == 0 && !s.endedWithHead() {
		return head[:0], s.flushHead()
	}
	s.ex.headPending = true // the head goes out with the content, or before the next wait for content
	return head[:0], nil
}

// endedWithHead reports whether a body without a length has no content, and has ended.
func (s *session) endedWithHead() bool {
	s.chunks.Reset(s.serverCarrier())
	return s.resp.Length == httpwire.Chunked && s.chunks.ended()
}

// flushHead sends a head that the client's stream has taken and not sent.
func (s *session) flushHead() error {
	_ = s.stream.SetWriteDeadline(s.within())
	if err := s.stream.flush(); err != nil {
		return fmt.Errorf("%w: %w", httppool.ErrClientGone, err)
	}
	return nil
}

// proceed sends 100 Continue to a client that has waited for it for a while: not every server sends one, and some clients
// wait forever (RFC 9110, section 10.1.1).
func (s *session) proceed() error {
	x := &s.ex
	if !s.req.Expects() || x.clientContinues || x.up == nil || x.up.begun.Load() {
		return nil
	}
	x.clientContinues = true
	_ = s.client.conn.SetWriteDeadline(s.within())
	return s.sayContinue()
}

// sayContinue sends 100 Continue.
func (s *session) sayContinue() error {
	st := s.stream
	if st == nil {
		return s.writeInterim([]byte("HTTP/1.1 100 Continue\r\n\r\n"))
	}
	err := st.sendHead(http.StatusContinue, appendStatus(nil, http.StatusContinue), 0)
	if err == nil {
		err = st.flush()
	}
	if err != nil {
		return fmt.Errorf("%w: %w", httppool.ErrClientGone, err)
	}
	return nil
}

// beginResponse returns the head of the final response for the client.
func (s *session) beginResponse() []byte {
	x := &s.ex
	x.result.Status = s.resp.Status
	s.noteFirst()
	s.measureAnswer()
	if s.p.isDraining() || x.up != nil && !x.up.read() { // the session does not wait for the remainder of the body
		x.close = true
	}
	if s.req.Minor == 0 && s.resp.Length < 0 { // without a length, only the end of the connection ends the body
		x.unframed, x.close = true, true
	}
	if x.target.llm != nil {
		s.expectTokens()
	}
	if z := x.target.compress; z != nil && !x.paged {
		s.considerCompression(z)
	}
	s.out = s.appendResponse(s.outgoing())
	x.wrote = true
	if x.up != nil {
		s.dropKept() // the response may take hours
	}
	return s.out
}

// respond passes on the final response, whose head takes n bytes of the server's buffer.
func (s *session) respond(n int) error {
	head := s.beginResponse()
	s.dropInline()
	s.server.take(n)
	out, err := s.headToClient(head)
	switch {
	case err != nil:
		if s.ex.compression.by != nil {
			s.releaseCompressor()
		}
	case s.ex.compression.by != nil:
		err = s.compressedBody(out)
	case s.resp.Length == httpwire.Chunked:
		err = s.chunkedBody(out)
	case s.resp.Length == httpwire.Unframed:
		err = s.unframedBody(out)
	default:
		err = s.lengthBody(out, s.resp.Length)
	}
	if err != nil && !errors.Is(err, errRests) {
		return s.fail("body", err)
	}
	return err
}

// toClient writes to the client within the idle limit. Where the connection's end is that of the body, it waits even with
// nothing to write: a TLSConn may still hold a record of passEvents, which Close would cut off.
func (s *session) toClient(p []byte) error {
	if len(p) == 0 && !s.ex.unframed {
		return nil
	}
	_ = s.client.conn.SetWriteDeadline(s.within())
	n, err := s.client.conn.Write(p)
	s.count(0, n)
	if err != nil {
		return fmt.Errorf("%w: %w", httppool.ErrClientGone, err)
	}
	return nil
}

// fromServer reads once within the idle limit, in the middle of a body, while the client stays. The buffer of outgoing
// may be freed meanwhile. It returns errRests if the session can rest; remainingBody continues it then.
func (s *session) fromServer() error {
	if s.ex.headPending {
		s.ex.headPending = false
		if err := s.flushHead(); err != nil {
			return err
		}
	}
	if s.ex.rest.trimmed {
		s.releaseOut()
	}
	err := s.whileClientStays(s.mayRest(), func() error {
		_, err := s.server.fill()
		return err
	})
	if errors.Is(err, errFull) {
		return fmt.Errorf("%w: framing longer than %d bytes", httpwire.ErrMalformed, bufferSize)
	}
	return err
}

// whileClientStays calls receive, which reads once from the server, again until it returns data, the idle limit has
// passed, or the client has left. With mayRest it returns errRests soon, if there is no data and the session can rest.
func (s *session) whileClientStays(mayRest bool, receive func() error) error {
	s.deadline = true
	now, until := time.Now(), s.ex.rest.within(s)
	if mayRest && s.restsAtOnce() {
		s.ex.rest.until = until
		return errRests
	}
	look := now.Add(checkInterval)
	next := look
	if mayRest {
		next = now.Add(s.restAfter())
	}
	for {
		if !until.IsZero() && until.Before(next) {
			next = until
		}
		_ = s.server.conn.SetReadDeadline(next)
		err := receive()
		switch now = time.Now(); {
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return err
		case !until.IsZero() && !now.Before(until):
			return err
		case mayRest && !s.ex.rest.never && s.canRest():
			if s.ex.rest.trimmed || s.attends() {
				s.ex.rest.until = until
				return errRests
			}
			s.trimBuffers()
			next = now.Add(suspendAfter)
			continue
		case now.Before(look):
		case s.clientGone():
			return httppool.ErrClientGone
		default:
			look = now.Add(checkInterval)
		}
		next = look
	}
}

// unexpected replaces io.EOF in the middle of a body, so that it is not taken for the end of the body.
func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// lengthBody sends the head and a body of known length, with what has arrived of the body in the same write.
func (s *session) lengthBody(head []byte, left int64) error {
	if s.ex.tokens.reading() {
		return s.passRead(head, left)
	}
	if k := int(min(left, int64(len(s.server.bytes())), int64(cap(head)-len(head)))); k > 0 {
		head = append(head, s.server.bytes()[:k]...)
		s.server.take(k)
		left -= int64(k)
		s.ex.result.BytesOut += int64(k)
	}
	if err := s.toClient(head); err != nil {
		return err
	}
	for left > 0 && s.server.r < s.server.w { // more content behind a long head
		k := int(min(left, int64(len(s.server.bytes()))))
		if err := s.toClient(s.server.bytes()[:k]); err != nil {
			return err
		}
		s.server.take(k)
		left -= int64(k)
		s.ex.result.BytesOut += int64(k)
	}
	return s.pass(left)
}

// passRead is lengthBody for content whose tokens are counted. Events that the client does not get leave their length.
func (s *session) passRead(out []byte, left int64) error {
	if s.ex.tokens.asked {
		s.ex.tokens.reader.Pad()
	}
	for left > 0 {
		if s.server.r == s.server.w {
			if err := s.toClient(out); err != nil {
				return err
			}
			out = out[:0]
			if s.ex.headPending {
				s.ex.headPending = false
				if err := s.flushHead(); err != nil {
					return err
				}
			}
			err := s.whileClientStays(false, func() error {
				_, err := s.server.fill()
				return err
			})
			if err != nil {
				return unexpected(err)
			}
		}
		content := s.server.upTo(int(min(left, bufferSize/2)))
		if len(out)+len(content)+s.ex.tokens.overhead() > cap(out) {
			if err := s.toClient(out); err != nil {
				return err
			}
			out = out[:0]
		}
		first, last := s.ex.tokens.pass(content)
		out = append(append(out, first...), last...)
		s.server.take(len(content))
		left -= int64(len(content))
		s.ex.result.BytesOut += int64(len(first) + len(last))
	}
	last := s.ex.tokens.end()
	s.ex.result.BytesOut += int64(len(last))
	return s.toClient(append(out, last...))
}

// pass moves the next left bytes of content from the server to the client, and reads no further bytes.
func (s *session) pass(left int64) error {
	if left == 0 {
		return nil
	}
	s.server.release()
	if s.passed == nil {
		s.passed, s.down = s.clientTook, new(fiber.Transfer)
	}
	most, claimed := s.pieces()
	defer s.unclaim(claimed)
	for left > 0 {
		n := 0
		err := s.whileClientStays(false, func() (err error) {
			n, err = s.down.Receive(s.server.conn, s.client.conn, min(left, most))
			return err
		})
		if err != nil {
			return unexpected(err)
		}
		left -= int64(n)
		_ = s.client.conn.SetWriteDeadline(s.within())
		if err := s.sendPiece(s.down, s.client.conn, s.passed); err != nil {
			return fmt.Errorf("%w: %w", httppool.ErrClientGone, err)
		}
	}
	return nil
}

// sendPiece is tr.Send; meanwhile the piece that tr holds counts as the session's memory.
func (s *session) sendPiece(tr *fiber.Transfer, to fiber.Stream, moved func(int)) error {
	n := tr.Held()
	s.held.add(n)
	defer s.held.add(-n)
	return tr.Send(to, moved)
}

// clientTook counts n bytes of content that the client has read, and renews the deadline.
func (s *session) clientTook(n int) {
	s.count(0, n)
	s.ex.result.BytesOut += int64(n)
	_ = s.client.conn.SetWriteDeadline(s.within())
}

// longChunk is the least remaining length of a chunk that is passed on as one chunk, without parsing in the buffer.
// Shorter chunks cost less if they are written together with their neighbours.
const longChunk = 32 << 10

// chunkedBody decodes a body without a length and sends it in the framing of the client.
func (s *session) chunkedBody(out []byte) error {
	s.ex.rest.events = s.isEventStream()
	s.chunks.Reset(s.serverCarrier())
	return s.moreOfChunks(out)
}

// serverCarrier returns what carries a body without a length of the response; nil = it is in chunks.
func (s *session) serverCarrier() carrying {
	if p := s.place(); p != nil {
		return p
	}
	return nil
}

// moreOfChunks is chunkedBody from the current position in the body.
func (s *session) moreOfChunks(out []byte) error {
	for {
		content, n, done, err := next(&s.chunks, &s.server)
		if err != nil && !errors.Is(err, httpwire.ErrIncomplete) {
			return err
		}
		if len(out)+len(content)+s.ex.tokens.overhead() > cap(out) && len(out) > 0 {
			if err := s.toClient(out); err != nil {
				return err
			}
			out = out[:0]
		}
		out = s.appendAnswer(out, content)
		if done {
			err := s.endAnswer(out) // before the trailers' bytes are dropped
			s.server.take(n)
			return err
		}
		s.server.take(n)
		if err == nil && s.server.r < s.server.w {
			continue
		}
		if len(out) > 0 { // now, because the next piece may take long
			if err := s.toClient(out); err != nil {
				return err
			}
			out = out[:0]
		}
		if left := s.chunks.Left(); left >= longChunk && !s.ex.tokens.reading() {
			var err error
			if out, err = s.passChunk(out, left); err != nil {
				return err
			}
			continue
		}
		if err := s.fromServer(); err != nil {
			return unexpected(err)
		}
		out = s.outgoing()
	}
}

// passChunk passes on the remainder of a long chunk as one chunk. It returns out, which is empty, with the bytes that follow
// the chunk.
func (s *session) passChunk(out []byte, left int64) ([]byte, error) {
	if s.framesContent() {
		if err := s.toClient(appendChunkSize(out, left)); err != nil {
			return nil, err
		}
		out = append(out, crlf...)
	}
	err := s.pass(left)
	s.chunks.Skip(left)
	return out, err
}

// appendAnswer appends a piece of the answer, after its tokens were read.
func (s *session) appendAnswer(dst, content []byte) []byte {
	first, last := s.ex.tokens.pass(content)
	s.ex.result.BytesOut += int64(len(first) + len(last))
	return s.appendContent(s.appendContent(dst, first), last)
}

// appendContent appends a piece of content in the framing of the client.
func (s *session) appendContent(dst, content []byte) []byte {
	if s.framesContent() {
		return appendChunk(dst, content)
	}
	return append(dst, content...)
}

// framesContent reports whether the client gets a body without a length in chunks.
func (s *session) framesContent() bool { return s.stream == nil && !s.ex.unframed }

// endAnswer sends out, the last part of a body without a length, and its end with the trailers.
func (s *session) endAnswer(out []byte) error {
	if last := s.ex.tokens.end(); len(last) > 0 {
		s.ex.result.BytesOut += int64(len(last))
		out = s.appendContent(out, last)
	}
	switch {
	case s.stream != nil:
		_ = s.stream.SetWriteDeadline(s.within())
		if err := s.stream.sendEnd(out, s.chunks.permitted(s.ex.target.responseRules)); err != nil {
			return fmt.Errorf("%w: %w", httppool.ErrClientGone, err)
		}
		return nil
	case s.framesContent():
		out = appendTrailers(out, s.chunks.permitted(s.ex.target.responseRules))
	}
	return s.toClient(out)
}

// next decodes the next piece of a body, of a size that fits a buffer together with its framing. It may be the last.
func next(d *decoder, from *stream) (content []byte, n int, done bool, err error) {
	content, n, done, err = d.Next(from.upTo(bufferSize / 2))
	if errors.Is(err, httpwire.ErrIncomplete) && len(from.bytes()) > bufferSize/2 { // for long trailers
		return d.Next(from.bytes())
	}
	return content, n, done || n > 0 && n == len(from.bytes()) && d.ended(), err
}

// unframedBody sends all data up to the end of the connection, in the framing of the client.
func (s *session) unframedBody(out []byte) error {
	s.ex.rest.events = s.isEventStream()
	s.chunks.Reset(nil) // so that there are no trailers
	return s.moreUnframed(out)
}

// moreUnframed is unframedBody from the current position in the body.
func (s *session) moreUnframed(out []byte) error {
	for {
		for len(s.server.bytes()) > 0 {
			content := s.server.upTo(bufferSize / 2)
			if len(out)+len(content)+s.ex.tokens.overhead() > cap(out) {
				if err := s.toClient(out); err != nil {
					return err
				}
				out = out[:0]
			}
			out = s.appendAnswer(out, content)
			s.server.take(len(content))
		}
		if len(out) > 0 {
			if err := s.toClient(out); err != nil {
				return err
			}
		}
		if err := s.fromServer(); err == io.EOF {
			return s.endAnswer(s.outgoing())
		} else if err != nil {
			return err
		}
		out = s.outgoing()
	}
}

// chunkOverhead bounds the bytes of a chunk besides its content.
const chunkOverhead = 24

func appendChunk(dst, content []byte) []byte {
	if len(content) == 0 {
		return dst
	}
	dst = appendChunkSize(dst, int64(len(content)))
	dst = append(dst, content...)
	return append(dst, crlf...)
}

// appendChunkSize appends the size line of a chunk of n bytes.
func appendChunkSize(dst []byte, n int64) []byte {
	return append(strconv.AppendInt(dst, n, 16), crlf...)
}

// appendTrailers appends the last chunk, which has no content, and the trailers.
func appendTrailers(dst []byte, trailers []httpwire.Field) []byte {
	return append(appendLines(append(dst, "0\r\n"...), trailers), crlf...)
}

// put copies b to the front of the bytes to read.
func (s *stream) put(b []byte) {
	switch {
	case len(b) == 0:
		return
	case len(b) > bufferSize: // bytes behind a long head
		s.held.add(len(b))
		s.buf = make([]byte, len(b))
	default:
		s.buf = takeBuffer(s.held)[:]
	}
	s.r, s.w = 0, copy(s.buf, b)
}

// keep makes b, which is short, all the unread bytes, in a buffer of its size: fill needs widen before.
func (s *stream) keep(b []byte) {
	s.buf = bytes.Clone(b)
	s.r, s.w = 0, len(b)
	s.held.add(s.cost())
}

// before returns b behind the bytes of keep, and drops these.
func (s *stream) before(b []byte) []byte {
	if kept := s.bytes(); len(kept) > 0 {
		b = slices.Concat(kept, b)
		s.drop()
	}
	return b
}

// widen moves the bytes of keep to a buffer that fill can use.
func (s *stream) widen() {
	if kept := s.bytes(); len(kept) > 0 && len(s.buf) < bufferSize {
		s.drop()
		s.put(kept)
	}
}

// upTo returns at most n of the unread bytes in the buffer.
func (s *stream) upTo(n int) []byte {
	b := s.bytes()
	return b[:min(n, len(b))]
}
