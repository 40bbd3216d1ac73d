package httpproxy

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/headpond/headpond/httpwire"
)

// Compression compresses answers for clients that accept it (RFC 9110, section 12.5.3). It leaves answers unchanged
// that have a Content-Encoding or a checksum, are partial (206) or small, or go to a client of HTTP/1.0, and those
// where request or answer has "Cache-Control: no-transform". Trailers with a checksum are dropped. The answer to HEAD
// has the same header as that to GET. A strong ETag becomes weak.
//
// Content that has arrived is compressed and sent before the next wait for the server. If a server breaks off an
// answer, the client's answer breaks off, too. The process compresses at most 128 answers at a time, within an eighth
// of the Memory; further answers pass unchanged.
type Compression struct {
	// Encodings are the allowed encodings, "zstd" and "gzip", in the order of preference. Empty = both, in this order.
	Encodings []string
	// Types are the media types of answers to compress; "text/*" stands for all text types. Empty = DefaultCompressed.
	// text/event-stream is never compressed, because its events must arrive one by one; nor is gRPC, which compresses
	// its messages itself.
	Types []string
	// MinBytes is the shortest length to compress; an answer of unknown length is always compressed. 0 =
	// DefaultMinCompressed.
	MinBytes int64
}

// DefaultMinCompressed is the default of Compression.MinBytes: shorter answers fit one packet anyway.
const DefaultMinCompressed = 1024

// DefaultCompressed returns the default of Compression.Types.
func DefaultCompressed() []string {
	return []string{
		"text/*", "application/json", "application/javascript", "application/xml", "application/xhtml+xml", "application/ld+json", "application/manifest+json",
		"application/problem+json", "application/rss+xml", "application/atom+xml", "application/wasm", "application/x-ndjson", "image/svg+xml",
	}
}

// Compressions lists the values of Compression.Encodings.
func Compressions() []string { return []string{"zstd", "gzip"} }

// eventStream is the media type of server-sent events.
const eventStream = "text/event-stream"

// grpcType is the prefix of gRPC's media types.
const grpcType = "application/grpc"

// maxCompressedTypes bounds Compression.Types.
const maxCompressedTypes = 64

// CheckCompressedType returns an error if t cannot be one of Compression.Types.
func CheckCompressedType(t string) error {
	main, sub, ok := strings.Cut(t, "/")
	switch {
	case !ok || !httpwire.ValidToken(main) || !httpwire.ValidToken(sub) || main == "*" || sub != "*" && strings.Contains(sub, "*"):
		return fmt.Errorf("%.40q: want a media type such as application/json or text/*", t)
	case strings.EqualFold(t, eventStream):
		return errors.New("text/event-stream is never compressed: its events must arrive one by one")
	case len(t) >= len(grpcType) && strings.EqualFold(t[:len(grpcType)], grpcType):
		return errors.New("gRPC compresses its messages itself")
	}
	return nil
}

func (c *Compression) verify() error {
	if c == nil {
		return nil
	}
	for i, e := range c.Encodings {
		if !slices.Contains(Compressions(), e) || slices.Contains(c.Encodings[:i], e) {
			return fmt.Errorf("Compression: the encoding %.20q is unknown, or there twice", e)
		}
	}
	for _, t := range c.Types {
		if err := CheckCompressedType(t); err != nil {
			return fmt.Errorf("Compression: %w", err)
		}
	}
	if c.MinBytes < 0 || len(c.Types) > maxCompressedTypes {
		return fmt.Errorf("Compression: negative MinBytes, or more than %d types", maxCompressedTypes)
	}
	return nil
}

// compressing is a route's Compression prepared for use. It is immutable.
type compressing struct {
	encodings []string
	types     []string // "text/" for all text types
	least     int64
}

func newCompressing(c *Compression) *compressing {
	if c == nil {
		return nil
	}
	z := &compressing{encodings: c.Encodings, least: c.MinBytes}
	if len(z.encodings) == 0 {
		z.encodings = Compressions()
	}
	if z.least == 0 {
		z.least = DefaultMinCompressed
	}
	types := c.Types
	if len(types) == 0 {
		types = DefaultCompressed()
	}
	for _, t := range types {
		z.types = append(z.types, strings.TrimSuffix(t, "*"))
	}
	return z
}

// answerCompression says how the answer of an exchange is compressed.
type answerCompression struct {
	encoding string      // encoding named in the head; "" = none
	by       *compressor // compressor of the content; nil = there is no content, or it passes unchanged
	varies   bool        // compression depends on Accept-Encoding, and the server does not say so in Vary
	weak     bool        // the ETag becomes weak
	length   int64       // length of the server's answer; the client gets another framing
}

// considerCompression decides whether the answer is compressed. It is called once for each answer, after its head was
// read.
func (s *session) considerCompression(z *compressing) {
	q, r := &s.ex.compression, &s.resp
	if r.Status == http.StatusNotModified { // its fields replace those of the answer in the client's cache
		q.weak = hasWeakened(s.req.Fields, r)
		q.varies = q.weak && !s.saysVary(r)
		return
	}
	if r.Status < 200 || r.Status == http.StatusNoContent || r.Status == http.StatusResetContent || r.Status == http.StatusPartialContent || !z.takes(r) {
		return
	}
	q.varies = !s.saysVary(r)
	length := r.Length
	if s.asksHead() {
		length = headLength(r)
	}
	if s.req.Minor == 0 || length >= 0 && length < z.least || forbidsTransform(s.req.Fields) || s.ex.target.responseRules.drops([]byte("Content-Encoding")) {
		return
	}
	encoding := z.choose(&s.req)
	if encoding == "" {
		return
	}
	if !s.asksHead() {
		if q.by = s.takeCompressor(encoding); q.by == nil {
			return
		}
		q.length, r.Length = r.Length, httpwire.Chunked
	}
	q.encoding, q.weak = encoding, true
}

// headLength returns the length named in the answer to a HEAD request; Unframed if it names none.
func headLength(r *httpwire.Response) int64 {
	for i := range r.Fields {
		if f := &r.Fields[i]; f.Known == httpwire.ContentLength {
			if n, err := strconv.ParseInt(view(f.Value), 10, 64); err == nil {
				return n
			}
		}
	}
	return httpwire.Unframed
}

// forbidsTransform reports whether fields forbid changing the content (RFC 9111, sections 5.2.1.6 and 5.2.2.6).
func forbidsTransform(fields []httpwire.Field) bool {
	for i := range fields {
		if f := &fields[i]; httpwire.EqualFold(f.Name, "cache-control") {
			for item := range bytes.SplitSeq(f.Value, []byte{','}) {
				if httpwire.EqualFold(bytes.Trim(item, " \t"), "no-transform") {
					return true
				}
			}
		}
	}
	return false
}

// hasWeakened reports whether a client's If-None-Match has the weak ETag that compression made of the server's, and not
// the server's own.
func hasWeakened(request []httpwire.Field, r *httpwire.Response) bool {
	var tag []byte
	for i := range r.Fields {
		if f := &r.Fields[i]; httpwire.EqualFold(f.Name, "etag") {
			tag = f.Value
		}
	}
	if len(tag) < 2 || tag[0] != '"' || tag[len(tag)-1] != '"' {
		return false
	}
	weak := false
	for i := range request {
		f := &request[i]
		if !httpwire.EqualFold(f.Name, "if-none-match") {
			continue
		}
		for from := 0; ; {
			at := bytes.Index(f.Value[from:], tag)
			if at < 0 {
				break
			}
			if from += at; !bytes.HasSuffix(f.Value[:from], []byte("W/")) {
				return false
			}
			weak = true
			from += len(tag)
		}
	}
	return weak
}

// saysVary reports whether the server's answer tells the client that it depends on Accept-Encoding.
func (s *session) saysVary(r *httpwire.Response) bool {
	return variesAlready(r) && !s.ex.target.responseRules.drops([]byte("Vary"))
}

// variesAlready reports whether the server's Vary field names Accept-Encoding.
func variesAlready(r *httpwire.Response) bool {
	for i := range r.Fields {
		if f := &r.Fields[i]; httpwire.EqualFold(f.Name, "vary") {
			for item := range bytes.SplitSeq(f.Value, []byte{','}) {
				if item = bytes.Trim(item, " \t"); string(item) == "*" || httpwire.EqualFold(item, "accept-encoding") {
					return true
				}
			}
		}
	}
	return false
}

// takes reports whether the fields of an answer allow compression.
func (z *compressing) takes(r *httpwire.Response) bool {
	types := 0
	for i := range r.Fields {
		f := &r.Fields[i]
		switch {
		case f.Known != httpwire.Other:
		case httpwire.EqualFold(f.Name, "content-type"):
			if types++; !z.takesType(f.Value) {
				return false
			}
		case isUntouchable(f.Name):
			return false
		}
	}
	return types == 1 && !forbidsTransform(r.Fields)
}

// untouchable lists the fields of answers that are compressed already, are partial, or have a checksum of the content.
var untouchable = []string{"content-encoding", "content-range", "content-md5", "digest", "repr-digest", "content-digest"}

func isUntouchable(name []byte) bool {
	return slices.ContainsFunc(untouchable, func(u string) bool { return httpwire.EqualFold(name, u) })
}

func (z *compressing) takesType(value []byte) bool {
	media, _, _ := bytes.Cut(value, []byte{';'})
	media = bytes.Trim(media, " \t")
	if httpwire.EqualFold(media, eventStream) || len(media) >= len(grpcType) && httpwire.EqualFold(media[:len(grpcType)], grpcType) {
		return false
	}
	for _, t := range z.types {
		if n := len(t); len(media) >= n && strings.EqualFold(view(media[:n]), t) && (len(media) == n || t[n-1] == '/') {
			return true
		}
	}
	return false
}

// choose returns the encoding that the client prefers; "" if it accepts none of the route's, or prefers the answer
// uncompressed.
func (z *compressing) choose(r *httpwire.Request) (best string) {
	most := 0
	for _, e := range z.encodings {
		if q, _ := acceptance(r, e); q > most {
			best, most = e, q
		}
	}
	if q, named := acceptance(r, "identity"); named && q > most {
		return ""
	}
	return best
}

// acceptance returns the weight, in thousandths, that the request's Accept-Encoding fields give an encoding (RFC 9110,
// section 12.5.3), and whether they name it. "*" stands for the encodings that are not named.
func acceptance(r *httpwire.Request, encoding string) (weight int, named bool) {
	for i := range r.Fields {
		f := &r.Fields[i]
		if !httpwire.EqualFold(f.Name, "accept-encoding") {
			continue
		}
		for item := range bytes.SplitSeq(f.Value, []byte{','}) {
			name, parameters, weighed := bytes.Cut(item, []byte{';'})
			name = bytes.Trim(name, " \t")
			q := 1000
			if weighed {
				q = quality(parameters)
			}
			switch {
			case httpwire.EqualFold(name, encoding) || encoding == "gzip" && httpwire.EqualFold(name, "x-gzip"):
				return q, true
			case string(name) == "*":
				weight = q
			}
		}
	}
	return weight, false
}

// quality parses a parameter such as q=0.8 into thousandths; an invalid one is 0.
func quality(parameters []byte) int {
	p := bytes.Trim(parameters, " \t")
	if len(p) < 3 || p[0]|0x20 != 'q' || p[1] != '=' || p[2] != '0' && p[2] != '1' {
		return 0
	}
	q := int(p[2]-'0') * 1000
	digits := p[3:]
	if len(digits) == 0 {
		return q
	}
	if digits[0] != '.' || len(digits) > 4 {
		return 0
	}
	scale := 100
	for _, d := range digits[1:] {
		if d < '0' || d > '9' {
			return 0
		}
		q += int(d-'0') * scale
		scale /= 10
	}
	return min(q, 1000)
}

// rewrites reports whether a field of the answer changes or is dropped, and writes its changed form.
func (q *answerCompression) rewrites(w *headWriter, f *httpwire.Field) bool {
	switch {
	case !q.weak:
		return false
	case f.Known == httpwire.ContentLength || httpwire.EqualFold(f.Name, "accept-ranges"): // of 304, too: they are those of another answer
		return true
	case httpwire.EqualFold(f.Name, "etag") && !bytes.HasPrefix(f.Value, []byte("W/")):
		w.begin("ETag")
		w.dst = append(append(w.dst, "W/"...), f.Value...)
		w.end()
		return true
	}
	return false
}

// write appends the fields of an answer that is compressed, or that could have been.
func (q *answerCompression) write(w *headWriter) {
	if q.encoding != "" {
		w.line("Content-Encoding", q.encoding)
	}
	if q.varies {
		w.line("Vary", "Accept-Encoding")
	}
}
