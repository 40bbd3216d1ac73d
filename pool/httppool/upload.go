package httppool

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/headpond/headpond/httpwire"
)

// uploadState is the progress of the request's body.
type uploadState uint8

const (
	uploadNone    uploadState = iota // not started
	uploadRunning                    // being read, or written with more to come
	uploadLast                       // read to its end; the last bytes are being written
	uploadDone                       // written
	uploadFailed                     // see uploadErr
)

// A copy buffer holds chunkRoom bytes for a chunk's size line, the content, and chunkTail bytes for the end of the
// chunk. Its size leaves space for the headers of a protocol that carries the connection in buffers of 128 KiB.
const (
	copyBufferSize = 128<<10 - 256
	chunkRoom      = 16
	chunkTail      = 16
	lastWrite      = time.Second // how long a response's end waits for the request's last write to return
)

var copyPool = sync.Pool{New: func() any { b := make([]byte, copyBufferSize); return &b }}

var errAbandoned = errors.New("the exchange is over")

// startUpload sends the body in a new goroutine, which ends with the body, or once the connection is closed and the
// body's Read returns.
func (x *exchange) startUpload(length int64) {
	x.uploaded = make(chan struct{})
	var proceed chan bool
	if x.asked.waits {
		proceed = make(chan bool, 1)
		x.proceed, x.missing100 = proceed, true
	}
	go x.runUpload(length, proceed)
}

func (x *exchange) runUpload(length int64, proceed <-chan bool) {
	defer close(x.uploaded)
	err := x.awaitContinue(proceed)
	if err == nil {
		err = x.sendBody(length)
	}
	x.mu.Lock()
	keep := x.failed && !x.touched // for another attempt
	x.mu.Unlock()
	if !keep {
		closeBody(x.req)
	}
	x.mu.Lock()
	x.upload, x.uploadErr = uploadDone, err
	if err != nil {
		x.upload = uploadFailed
	}
	x.mu.Unlock()
	if errors.Is(err, ErrRequestBody) || errors.Is(err, os.ErrDeadlineExceeded) {
		_ = x.conn.close() // the request cannot be completed, or the server reads nothing
		return
	}
	if err == nil {
		x.isSent()
	}
	x.awaitHead()
}

// awaitContinue waits for "100 Continue" if proceed is not nil.
func (x *exchange) awaitContinue(proceed <-chan bool) error {
	if proceed == nil {
		return nil
	}
	timer := time.NewTimer(orDefault(x.opt.ContinueTimeout, defaultContinueTimeout))
	defer timer.Stop()
	select {
	case send := <-proceed:
		if !send {
			return errAbandoned
		}
	case <-timer.C:
	case <-x.req.Context().Done():
		return errAbandoned
	}
	return nil
}

// sendBody copies the body to the connection in its framing.
func (x *exchange) sendBody(length int64) error {
	buf := copyPool.Get().(*[]byte)
	defer copyPool.Put(buf)
	if length == httpwire.Chunked {
		return x.sendChunks(*buf)
	}
	for left := length; left > 0; {
		if !x.reading() {
			return errAbandoned
		}
		p := *buf
		if left < int64(len(p)) {
			p = p[:left+1] // one byte more, to detect a body that is too long
		}
		n, err := x.req.Body.Read(p)
		if int64(n) > left {
			return fmt.Errorf("%w: longer than its Content-Length of %d", ErrRequestBody, length)
		}
		if left -= int64(n); left > 0 && err != nil {
			if err == io.EOF {
				err = fmt.Errorf("%d bytes short of its Content-Length of %d", left, length)
			}
			return fmt.Errorf("%w: %w", ErrRequestBody, err)
		}
		if err := x.sendPart(p[:n], left == 0); err != nil {
			return err
		}
	}
	return nil
}

// sendChunks sends the bytes of each Read as a chunk, in one write with its size line.
func (x *exchange) sendChunks(buf []byte) error {
	content := buf[chunkRoom : len(buf)-chunkTail]
	for {
		if !x.reading() {
			return errAbandoned
		}
		n, err := x.req.Body.Read(content)
		if err != nil && err != io.EOF {
			return fmt.Errorf("%w: %w", ErrRequestBody, err)
		}
		part := buf[:0]
		if n > 0 {
			part = frameChunk(buf, n)
		}
		if err == io.EOF {
			part = append(part, "0\r\n"...)
			if part, err = x.appendTrailers(part); err != nil {
				return fmt.Errorf("%w: %w", ErrRequestBody, err)
			}
			return x.sendPart(append(part, crlf...), true)
		}
		if err := x.sendPart(part, false); err != nil {
			return err
		}
	}
}

// frameChunk writes the size line before and the CRLF after the n bytes at buf[chunkRoom:] and returns the chunk.
func frameChunk(buf []byte, n int) []byte {
	var line [chunkRoom]byte
	size := append(strconv.AppendUint(line[:0], uint64(n), 16), crlf...)
	start := chunkRoom - len(size)
	copy(buf[start:], size)
	return append(buf[start:chunkRoom+n], crlf...)
}

func (x *exchange) appendTrailers(dst []byte) ([]byte, error) {
	return appendFields(dst, x.req.Trailer, httpwire.ForbiddenTrailer)
}

func (x *exchange) sendPart(p []byte, last bool) error {
	if last {
		x.mu.Lock()
		x.upload = uploadLast
		x.mu.Unlock()
	}
	if len(p) == 0 {
		return nil
	}
	_, err := x.write(p)
	return err
}

// reading reports whether the uploader may continue to read, and records that the body has been touched.
func (x *exchange) reading() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.abandoned {
		return false
	}
	x.upload, x.touched = uploadRunning, true
	return true
}

// abandon stops the uploader and returns its error, if any.
func (x *exchange) abandon() error {
	if x.proceed != nil {
		x.proceed <- false
		x.proceed = nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.abandoned = true
	return x.uploadErr
}

// bodyIsOurs reports that the uploader has not read from the request's body and will not, so that it can be sent again or
// closed. It is called before the exchange began or after it failed.
func (x *exchange) bodyIsOurs() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return !x.touched
}

// uploadFinished reports whether the whole request has been written. A server that has answered may have read the last
// bytes before the write that sent them returned, so it waits for that write.
func (x *exchange) uploadFinished() bool {
	x.mu.Lock()
	state := x.upload
	if state == uploadLast {
		x.deadline = true
	}
	x.mu.Unlock()
	if state == uploadLast {
		_ = x.conn.nc.SetWriteDeadline(time.Now().Add(lastWrite))
		<-x.uploaded
		x.mu.Lock()
		state = x.upload
		x.mu.Unlock()
	}
	return state == uploadDone
}
