// Package bind fills the fields of a request from the parts of an HTTP request by a plan compiled once
// per type: path, query, header, cookie and form.
//
// A plan is immutable and may be used concurrently. It accesses memory through unsafe pointers:
// callers must pass a pointer to a value of exactly the plan's type.
package bind

import (
	"errors"
	"fmt"
	"mime/multipart"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"unsafe"
)

// Source is the part of a request that a field comes from.
type Source string

// The sources. Body fields come from JSON or a form, by the request's media type.
const (
	Path   Source = "path"
	Query  Source = "query"
	Header Source = "header"
	Cookie Source = "cookie"
	Body   Source = "body"
	File   Source = "file"
	Stream Source = "stream" // the field is the stream of files itself
)

// tags are the sources with their own tag, in the order of binding.
var tags = []Source{Path, Query, Header, Cookie, File}

// maxFields bounds the fields of one source: the capacity of the set of seen fields.
const maxFields = 256

// Field is a field of a request and where it comes from.
type Field struct {
	Source     Source
	Name       string // name in the source; for body fields in JSON
	Form       string // for body fields the name in forms; empty if forms do not fill it
	JSON       bool   // of body fields: JSON fills it
	Default    string
	HasDefault bool
	Index      []int // for reflect
	Struct     reflect.StructField

	offset uintptr
	set    setter // nil for body fields no form can hold
	many   bool   // a slice: each value is one more element
	keeps  bool   // set keeps the text it is given
}

// Plan fills requests of one type.
type Plan struct {
	Type   reflect.Type
	Fields []Field // of all sources, in the order of the struct

	path, query, header, cookie, form, file []Field
	defaults                                []Field
	stream                                  *Field
}

// Failure is a value that a field cannot hold.
type Failure struct {
	Field  *Field
	Detail string
}

// Compile makes the plan of t, a struct. stream is the type of a field that streams files. The error names the
// field that cannot be filled, and why.
func Compile(t, stream reflect.Type) (*Plan, error) {
	p := &Plan{Type: t}
	if err := p.add(t, 0, nil, stream); err != nil {
		return nil, err
	}
	for i := range p.Fields {
		f := &p.Fields[i]
		switch f.Source {
		case Path:
			p.path = append(p.path, *f)
		case Query:
			p.query = append(p.query, *f)
		case Header:
			if f.Name = http.CanonicalHeaderKey(f.Name); f.Name == "Host" {
				return nil, fmt.Errorf("field %s of %v comes from the header Host, which net/http keeps in Request.Host", f.Struct.Name, t)
			}
			p.header = append(p.header, *f)
		case Cookie:
			p.cookie = append(p.cookie, *f)
		case File:
			p.file = append(p.file, *f)
		case Stream:
			p.stream = f
		case Body:
			if f.set != nil && f.Form != "" {
				p.form = append(p.form, *f)
			}
		}
		if f.HasDefault {
			p.defaults = append(p.defaults, *f)
		}
	}
	if len(p.Fields) > maxFields {
		return nil, fmt.Errorf("%v has more than %d fields", t, maxFields)
	}
	return p, p.check()
}

// check refuses names that two fields have, and defaults that do not parse.
func (p *Plan) check() error {
	seen := map[string]string{}
	scratch := reflect.New(p.Type)
	for i := range p.Fields {
		f := &p.Fields[i]
		key := string(f.Source) + " " + f.Name
		if other, ok := seen[key]; ok {
			return fmt.Errorf("the fields %s and %s of %v have one source, %s", other, f.Struct.Name, p.Type, key)
		}
		seen[key] = f.Struct.Name
		if f.Source == Body && f.set != nil && f.Form != "" {
			if other, ok := seen["form "+f.Form]; ok {
				return fmt.Errorf("the fields %s and %s of %v have one name in forms, %s", other, f.Struct.Name, p.Type, f.Form)
			}
			seen["form "+f.Form] = f.Struct.Name
		}
		if f.HasDefault {
			if f.set == nil {
				return fmt.Errorf("field %s of %v cannot have a default: %v is made of more than one value", f.Struct.Name, p.Type, f.Struct.Type)
			}
			if err := f.set(unsafe.Add(scratch.UnsafePointer(), f.offset), f.Default); err != nil {
				return fmt.Errorf("the default of field %s of %v %w", f.Struct.Name, p.Type, err)
			}
		}
	}
	return nil
}

// add appends the fields of t, which has the offset base in the request.
func (p *Plan) add(t reflect.Type, base uintptr, index []int, stream reflect.Type) error {
	for i := range t.NumField() {
		sf := t.Field(i)
		f := Field{Struct: sf, Index: append(append([]int(nil), index...), i), offset: base + sf.Offset, Source: Body}
		source, err := f.tags()
		if err != nil {
			return fmt.Errorf("field %s of %v %w", sf.Name, t, err)
		}
		switch {
		case source == "" && sf.Anonymous && sf.Type.Kind() == reflect.Struct && sf.Tag.Get("json") == "":
			if err := p.add(sf.Type, f.offset, f.Index, stream); err != nil {
				return err
			}
			continue
		case source == "" && sf.Anonymous && sf.Type.Kind() == reflect.Pointer && elsewhere(sf.Type.Elem(), nil):
			return fmt.Errorf("field %s of %v is an embedded pointer, and has fields that are not from the body: embed the struct itself", sf.Name, t)
		case !sf.IsExported():
			if source != "" {
				return fmt.Errorf("field %s of %v comes from %s and is not exported", sf.Name, t, source)
			}
			continue
		case sf.Type == stream:
			f.Source, f.Name = Stream, ""
		case source == "" && !InJSON(sf) && !inForm(sf):
			continue
		}
		if err := f.compile(); err != nil {
			return fmt.Errorf("field %s of %v %w", sf.Name, t, err)
		}
		p.Fields = append(p.Fields, f)
	}
	return nil
}

// InJSON reports whether JSON fills a field that has no other source: not if it has a form tag and no json tag.
func InJSON(sf reflect.StructField) bool {
	json, ok := sf.Tag.Lookup("json")
	return json != "-" && (ok || !inForm(sf))
}

// inForm reports whether a field has a name for forms.
func inForm(sf reflect.StructField) bool {
	name, _, _ := strings.Cut(sf.Tag.Get("form"), ",")
	return name != "" && name != "-"
}

// elsewhere reports whether a struct has a field, possibly embedded, that does not come from the body.
func elsewhere(t reflect.Type, around []reflect.Type) bool {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || slices.Contains(around, t) {
		return false
	}
	for i := range t.NumField() {
		f := Field{Struct: t.Field(i)}
		if source, err := f.tags(); source != "" || err != nil || f.Struct.Anonymous && elsewhere(f.Struct.Type, append(around, t)) {
			return true
		}
	}
	return false
}

// tags reads where the field comes from, and under which name.
func (f *Field) tags() (Source, error) {
	var found Source
	for _, s := range tags {
		name, ok := f.Struct.Tag.Lookup(string(s))
		if !ok {
			continue
		}
		if found != "" {
			return "", fmt.Errorf("comes from both %s and %s", found, s)
		}
		if name == "" {
			return "", fmt.Errorf("has an empty %s tag", s)
		}
		found, f.Source, f.Name = s, s, name
	}
	json, _, _ := strings.Cut(f.Struct.Tag.Get("json"), ",")
	form, _, _ := strings.Cut(f.Struct.Tag.Get("form"), ",")
	if found != "" && (json != "" && json != "-" || form != "" && form != "-") {
		return "", fmt.Errorf("comes from both %s and the body", found)
	}
	if found == "" {
		f.Name, f.Form, f.JSON = f.Struct.Name, form, InJSON(f.Struct)
		if json != "" && json != "-" {
			f.Name = json
		}
		switch form {
		case "":
			f.Form = f.Name
		case "-":
			f.Form = ""
		}
	}
	f.Default, f.HasDefault = f.Struct.Tag.Lookup("default")
	return found, nil
}

var (
	fileType  = reflect.TypeFor[*multipart.FileHeader]()
	filesType = reflect.TypeFor[[]*multipart.FileHeader]()
)

// compile makes the setter of the field.
func (f *Field) compile() error {
	t := f.Struct.Type
	switch f.Source {
	case Stream:
		return nil
	case File:
		if t != fileType && t != filesType {
			return fmt.Errorf("comes from a file and is neither %v nor %v", fileType, filesType)
		}
		return nil
	}
	f.set, f.keeps = scalar(t)
	if f.set == nil && t.Kind() == reflect.Slice && !isByte(t.Elem()) {
		var elem setter
		if elem, f.keeps = scalar(t.Elem()); elem != nil {
			f.set, f.many = appender(t, elem), true
		}
	}
	if f.set == nil && f.Source != Body {
		return fmt.Errorf("comes from %s, and %v is not made of text", f.Source, t)
	}
	if f.many && (f.Source == Path || f.Source == Cookie) {
		return fmt.Errorf("comes from a %s, which has one value, and is a slice", f.Source)
	}
	if f.many && f.HasDefault {
		return errors.New("is a slice and has a default")
	}
	return nil
}

// isByte reports whether slices of t are bytes: base64 in JSON, and so not numbers in text.
func isByte(t reflect.Type) bool {
	return t.Kind() == reflect.Uint8 && !reflect.PointerTo(t).Implements(textType)
}

// Text reports whether a text, or several, can fill the field, as in forms.
func (f *Field) Text() bool { return f.set != nil }

// TakesForm reports whether requests may be forms: a field has a form tag or is a file.
func (p *Plan) TakesForm() bool {
	return slices.ContainsFunc(p.Fields, func(f Field) bool {
		return f.Source == File || f.Source == Stream || f.Source == Body && inForm(f.Struct)
	})
}

// TakesJSON reports whether JSON fills a field.
func (p *Plan) TakesJSON() bool {
	return slices.ContainsFunc(p.Fields, func(f Field) bool { return f.Source == Body && f.JSON })
}

// AllJSON reports whether JSON fills every field that comes from the body.
func (p *Plan) AllJSON() bool {
	return !slices.ContainsFunc(p.Fields, func(f Field) bool { return f.Source == Body && !f.JSON })
}

// TakesValue reports whether a field takes this value of a form.
func (p *Plan) TakesValue(name string) bool {
	return slices.ContainsFunc(p.form, func(f Field) bool { return f.Form == name })
}

// NoFile reports that a form has a value where a file is expected.
func (p *Plan) NoFile(name string, bad []Failure) []Failure {
	i := slices.IndexFunc(p.file, func(f Field) bool { return f.Name == name })
	return append(bad, Failure{Field: &p.file[i], Detail: "must be a file"})
}

// TakesFile reports whether a field takes this file of a form.
func (p *Plan) TakesFile(name string) bool {
	return p.stream != nil || slices.ContainsFunc(p.file, func(f Field) bool { return f.Name == name })
}

// Has reports whether fields come from a source. Body means fields that JSON or forms fill.
func (p *Plan) Has(s Source) bool { return p.Count(s) > 0 }

// Count returns how many fields come from a source.
func (p *Plan) Count(s Source) (n int) {
	for i := range p.Fields {
		if p.Fields[i].Source == s {
			n++
		}
	}
	return n
}

// Defaults sets the fields that have a default.
func (p *Plan) Defaults(base unsafe.Pointer) {
	for i := range p.defaults {
		f := &p.defaults[i]
		_ = f.set(unsafe.Add(base, f.offset), f.Default) // Compile has checked the default
	}
}

// apply sets a field to a text. A field of another type may have spaces around its text, and an empty text does not
// change it, because forms send every field.
func (f *Field) apply(base unsafe.Pointer, text string, bad []Failure) []Failure {
	if !f.keeps {
		if text = strings.TrimSpace(text); text == "" {
			return bad
		}
	}
	if err := f.set(unsafe.Add(base, f.offset), text); err != nil {
		bad = append(bad, Failure{Field: f, Detail: err.Error()})
	}
	return bad
}

// PathValuer is the part of http.Request that has the values of a pattern's wildcards.
type PathValuer interface{ PathValue(name string) string }

// Path fills fields from the wildcards of the pattern.
func (p *Plan) Path(from PathValuer, base unsafe.Pointer, bad []Failure) []Failure {
	for i := range p.path {
		bad = p.path[i].apply(base, from.PathValue(p.path[i].Name), bad)
	}
	return bad
}

// Headers fills fields from headers and cookies.
func (p *Plan) Headers(r *http.Request, base unsafe.Pointer, bad []Failure) []Failure {
	for i := range p.header {
		f := &p.header[i]
		values := r.Header[f.Name]
		for j := 0; j < len(values) && (f.many || j == 0); j++ {
			if !f.many {
				bad = f.apply(base, values[j], bad)
				continue
			}
			for v := range strings.SplitSeq(values[j], ",") {
				bad = f.apply(base, strings.TrimSpace(v), bad)
			}
		}
	}
	for i := range p.cookie {
		if c, err := r.Cookie(p.cookie[i].Name); err == nil {
			bad = p.cookie[i].apply(base, c.Value, bad)
		}
	}
	return bad
}

// Query fills fields from the query of a URL.
func (p *Plan) Query(raw string, base unsafe.Pointer, bad []Failure) ([]Failure, error) {
	if len(p.query) == 0 || raw == "" {
		return bad, nil
	}
	return pairs(p.query, raw, maxPairs, false, base, bad)
}

// Form fills fields from a form, application/x-www-form-urlencoded, of at most max pairs. The fields do
// not refer to body.
func (p *Plan) Form(body []byte, limit int, base unsafe.Pointer, bad []Failure) ([]Failure, error) {
	return pairs(p.form, view(body), limit, true, base, bad)
}

// maxPairs bounds the pairs of a query; net/http bounds its length.
const maxPairs = 1000

// ErrPairs means that a query or form has too many pairs.
var ErrPairs = errors.New("too many fields")

var errSeparator = errors.New("a semicolon separates fields; & does")

// pairs reads name=value pairs like url.ParseQuery. If a field holds one value, the first one counts. borrowed means
// that raw does not live as long as the fields.
func pairs(fields []Field, raw string, limit int, borrowed bool, base unsafe.Pointer, bad []Failure) ([]Failure, error) {
	var seen [maxFields / 64]uint64
	for n := 0; raw != ""; n++ {
		if n >= limit {
			return bad, ErrPairs
		}
		var pair string
		if i := strings.IndexByte(raw, '&'); i < 0 {
			pair, raw = raw, ""
		} else {
			pair, raw = raw[:i], raw[i+1:]
		}
		if pair == "" {
			n--
			continue
		}
		if strings.IndexByte(pair, ';') >= 0 {
			return bad, errSeparator
		}
		escaped := strings.IndexByte(pair, '%') >= 0 || strings.IndexByte(pair, '+') >= 0
		name, text, _ := strings.Cut(pair, "=")
		sent := text
		var err error
		if escaped {
			if name, err = url.QueryUnescape(name); err != nil {
				return bad, err
			}
			if text, err = url.QueryUnescape(text); err != nil {
				return bad, err
			}
		}
		for i := range fields {
			f := &fields[i]
			if f.key() != name || !f.many && seen[i/64]&(1<<(i%64)) != 0 {
				continue
			}
			seen[i/64] |= 1 << (i % 64)
			if borrowed && f.keeps && unsafe.StringData(text) == unsafe.StringData(sent) {
				text = strings.Clone(text)
			}
			bad = f.apply(base, text, bad)
			break
		}
	}
	return bad, nil
}

// key is the name of a field in a query or form.
func (f *Field) key() string {
	if f.Source == Body {
		return f.Form
	}
	return f.Name
}

// Value fills the field for a part of a multipart form. A field that holds one value takes only the first part with its
// name.
func (p *Plan) Value(name, text string, first bool, base unsafe.Pointer, bad []Failure) []Failure {
	for i := range p.form {
		if f := &p.form[i]; f.Form == name && (first || f.many) {
			return f.apply(base, text, bad)
		}
	}
	return bad
}

// Values fills fields from a form that has been read as a whole.
func (p *Plan) Values(values map[string][]string, base unsafe.Pointer, bad []Failure) []Failure {
	for i := range p.form {
		f := &p.form[i]
		for j, text := range values[f.Form] {
			if j == 0 || f.many {
				bad = f.apply(base, text, bad)
			}
		}
	}
	return bad
}

// Files fills fields from the files of a multipart form.
func (p *Plan) Files(files map[string][]*multipart.FileHeader, base unsafe.Pointer) {
	for i := range p.file {
		f := &p.file[i]
		got := files[f.Name]
		if len(got) == 0 {
			continue
		}
		at := unsafe.Add(base, f.offset)
		if f.Struct.Type == filesType {
			*(*[]*multipart.FileHeader)(at) = got
		} else {
			*(**multipart.FileHeader)(at) = got[0]
		}
	}
}

// StreamAt returns the address of the field that streams files, nil if there is none.
func (p *Plan) StreamAt(base unsafe.Pointer) unsafe.Pointer {
	if p.stream == nil {
		return nil
	}
	return unsafe.Add(base, p.stream.offset)
}

func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
