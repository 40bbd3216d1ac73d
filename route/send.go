package route

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/textproto"
	"path"
	"reflect"

	"github.com/headpond/headpond/route/internal/bind"
)

// FilesOf returns files for [Call] to send, or for the test of a handler. They are read once, in order, and the caller
// closes them.
func FilesOf(files ...*Upload) Files { return Files{list: files} }

// FileOf returns a file for a field with a file tag, for [Call] to send or for the test of a handler. content is
// copied. Its media type is that of the name's extension. Use [FilesOf] for files too large for memory.
func FileOf(name string, content []byte) (*multipart.FileHeader, error) {
	var form bytes.Buffer
	w := multipart.NewWriter(&form)
	part, err := w.CreatePart(partHeader("file", name, ""))
	if err == nil {
		_, err = part.Write(content)
	}
	if err = errors.Join(err, w.Close()); err != nil {
		return nil, fmt.Errorf("route: the file %q: %w", name, err)
	}
	read, err := multipart.NewReader(&form, w.Boundary()).ReadForm(int64(len(content)))
	if err != nil {
		return nil, fmt.Errorf("route: the file %q: %w", name, err)
	}
	if len(read.File["file"]) != 1 {
		return nil, fmt.Errorf("route: a file has the name %q, which stands for none", name)
	}
	return read.File["file"][0], nil
}

// partHeader is the header of a file in a form.
func partHeader(field, name, contentType string) textproto.MIMEHeader {
	if contentType == "" {
		contentType = mime.TypeByExtension(path.Ext(name))
	}
	if contentType == "" {
		contentType = "application/octet-stream"
	}
	return textproto.MIMEHeader{
		"Content-Disposition": {multipart.FileContentDisposition(field, name)},
		"Content-Type":        {contentType},
	}
}

// formBody is a multipart form under construction: alternately the bytes in front of a file, and
// the file.
type formBody struct {
	head   bytes.Buffer
	writer *multipart.Writer
	parts  []io.Reader
	opened []io.Closer
	size   int64 // of parts; less than 0 when that of a file is not known
}

// multipartOf makes the form of a request. The caller closes it.
func multipartOf(p *bind.Plan, req reflect.Value) (*formBody, error) {
	b := &formBody{}
	b.writer = multipart.NewWriter(&b.head)
	err := b.add(p, req)
	if err == nil {
		err = b.writer.Close()
	}
	if err != nil {
		_ = b.Close()
		return nil, err
	}
	b.flush()
	return b, nil
}

// add writes the values, and then the files, which is the order that handlers with Files need.
func (b *formBody) add(p *bind.Plan, req reflect.Value) error {
	for i := range p.Fields {
		f := &p.Fields[i]
		v := req.FieldByIndex(f.Index)
		if f.Source != bind.Body || v.IsZero() {
			continue
		}
		if !f.Text() {
			return fmt.Errorf("field %s: %v is not made of text, as values beside files have to be", f.Struct.Name, f.Struct.Type)
		}
		texts, err := textsOf(v)
		if err != nil {
			return fmt.Errorf("field %s: %w", f.Struct.Name, err)
		}
		for _, text := range texts {
			if err := b.writer.WriteField(f.Form, text); err != nil {
				return err
			}
		}
	}
	for i := range p.Fields {
		f := &p.Fields[i]
		var err error
		switch v := req.FieldByIndex(f.Index).Interface().(type) {
		case Files:
			err = b.files(v)
		case *multipart.FileHeader:
			err = b.stored(f.Name, v)
		case []*multipart.FileHeader:
			for _, file := range v {
				err = errors.Join(err, b.stored(f.Name, file))
			}
		}
		if err != nil {
			return fmt.Errorf("field %s: %w", f.Struct.Name, err)
		}
	}
	return nil
}

// files adds files of which nothing is known but how to read them.
func (b *formBody) files(files Files) error {
	if files.s != nil {
		return errors.New("files that are being received cannot be sent")
	}
	for _, u := range files.list {
		size := int64(-1)
		if sized, ok := u.Reader.(interface{ Len() int }); ok {
			size = int64(sized.Len())
		}
		if err := b.file(partHeader(u.Field, u.Name, u.ContentType), u.Reader, size); err != nil {
			return err
		}
	}
	return nil
}

// stored adds a file of a field with a file tag.
func (b *formBody) stored(field string, file *multipart.FileHeader) error {
	if file == nil {
		return nil
	}
	content, err := file.Open()
	if err != nil {
		return err
	}
	b.opened = append(b.opened, content)
	return b.file(partHeader(field, file.Filename, file.Header.Get("Content-Type")), content, file.Size)
}

func (b *formBody) file(header textproto.MIMEHeader, content io.Reader, size int64) error {
	if _, err := b.writer.CreatePart(header); err != nil {
		return err
	}
	b.flush()
	b.parts = append(b.parts, content)
	if size < 0 || b.size < 0 {
		b.size = -1
	} else {
		b.size += size
	}
	return nil
}

// flush makes a part of the written bytes.
func (b *formBody) flush() {
	if b.size >= 0 {
		b.size += int64(b.head.Len())
	}
	b.parts = append(b.parts, bytes.NewReader(bytes.Clone(b.head.Bytes())))
	b.head.Reset()
}

// reader returns the reader that http.Client reads and closes.
func (b *formBody) reader() io.ReadCloser {
	return struct {
		io.Reader
		io.Closer
	}{io.MultiReader(b.parts...), b}
}

// Close closes the files that this package has opened.
func (b *formBody) Close() error {
	var err error
	for _, f := range b.opened {
		err = errors.Join(err, f.Close())
	}
	return err
}
