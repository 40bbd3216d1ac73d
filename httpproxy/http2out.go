package httpproxy

import (
	"bytes"
	"errors"

	"github.com/headpond/headpond/httpwire"
)

// h2Outgoing makes frames of a body that is written as in HTTP/1.1.
type h2Outgoing struct {
	length int64 // of the remainder of the body; or httpwire.Chunked
	done   bool  // the message is complete
	chunks httpwire.Chunks
	tail   []byte // an incomplete piece of what was written
}

// h2Sink takes the content. last: nothing follows.
type h2Sink interface {
	sendData(p []byte, last bool) error
	sendTrailers(fields []httpwire.Field) error
}

// begin starts a body.
func (o *h2Outgoing) begin(length int64) {
	o.length, o.done = length, length == 0
	o.chunks.Reset()
	o.chunks.Own = true
}

// write passes content on until p is used up, or its tail is incomplete. n is how many bytes of p were used.
func (o *h2Outgoing) write(p []byte, to h2Sink) (n int, err error) {
	kept := len(o.tail)
	if kept > 0 {
		p = append(o.tail, p...)
		o.tail = nil
	}
	for n < len(p) {
		k, err := o.pass(p[n:], to)
		n += k
		if errors.Is(err, httpwire.ErrIncomplete) {
			o.tail = bytes.Clone(p[n:])
			n = len(p)
			break
		}
		if err != nil {
			return max(n-kept, 0), err
		}
	}
	return n - kept, nil
}

var errBeyond = errors.New("more than one message")

// pass passes on the beginning of p, and returns how many bytes that were.
func (o *h2Outgoing) pass(p []byte, to h2Sink) (int, error) {
	switch {
	case o.done:
		return 0, errBeyond
	case o.length == httpwire.Chunked:
		return o.passChunks(p, to)
	}
	k := int(min(o.length, int64(len(p))))
	o.length -= int64(k)
	if k < len(p) && o.length == 0 {
		return 0, errBeyond
	}
	o.done = o.length == 0
	return k, to.sendData(p[:k], o.done)
}

// passChunks passes the content of chunks on, together with the end if p contains it.
func (o *h2Outgoing) passChunks(p []byte, to h2Sink) (total int, err error) {
	var held []byte
	for {
		content, n, done, err := o.chunks.Next(p[total:])
		if errors.Is(err, httpwire.ErrMalformed) {
			return 0, err
		}
		if len(held) > 0 && (len(content) > 0 || err != nil || done && len(o.chunks.Trailer) > 0) {
			if err := to.sendData(held, false); err != nil {
				return 0, err
			}
			held = nil
		}
		total += n
		o.done = done
		switch {
		case err != nil:
			return total, err
		case done && len(o.chunks.Trailer) > 0:
			return total, to.sendTrailers(o.chunks.Trailer)
		case done:
			return total, to.sendData(held, true)
		}
		if len(content) > 0 {
			held = content
		}
		if total == len(p) {
			if len(held) > 0 {
				return total, to.sendData(held, false)
			}
			return total, nil
		}
	}
}
