package route

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Stream is a response of any length. The Ctx stays valid until it has been written.
type Stream struct {
	// ContentType is the media type; the default is application/octet-stream.
	ContentType string
	// Body is read to its end, and closed when it is an io.Closer.
	Body io.Reader
	// Write is called instead of reading Body. Its output reaches the client when net/http's buffer is full or Write
	// returns. w is an http.Flusher if the server's ResponseWriter is one.
	Write func(w io.Writer) error
	// Size is the length in bytes, which is sent as Content-Length. 0 means unknown.
	Size int64
}

// stream answers with a Stream.
func (x *exchange) stream(s *Stream) {
	if c, ok := s.Body.(io.Closer); ok {
		defer c.Close()
	}
	h := x.w.Header()
	if h["Content-Type"] == nil {
		contentType := s.ContentType
		if contentType == "" {
			contentType = "application/octet-stream"
		}
		h["Content-Type"] = []string{contentType}
	}
	if s.Size > 0 {
		h["Content-Length"] = []string{strconv.FormatInt(s.Size, 10)}
	}
	if s.Body == nil && s.Write == nil {
		s.Body = http.NoBody
	}
	x.writeHeader(x.statusCode())
	if x.r.Method == http.MethodHead {
		return
	}
	var err error
	if s.Write != nil {
		err = s.Write(x.w)
	} else {
		_, err = io.Copy(x.w, s.Body)
	}
	x.ended(err)
}

// ended ends a response that has begun. After an error it closes the connection, so that the client cannot mistake a
// part for the whole.
func (x *exchange) ended(err error) {
	if err == nil {
		return
	}
	if x.r.Context().Err() == nil {
		x.ep.log().Warn("route: a stream ended early", "route", x.ep.name(), "err", err)
	}
	x.cutOff()
	panic(http.ErrAbortHandler)
}

// unwrapper is a ResponseWriter around another.
type unwrapper interface{ Unwrap() http.ResponseWriter }

// cutOff closes the connection below a ResponseWriter of a router's, where it can be taken from the server, as in
// HTTP/1: middleware may recover from the panic that does it otherwise, as gin.Recovery does.
func (x *exchange) cutOff() {
	u, ok := x.w.(unwrapper)
	if !ok {
		return
	}
	w := x.w
	for ; ok; u, ok = w.(unwrapper) {
		w = u.Unwrap()
	}
	if h, ok := w.(http.Hijacker); ok {
		if conn, _, err := h.Hijack(); err == nil {
			conn.Close()
		}
	}
}

// File is a response from a file, with ranges and conditional requests as http.ServeContent has them.
type File struct {
	// FS and Name are the file. A file that does not exist is answered by 404.
	FS   fs.FS
	Name string
	// Content is the file if it is set, and is closed if it is an io.Closer. Name then only
	// determines the media type.
	Content io.ReadSeeker
	// ModTime is when Content was changed, for conditional requests; the zero time is unknown.
	ModTime time.Time
	// Download is the name under which browsers save the file, instead of showing it.
	Download string
}

// file answers with a File.
func (x *exchange) file(f *File) {
	content, modTime := f.Content, f.ModTime
	if content == nil {
		if f.FS == nil {
			x.fail(&Problem{Status: http.StatusInternalServerError, Detail: internalDetail, Err: errors.New("route: a File has neither FS nor Content")})
			return
		}
		file, err := f.FS.Open(f.Name)
		if err != nil {
			x.fail(fileProblem(err))
			return
		}
		defer file.Close()
		info, err := file.Stat()
		seeker, ok := file.(io.ReadSeeker)
		if err == nil && info.IsDir() {
			err = fs.ErrNotExist
		}
		if err == nil && !ok {
			err = fmt.Errorf("route: files of %T cannot be read at any place", f.FS)
		}
		if err != nil {
			x.fail(fileProblem(err))
			return
		}
		content, modTime = seeker, info.ModTime()
	} else if c, ok := content.(io.Closer); ok {
		defer c.Close()
	}
	if f.Download != "" {
		x.w.Header().Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": f.Download}))
	}
	x.wrote = true
	http.ServeContent(x.w, x.r, f.Name, modTime, content)
}

func fileProblem(err error) *Problem {
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrInvalid):
		return &Problem{Status: http.StatusNotFound, Detail: "there is no such file", Err: err}
	case errors.Is(err, fs.ErrPermission):
		return &Problem{Status: http.StatusForbidden, Detail: "the file may not be read", Err: err}
	}
	return &Problem{Status: http.StatusInternalServerError, Detail: internalDetail, Err: err}
}

// Event is one of a stream of server-sent events.
type Event struct {
	ID    string        // that a client sends as Last-Event-ID when it connects again
	Name  string        // the event's type; "" is message
	Data  any           // a string or []byte as it is, anything else as JSON; nil is none, and then clients see no event
	Retry time.Duration // how long clients wait before they connect again; 0 says nothing
}

// Events is a response of server-sent events. It is called with a function that sends one event and flushes it. The
// response ends when Events returns. Only one goroutine at a time may call send, and a later call panics. ctx ends when
// the client disconnects. For long streams set the server's WriteTimeout to 0, or extend it with
// http.ResponseController.
type Events func(ctx context.Context, send func(Event) error) error

// events answers with Events.
func (x *exchange) events(run Events) {
	h := x.w.Header()
	h["Content-Type"] = []string{"text/event-stream"}
	h["Cache-Control"] = []string{"no-store"}
	h["X-Accel-Buffering"] = []string{"no"} // nginx would wait for its buffer to fill
	x.writeHeader(x.statusCode())
	control := http.NewResponseController(x.w)
	_ = control.Flush() // the client learns that the stream is there; without a Flusher it has to wait
	if run == nil || x.r.Method == http.MethodHead {
		return
	}
	c, w := x.ctx, x.w
	x.ended(run(x.r.Context(), func(e Event) error {
		c.live() // a late goroutine must not write to the next client
		b, err := appendEvent(nil, e)
		if err != nil {
			return err
		}
		if _, err := w.Write(b); err != nil {
			return fmt.Errorf("route: sending an event: %w", err)
		}
		return control.Flush()
	}))
}

// appendEvent writes an event as the HTML standard defines it (server-sent events, section 9.2.5).
func appendEvent(dst []byte, e Event) ([]byte, error) {
	if strings.ContainsAny(e.ID+e.Name, "\r\n\x00") {
		return dst, errors.New("route: the id or name of an event has a line break")
	}
	if e.ID != "" {
		dst = append(append(append(dst, "id: "...), e.ID...), '\n')
	}
	if e.Name != "" {
		dst = append(append(append(dst, "event: "...), e.Name...), '\n')
	}
	if e.Retry > 0 {
		dst = append(strconv.AppendInt(append(dst, "retry: "...), e.Retry.Milliseconds(), 10), '\n')
	}
	var data []byte
	switch d := e.Data.(type) {
	case nil:
		return append(dst, '\n'), nil
	case string:
		data = []byte(d)
	case []byte:
		data = d
	default:
		var err error
		if data, err = json.Marshal(d); err != nil {
			return dst, fmt.Errorf("route: encoding an event: %w", err)
		}
	}
	data = bytes.ReplaceAll(data, []byte("\r\n"), []byte("\n"))
	data = bytes.ReplaceAll(data, []byte("\r"), []byte("\n"))
	for line := range bytes.SplitSeq(data, []byte("\n")) {
		dst = append(append(append(dst, "data: "...), line...), '\n')
	}
	return append(dst, '\n'), nil
}
