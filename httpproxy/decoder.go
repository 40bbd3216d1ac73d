package httpproxy

import (
	"slices"

	"github.com/headpond/headpond/httpwire"
)

// decoder decodes a body without a length: chunks of HTTP/1.1, or what a stream of HTTP/2 or of a Carrier has carried, which is
// the content itself. The zero value decodes chunks. Reset makes it ready for another body.
type decoder struct {
	httpwire.Chunks
	carrier carrying // nil = the body is in chunks
}

// carrying is a stream from which a body without a length is read as it is.
type carrying interface {
	// bodyEnd reports whether the body has ended and all of it was read, and appends its trailers to dst.
	bodyEnd(dst []httpwire.Field) (trailers []httpwire.Field, ended bool)
}

// Reset makes d ready for another body, read from that stream; nil = in chunks.
func (d *decoder) Reset(from carrying) {
	d.Chunks.Reset()
	d.carrier = from
}

// Next is Chunks.Next. An empty b means that everything that was read has been decoded.
func (d *decoder) Next(b []byte) (content []byte, n int, done bool, err error) {
	switch {
	case d.carrier == nil:
		return d.Chunks.Next(b)
	case len(b) > 0:
		return b, len(b), false, nil
	case d.ended():
		return nil, 0, true, nil
	}
	return nil, 0, false, httpwire.ErrIncomplete
}

// ended reports whether the body has ended with what was read. For chunks, only Next knows.
func (d *decoder) ended() (ended bool) {
	if d.carrier != nil {
		d.Trailer, ended = d.carrier.bodyEnd(d.Trailer[:0])
	}
	return ended
}

// permitted returns the trailers that may be passed on and that the route's rules for the header do not drop, once Next has said
// done.
func (d *decoder) permitted(rules *headerRules) []httpwire.Field {
	d.Trailer = slices.DeleteFunc(d.Trailer, func(f httpwire.Field) bool { return httpwire.ForbiddenTrailer(f.Name) || rules.drops(f.Name) })
	return d.Trailer
}
