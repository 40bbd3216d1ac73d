package route

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"mime"
	"mime/multipart"
	"net/http"
	"net/textproto"

	"github.com/headpond/headpond/route/internal/bind"
)

// Files are the files of a multipart form while they arrive. A request type with a field of this type first gets its
// other fields, and then reads the files one after the other; none is stored in memory or on disk. So the files must
// come last in the form. To get complete files, use fields of type *multipart.FileHeader or []*multipart.FileHeader
// with a file tag.
type Files struct {
	s    *fileStream
	list []*Upload // by FilesOf
}

// Upload is a file that is being received. It can be read until the next file is requested.
type Upload struct {
	Field       string // name of the form's field
	Name        string // name given by the client, without directories; do not trust it
	ContentType string // type given by the client; do not trust it
	io.Reader
}

// fileStream is the state of Files.
type fileStream struct {
	x      *exchange
	gen    uint64
	reader *multipart.Reader
	next   *multipart.Part // read already
	seen   int
	err    error // that All ends with forever
}

// All returns the files in order. It can be iterated once, and ends after an error. The error is a *Problem, which the
// handler can return, if the form is malformed, too large, or has too many files or values after a file.
func (f Files) All() iter.Seq2[*Upload, error] {
	return func(yield func(*Upload, error) bool) {
		for _, u := range f.list {
			if !yield(u, nil) {
				return
			}
		}
		if f.s == nil {
			return
		}
		for {
			u, err := f.s.upload()
			if err == io.EOF {
				return
			}
			if !yield(u, err) || err != nil {
				return
			}
		}
	}
}

// upload returns the next file, io.EOF after the last.
func (s *fileStream) upload() (*Upload, error) {
	if s.x.gen.Load() != s.gen {
		(&Ctx{x: s.x, gen: s.gen}).stale()
	}
	if s.err != nil {
		return nil, s.err
	}
	part := s.next
	s.next = nil
	for part == nil || noFile(part) {
		var err error
		if part, err = s.reader.NextPart(); err != nil {
			if s.err = err; err != io.EOF {
				s.err = partProblem(err)
			}
			return nil, s.err
		}
	}
	if part.FileName() == "" {
		s.err = &Problem{Status: http.StatusBadRequest, Detail: fmt.Sprintf("the form has its value %q after a file", part.FormName())}
		return nil, s.err
	}
	if s.seen++; s.seen > s.x.ep.maxFiles {
		s.err = tooManyFiles(s.x.ep.maxFiles)
		return nil, s.err
	}
	return &Upload{Field: part.FormName(), Name: part.FileName(), ContentType: part.Header.Get("Content-Type"), Reader: uploadReader{part}}, nil
}

// partProblem is the answer to a client when the next part of its form could not be read.
func partProblem(err error) *Problem {
	if _, ok := errors.AsType[textproto.ProtocolError](err); ok {
		return &Problem{Status: http.StatusBadRequest, Detail: "a part of the form has a malformed header", Err: err}
	}
	return readProblem(err)
}

// uploadReader turns errors of reading a file into problems.
type uploadReader struct{ part *multipart.Part }

func (r uploadReader) Read(b []byte) (int, error) {
	n, err := r.part.Read(b)
	if err != nil && err != io.EOF {
		err = readProblem(err)
	}
	return n, err
}

func tooManyFiles(limit int) *Problem {
	return &Problem{Status: http.StatusRequestEntityTooLarge, Detail: fmt.Sprintf("the form has more than %d files", limit)}
}

// bindMultipart fills the fields from a multipart form.
func (x *exchange) bindMultipart(boundary string) *Problem {
	e, r := x.ep, x.r
	limit := e.maxBody
	if e.hasFiles {
		limit = e.maxUpload
	}
	if r.ContentLength > limit {
		return x.tooLarge()
	}
	if boundary == "" {
		return &Problem{Status: http.StatusBadRequest, Detail: "the multipart form has no boundary"}
	}
	if r.MultipartForm != nil { // middleware has read it, and net/http removes its files
		return x.bindForm(r.MultipartForm)
	}
	r.Body = http.MaxBytesReader(x.w, r.Body, limit)
	parts := &formParts{x: x, reader: multipart.NewReader(r.Body, boundary), room: e.maxBody, seen: map[string]bool{}}
	if at := e.bind.StreamAt(x.req); at != nil {
		s := &fileStream{x: x, gen: x.gen.Load(), reader: parts.reader}
		*(*Files)(at) = Files{s: s}
		var p *Problem
		if s.next, p = parts.nextFile(); s.next == nil && p == nil {
			s.err = io.EOF
		}
		return p
	}
	if !e.bind.Has(bind.File) {
		_, p := parts.nextFile()
		return p
	}
	return x.storeFiles(parts)
}

// storeFiles reads the files that fields are for into memory or temporary files.
func (x *exchange) storeFiles(parts *formParts) *Problem {
	kept := &keptFiles{parts: parts}
	kept.writer = multipart.NewWriter(&kept.frame)
	form, err := multipart.NewReader(kept, kept.writer.Boundary()).ReadForm(uploadMemory)
	if kept.problem != nil {
		return kept.problem
	}
	if err != nil {
		return readProblem(err)
	}
	x.form = form
	x.ep.bind.Files(form.File, x.req)
	return nil
}

// formParts reads the parts of a multipart form: values are bound, and files without a field are skipped without being
// stored.
type formParts struct {
	x             *exchange
	reader        *multipart.Reader
	room          int64           // left for values, in bytes
	seen          map[string]bool // names of values
	values, files int
}

// nextFile binds values up to the next file that a field is for, and returns that, nil at the end of the form.
func (f *formParts) nextFile() (*multipart.Part, *Problem) {
	e := f.x.ep
	for {
		part, err := f.reader.NextPart()
		if err == io.EOF {
			return nil, nil
		}
		if err != nil {
			return nil, partProblem(err)
		}
		name := part.FormName()
		switch {
		case part.FileName() != "":
			if f.files++; f.files > e.maxFiles {
				return nil, tooManyFiles(e.maxFiles)
			}
			if e.bind.TakesFile(name) {
				return part, nil
			}
			continue
		case f.values >= e.maxFields:
			return nil, formProblem(bind.ErrPairs)
		}
		f.values++
		if e.bind.TakesFile(name) && e.bind.Has(bind.File) && !noFile(part) {
			f.x.bad = e.bind.NoFile(name, f.x.bad)
			continue
		}
		if noFile(part) || !e.bind.TakesValue(name) {
			continue
		}
		text, err := io.ReadAll(io.LimitReader(part, f.room+1))
		if err != nil {
			return nil, readProblem(err)
		}
		if f.room -= int64(len(text)); f.room < 0 {
			return nil, f.x.tooLarge()
		}
		f.x.bad = e.bind.Value(name, string(text), !f.seen[name], f.x.req, f.x.bad)
		f.seen[name] = true
	}
}

// keptFiles is a multipart form of only the files that have a field, with a new boundary. multipart.Reader.ReadForm,
// the only maker of a multipart.FileHeader that can be opened, reads it. Reading it binds the values.
type keptFiles struct {
	parts   *formParts
	frame   bytes.Buffer      // bytes between the files' contents, not read yet
	writer  *multipart.Writer // to frame
	part    *multipart.Part   // being read; nil before the first
	end     bool
	problem *Problem // why reading ended early
}

// Read implements io.Reader.
func (k *keptFiles) Read(b []byte) (int, error) {
	for {
		if k.frame.Len() > 0 {
			return k.frame.Read(b)
		}
		if k.end {
			return 0, io.EOF
		}
		if k.part != nil {
			n, err := k.part.Read(b)
			if n > 0 || err == nil {
				return n, nil
			}
			if err != io.EOF {
				k.problem = readProblem(err)
				return 0, k.problem
			}
		}
		if k.part, k.problem = k.parts.nextFile(); k.problem != nil {
			return 0, k.problem
		}
		if k.end = k.part == nil; k.end {
			_ = k.writer.Close() // bytes.Buffer takes everything
		} else {
			_, _ = k.writer.CreatePart(k.part.Header)
		}
	}
}

// bindForm fills the fields from a form that has been read as a whole.
func (x *exchange) bindForm(form *multipart.Form) *Problem {
	e := x.ep
	files := 0
	for _, f := range form.File {
		files += len(f)
	}
	if files > e.maxFiles {
		return tooManyFiles(e.maxFiles)
	}
	if p := x.bindValues(form.Value); p != nil {
		return p
	}
	e.bind.Files(form.File, x.req)
	return nil
}

// bindValues fills the fields from the values of a form.
func (x *exchange) bindValues(values map[string][]string) *Problem {
	n := 0
	for _, texts := range values {
		if n += len(texts); n > x.ep.maxFields {
			return formProblem(bind.ErrPairs)
		}
	}
	x.bad = x.ep.bind.Values(values, x.req, x.bad)
	return nil
}

// noFile reports whether a part has an empty file name: browsers send that for a file that was not chosen.
func noFile(part *multipart.Part) bool {
	_, params, _ := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
	name, ok := params["filename"]
	return ok && name == ""
}
