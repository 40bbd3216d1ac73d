// Package httpwire parses HTTP/1.1 messages in place: heads, framing and the chunked coding of
// RFC 9112, strictly, bounded, without copying and without allocating.
//
//	var req httpwire.Request
//	n, err := req.Parse(buf)
//	switch {
//	case errors.Is(err, httpwire.ErrIncomplete): // read more and parse again
//	case err != nil:                             // malformed or ambiguous
//	default:
//		body := buf[n:] // req.Length bytes of it, or req.Chunked
//	}
//
// It refuses input about whose end two readers could disagree: bare CR and LF, folded lines, space
// before a colon, repeated or signed Content-Length, Content-Length beside Transfer-Encoding,
// codings other than a single chunked or in HTTP/1.0, chunk sizes that overflow.
//
// Everything is pure: bytes in, slices of the same bytes out. A Request, Response or Chunks belongs to
// one user at a time; its results are valid as long as the bytes it was given.
package httpwire
