// Package jsonplan encodes and decodes JSON by a plan compiled once per type.
//
// It is a faster encoding/json: [Plan.Append] returns the bytes of json.Marshal for a pointer to the value, and
// [Decoder.Decode] decodes like json.Unmarshal, but requires that names match exactly and occur once, and that the text
// is UTF-8 (see Options). A type or field for which the plan has no code uses encoding/json itself. Fuzzing compares
// both directions with encoding/json.
//
// A plan is immutable and may be used by any number of goroutines. Memory is reached through unsafe
// pointers: a caller passes a pointer to a value of exactly the plan's type.
package jsonplan

import (
	"encoding"
	"encoding/json"
	"encoding/json/jsontext"
	jsonv2 "encoding/json/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"
	"unsafe"
)

// Options are the rules of decoding for encoding/json/v2: those of encoding/json, except that names
// that differ in case or occur twice, and text that is not UTF-8, are refused.
var Options = jsonv2.JoinOptions(json.DefaultOptionsV1(),
	jsontext.AllowDuplicateNames(false),
	jsontext.AllowInvalidUTF8(false),
	jsonv2.MatchCaseInsensitiveNames(false),
)

// options are the options of decoding, and those whose errors have a position.
type options struct{ decode, locate jsonv2.Options }

func withOptions(o jsonv2.Options) options {
	return options{o, jsonv2.JoinOptions(o, json.ReportErrorsWithLegacySemantics(false))}
}

var (
	lenient  = withOptions(Options)
	refusing = withOptions(jsonv2.JoinOptions(Options, jsonv2.RejectUnknownMembers(true)))
)

type (
	// decodeFunc reads the next value of the input into *p. What p points to is zero or a default.
	decodeFunc func(d *Decoder, p unsafe.Pointer) *Error
	// encodeFunc appends the JSON of *p.
	encodeFunc func(dst []byte, p unsafe.Pointer) ([]byte, error)
)

// Plan encodes and decodes values of one type.
type Plan struct {
	dec decodeFunc
	enc encodeFunc
}

var plans sync.Map // reflect.Type → *Plan

// Of returns the plan of t.
func Of(t reflect.Type) *Plan {
	if p, ok := plans.Load(t); ok {
		return p.(*Plan)
	}
	c := compiler{enc: map[reflect.Type]bool{}, dec: map[reflect.Type]*decodeFunc{}}
	p := &Plan{enc: c.encoder(t), dec: c.decoder(t)}
	actual, _ := plans.LoadOrStore(t, p)
	return actual.(*Plan)
}

// OfFields returns a plan for the fields of the struct t that keep accepts. keep is called only for top-level fields,
// including those promoted from embedded structs. OfFields returns nil if t has a form that only encoding/json handles:
// then fields cannot be left out.
func OfFields(t reflect.Type, keep func(reflect.StructField) bool) *Plan {
	c := compiler{enc: map[reflect.Type]bool{}, dec: map[reflect.Type]*decodeFunc{}}
	fields, ok := structFields(t, keep)
	if !ok {
		return nil
	}
	s := c.structDecoder(fields)
	return &Plan{dec: s.decode, enc: c.structEncoder(fields)}
}

// Append appends the JSON of the value p points to, which has the plan's type, as json.Marshal(p) does.
func (p *Plan) Append(dst []byte, ptr unsafe.Pointer) ([]byte, error) { return p.enc(dst, ptr) }

// DecodesItself and EncodesItself report whether t has a method for it, which encoding/json would call.
func DecodesItself(t reflect.Type) bool { return custom(t, unmarshalers) }

// EncodesItself is DecodesItself for the other direction.
func EncodesItself(t reflect.Type) bool { return custom(t, marshalers) }

// Impossible returns a type within t that JSON cannot represent (a function or a channel), nil if there is none.
func Impossible(t reflect.Type) reflect.Type { return impossible(t, map[reflect.Type]bool{}) }

func impossible(t reflect.Type, seen map[reflect.Type]bool) reflect.Type {
	if seen[t] || custom(t, marshalers) || custom(t, unmarshalers) {
		return nil
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Func, reflect.Chan, reflect.Complex64, reflect.Complex128, reflect.UnsafePointer:
		return t
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		return impossible(t.Elem(), seen)
	case reflect.Struct:
		for i := range t.NumField() {
			sf := t.Field(i)
			if sf.Tag.Get("json") == "-" || !sf.IsExported() && !sf.Anonymous {
				continue
			}
			if found := impossible(sf.Type, seen); found != nil {
				return found
			}
		}
	}
	return nil
}

// compiler makes the functions of one plan.
type compiler struct {
	enc map[reflect.Type]bool        // structs whose encoder is being made
	dec map[reflect.Type]*decodeFunc // structs, by type; filled when made
	in  []reflect.Type               // pointers and slices whose code is being made, up to the struct around them
}

// within calls f for the element type of a pointer or slice t, and reports false when t holds itself without a struct
// in between.
func (c *compiler) within(t reflect.Type, f func()) bool {
	if slices.Contains(c.in, t) {
		return false
	}
	c.in = append(c.in, t)
	f()
	c.in = c.in[:len(c.in)-1]
	return true
}

// inStruct calls f for the fields of a struct.
func (c *compiler) inStruct(f func()) {
	around := c.in
	c.in = nil
	f()
	c.in = around
}

var (
	timeType = reflect.TypeFor[time.Time]()

	marshalers = []reflect.Type{
		reflect.TypeFor[json.Marshaler](), reflect.TypeFor[jsonv2.MarshalerTo](),
		reflect.TypeFor[encoding.TextMarshaler](), reflect.TypeFor[encoding.TextAppender](),
	}
	unmarshalers = []reflect.Type{
		reflect.TypeFor[json.Unmarshaler](), reflect.TypeFor[jsonv2.UnmarshalerFrom](),
		reflect.TypeFor[encoding.TextUnmarshaler](),
	}
)

// custom reports whether t or *t has one of the methods.
func custom(t reflect.Type, methods []reflect.Type) bool {
	for _, m := range methods {
		if t.Implements(m) || reflect.PointerTo(t).Implements(m) {
			return true
		}
	}
	return t == reflect.TypeFor[json.Number]()
}

// structField is a member of the JSON object of a struct.
type structField struct {
	name                string
	offset              uintptr
	typ                 reflect.Type
	omitEmpty, omitZero bool
}

// maxFields bounds the fields of a compiled struct: the capacity of the decoder's set of seen
// names.
const maxFields = 256

// structFields returns the members of t in order, with those of embedded structs in their place. ok reports whether the
// plan has code for all their forms: no string option, no member name shared by two fields, no embedded pointer, no
// option of encoding/json/v2.
func structFields(t reflect.Type, keep func(reflect.StructField) bool) ([]structField, bool) {
	var fields []structField
	ok := addFields(&fields, t, 0, keep)
	names := map[string]bool{}
	for _, f := range fields {
		if names[f.name] {
			return nil, false
		}
		names[f.name] = true
	}
	return fields, ok && len(fields) <= maxFields
}

func addFields(fields *[]structField, t reflect.Type, base uintptr, keep func(reflect.StructField) bool) bool {
	for i := range t.NumField() {
		sf := t.Field(i)
		tag, tagged := sf.Tag.Lookup("json")
		if tag == "-" {
			continue
		}
		name, options, _ := strings.Cut(tag, ",")
		if sf.Anonymous && name == "" {
			switch {
			case sf.Type.Kind() == reflect.Struct && !custom(sf.Type, marshalers) && !custom(sf.Type, unmarshalers):
				if options != "" || !addFields(fields, sf.Type, base+sf.Offset, keep) {
					return false
				}
				continue
			case sf.Type.Kind() != reflect.Struct && sf.IsExported() && sf.Type.Kind() != reflect.Pointer && sf.Type.Kind() != reflect.Interface:
			default:
				return false
			}
		}
		if !sf.IsExported() {
			if tagged {
				return false
			}
			continue
		}
		if keep != nil && !keep(sf) {
			continue
		}
		f := structField{name: sf.Name, offset: base + sf.Offset, typ: sf.Type}
		if name != "" {
			f.name = name
		}
		if !plainName(f.name) || !f.setOptions(options) {
			return false
		}
		*fields = append(*fields, f)
	}
	return true
}

// setOptions applies the options in a json tag and reports whether all are known.
func (f *structField) setOptions(options string) bool {
	for options != "" {
		var o string
		switch o, options, _ = strings.Cut(options, ","); o {
		case "omitempty":
			f.omitEmpty = true
		case "omitzero":
			f.omitZero = true
		default:
			return false
		}
	}
	return true
}

// plainName reports whether a name is the same in a tag, in Go and in JSON.
func plainName(name string) bool {
	for _, r := range []byte(name) {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', r == '_', r == '-', r == '.', r == '$':
		default:
			return false
		}
	}
	return name != ""
}

// value returns p as a pointer to a t, for encoding/json.
func value(t reflect.Type, p unsafe.Pointer) any { return reflect.NewAt(t, p).Interface() }
