package httpproxy

import (
	"errors"

	"github.com/headpond/headpond/httpwire"
)

// h2Outgoing is how much of a message's body is still to be sent.
type h2Outgoing struct {
	length int64 // of the remainder of the body; or httpwire.Chunked: it has none, and ends with end
	done   bool  // the message is complete
}

// h2Sink takes the content. last: nothing follows.
type h2Sink interface {
	sendData(p []byte, last bool) error
	sendTrailers(fields []httpwire.Field) error
}

// begin starts a body.
func (o *h2Outgoing) begin(length int64) { o.length, o.done = length, length == 0 }

var errBeyond = errors.New("more than one message")

// write passes a part of the body on; n is how many bytes of p were used.
func (o *h2Outgoing) write(p []byte, to h2Sink) (n int, err error) {
	switch {
	case len(p) == 0:
		return 0, nil
	case o.done || o.length >= 0 && int64(len(p)) > o.length:
		return 0, errBeyond
	case o.length >= 0:
		o.length -= int64(len(p))
		o.done = o.length == 0
	}
	return len(p), to.sendData(p, o.done)
}

// end passes on the last part of a body without a length, which may be empty, and the trailers.
func (o *h2Outgoing) end(p []byte, trailers []httpwire.Field, to h2Sink) error {
	if o.done {
		return errBeyond
	}
	o.done = true
	if len(trailers) == 0 {
		return to.sendData(p, true)
	}
	if len(p) > 0 {
		if err := to.sendData(p, false); err != nil {
			return err
		}
	}
	return to.sendTrailers(trailers)
}
