package httpproxy

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/httpwire"
)

// Compression levels, which cost about 10 ms of processor time per MiB, and zstd's window, which determines the memory
// of an encoder; every decoder supports 8 MiB (RFC 9659).
const (
	gzipLevel  = 5
	zstdLevel  = zstd.SpeedFastest
	zstdWindow = 256 << 10
)

// Bounds of the memory of compressors.
const (
	maxCompressors  = 128             // in use, in the process
	compressorBytes = 1<<20 + 256<<10 // of each, including compressed bytes not sent yet
	compressorShare = 8               // compressors use at most this fraction of the memory for requests
	maxKeptOut      = 2 * bufferSize  // of compressed bytes, in a compressor that is not in use
	pieceBytes      = bufferSize / 2  // content compressed in one call
	turnBytes       = 64 << 10        // content after which other fibers run, about a millisecond
)

// encoder is an encoder of one encoding.
type encoder interface {
	io.WriteCloser
	Flush() error
	Reset(w io.Writer)
}

// compressor compresses one body at a time into out.
type compressor struct {
	encoder
	kind    *compressorKind
	claimed int // see session.claim
	out     bytes.Buffer
}

// compressorKind is an encoding and its spare compressors.
type compressorKind struct {
	sync.Pool
	index int // in the counts of routes
}

var compressorKinds = map[string]*compressorKind{
	"gzip": {index: 0, Pool: sync.Pool{New: func() any {
		w, _ := gzip.NewWriterLevel(io.Discard, gzipLevel) // no error: the level is valid
		return &compressor{encoder: w}
	}}},
	"zstd": {index: 1, Pool: sync.Pool{New: func() any {
		w, _ := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstdLevel), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(zstdWindow), zstd.WithLowerEncoderMem(true), zstd.WithZeroFrames(true)) // no error: the options are valid; the last makes an empty answer a frame, too
		return &compressor{encoder: w}
	}}},
}

var compressorsInUse atomic.Int64

// takeCompressor returns a compressor for the answer, to be returned by releaseCompressor; nil = too many are in use.
func (s *session) takeCompressor(encoding string) *compressor {
	most := min(maxCompressors, s.p.ledger.memory.limit/compressorShare/compressorBytes)
	claimed, ok := s.claim(compressorBytes)
	if compressorsInUse.Add(1) > max(most, 1) || !ok {
		s.unclaim(claimed)
		compressorsInUse.Add(-1)
		s.countRoute(compressionBusy, 1)
		return nil
	}
	kind := compressorKinds[encoding]
	c := kind.Get().(*compressor)
	c.kind, c.claimed = kind, claimed
	c.Reset(&c.out)
	s.held.add(compressorBytes)
	s.countRoute(compressedBy+kind.index, 1)
	return c
}

// releaseCompressor returns the compressor of the answer for other answers.
func (s *session) releaseCompressor() {
	c := s.ex.compression.by
	s.ex.compression.by = nil
	if c.out.Reset(); c.out.Cap() > maxKeptOut {
		c.out = bytes.Buffer{}
	}
	c.Reset(io.Discard) // also drops a body that has broken off
	c.kind.Put(c)
	s.held.add(-compressorBytes)
	s.unclaim(c.claimed)
	compressorsInUse.Add(-1)
}

// countRoute adds n to a count of the request's route.
func (s *session) countRoute(count, n int) {
	s.ex.target.traffic.Shard(int(s.shard)).Add(count, uint64(n))
}

// compressedBody compresses the content, in any framing of the server, and sends it in that of the client.
func (s *session) compressedBody(out []byte) error {
	defer s.releaseCompressor()
	c := s.ex.compression.by
	s.chunks.Reset(s.serverCarrier())
	turn := 0
	for left := s.ex.compression.length; ; {
		content, n, done, err := s.nextContent(&left)
		if err != nil && !errors.Is(err, httpwire.ErrIncomplete) {
			return err
		}
		s.ex.tokens.read(content)
		if out, err = s.compress(out, content, done); err != nil {
			return err
		}
		s.server.take(n)
		if done {
			s.chunks.Trailer = slices.DeleteFunc(s.chunks.Trailer, func(f httpwire.Field) bool { return isUntouchable(f.Name) || httpwire.EqualFold(f.Name, "etag") })
			return s.endAnswer(out)
		}
		if turn += n; turn >= turnBytes {
			turn = 0
			fiber.Sleep(0)
		}
		if s.server.r < s.server.w && n > 0 {
			continue
		}
		if s.waitsForServer() {
			if err := c.Flush(); err != nil {
				return err
			}
			if out, err = s.sendCompressed(out); err != nil {
				return err
			}
			if err := s.toClient(out); err != nil {
				return err
			}
			out = out[:0]
		}
		switch err := s.fromServer(); {
		case err == io.EOF && left == httpwire.Unframed:
			left = 0
		case err != nil:
			return unexpected(err)
		}
	}
}

// waitsForServer reports whether the next piece from the server has not arrived, so that the client must get what there
// is.
func (s *session) waitsForServer() bool {
	if p := s.place(); p != nil {
		return !p.hasContent()
	}
	state := s.server.conn.State()
	return state != fiber.Pending && state != fiber.Closing
}

// nextContent returns the next content in the server's buffer, and its size there with its framing. left is the number
// of bytes still to come of a body with a length; the other framings are as in Response.Length.
func (s *session) nextContent(left *int64) (content []byte, n int, done bool, err error) {
	switch *left {
	case httpwire.Chunked:
		return next(&s.chunks, &s.server)
	case httpwire.Unframed:
		content = s.server.upTo(pieceBytes)
		return content, len(content), false, nil
	}
	content = s.server.upTo(int(min(*left, pieceBytes)))
	*left -= int64(len(content))
	return content, len(content), *left == 0, nil
}

// compress compresses a piece of content, the last one if done, and sends the compressed bytes that do not fit out.
func (s *session) compress(out, content []byte, done bool) ([]byte, error) {
	c := s.ex.compression.by
	if len(content) > 0 {
		if _, err := c.Write(content); err != nil {
			return out, err
		}
		s.countRoute(compressedFrom, len(content))
	}
	if done {
		if err := c.Close(); err != nil {
			return out, err
		}
	}
	return s.sendCompressed(out)
}

// sendCompressed appends the compressed bytes to out, in the framing of the client, and sends those that do not fit.
func (s *session) sendCompressed(out []byte) ([]byte, error) {
	c := s.ex.compression.by
	s.countRoute(compressedTo, c.out.Len())
	for content := c.out.Bytes(); len(content) > 0; {
		k := min(len(content), cap(out)-len(out)-chunkOverhead)
		if k <= 0 {
			if err := s.toClient(out); err != nil {
				return nil, err
			}
			out = out[:0]
			continue
		}
		out = s.appendContent(out, content[:k])
		s.ex.result.BytesOut += int64(k)
		content = content[k:]
	}
	c.out.Reset()
	return out, nil
}
