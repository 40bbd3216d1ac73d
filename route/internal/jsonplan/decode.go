package jsonplan

import (
	"encoding/binary"
	"encoding/json/jsontext"
	jsonv2 "encoding/json/v2"
	"errors"
	"math/bits"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"
	"unsafe"
)

// DefaultMaxDepth bounds the nesting of objects and arrays for a Decoder without its own bound. It is deeper than usual
// documents and far below the limit of a stack.
const DefaultMaxDepth = 64

// Error tells where and why a text is not JSON or does not fit the type.
type Error struct {
	Pointer string // the value in question, as a JSON pointer (RFC 6901); "" is the whole
	Offset  int    // in bytes, near the problem
	Reason  string
}

// Error implements error.
func (e *Error) Error() string {
	at := ""
	if e.Pointer != "" {
		at = " at " + e.Pointer
	}
	return "json: " + e.Reason + at + " (offset " + strconv.Itoa(e.Offset) + ")"
}

// Decoder reads JSON into values. It may be reused, by one goroutine at a time. Decoded values never refer to the
// input.
type Decoder struct {
	MaxDepth      int  // of objects and arrays; 0 is DefaultMaxDepth
	RefuseUnknown bool // refuse members the type does not have
	data          []byte
	pos           int
	depth         int
	scratch       []byte
	unknown       [][]byte // names of members that the types of the open objects do not have
}

// Decode reads data, one JSON value, into *p, which has the plan's type. Absent and null members do not change their
// fields. After an error *p may hold a part of the value.
func (d *Decoder) Decode(p *Plan, data []byte, ptr unsafe.Pointer) error {
	d.data, d.pos, d.depth, d.unknown = data, 0, 0, d.unknown[:0]
	if d.MaxDepth == 0 {
		d.MaxDepth = DefaultMaxDepth
	}
	err := p.dec(d, ptr)
	if err == nil {
		if d.space(); d.pos < len(data) {
			err = d.errorf("data follows the value")
		}
	}
	d.data = nil
	clear(d.unknown[:cap(d.unknown)]) // they refer to data
	if err != nil {
		return err
	}
	return nil
}

func (d *Decoder) errorf(reason string) *Error { return &Error{Offset: d.pos, Reason: reason} }

// in prepends a member or element to the position of an error.
func (e *Error) in(token string) *Error {
	e.Pointer = "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(token) + e.Pointer
	return e
}

// space skips white space.
func (d *Decoder) space() {
	for d.pos < len(d.data) {
		if c := d.data[d.pos]; c > ' ' || c != ' ' && c != '\n' && c != '\r' && c != '\t' {
			return
		}
		d.pos++
	}
}

// next skips white space and returns the next byte, 0 at the end.
func (d *Decoder) next() byte {
	if d.pos < len(d.data) && d.data[d.pos] > ' ' {
		return d.data[d.pos]
	}
	d.space()
	if d.pos < len(d.data) {
		return d.data[d.pos]
	}
	return 0
}

// literal consumes a word.
func (d *Decoder) literal(word string) bool {
	if len(d.data)-d.pos < len(word) || string(d.data[d.pos:d.pos+len(word)]) != word {
		return false
	}
	d.pos += len(word)
	return true
}

// mismatch returns the error for a value that is missing or has another type than the wanted one.
func (d *Decoder) mismatch(want string) *Error {
	found := "something that is not JSON"
	switch c := d.next(); {
	case d.pos >= len(d.data):
		return d.errorf("the text ends where " + want + " is expected")
	case c == '{':
		found = "an object"
	case c == '[':
		found = "an array"
	case c == '"':
		found = "a string"
	case c == 't' || c == 'f':
		found = "a boolean"
	case c == 'n':
		found = "null"
	case c == '-' || '0' <= c && c <= '9':
		found = "a number"
	}
	return d.errorf("found " + found + " where " + want + " is expected")
}

// open consumes the beginning of an object or array and checks the depth.
func (d *Decoder) open(c byte, want string) *Error {
	if d.next() != c {
		return d.mismatch(want)
	}
	if d.depth++; d.depth > d.MaxDepth {
		return d.errorf("nested deeper than " + strconv.Itoa(d.MaxDepth))
	}
	d.pos++
	return nil
}

// null consumes null.
func (d *Decoder) null() bool { return d.next() == 'n' && d.literal("null") }

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// raw consumes a string and returns it with its quotes. plain means that it is ASCII without
// escapes: then its value is the text between the quotes.
func (d *Decoder) raw() (text []byte, plain bool, err *Error) {
	if d.next() != '"' {
		return nil, false, d.mismatch("a string")
	}
	data, i, start := d.data, d.pos+1, d.pos
	plain = true
	var nonASCII uint64
	for {
		for i+8 <= len(data) {
			w := binary.LittleEndian.Uint64(data[i:])
			q, b := w^(ones*'"'), w^(ones*'\\')
			stop := ((q-ones)&^q | (b-ones)&^b | (w-ones*0x20)&^w) & highs
			if stop != 0 {
				n := bits.TrailingZeros64(stop) &^ 7
				nonASCII |= w & (1<<n - 1)
				i += n / 8
				break
			}
			nonASCII |= w
			i += 8
		}
		if i >= len(data) {
			d.pos = len(data)
			return nil, false, d.errorf("the text ends within a string")
		}
		switch c := data[i]; {
		case c == '"':
			d.pos = i + 1
			return data[start:d.pos], plain && nonASCII&highs == 0, nil
		case c == '\\':
			plain = false
			i++ // and the byte after it
		case c < ' ':
			d.pos = i
			return nil, false, d.errorf("a control character in a string")
		default:
			nonASCII |= uint64(c)
		}
		i++
	}
}

// text consumes a string and returns its value, which is valid until the next call.
func (d *Decoder) text() ([]byte, *Error) {
	raw, plain, err := d.raw()
	if err != nil {
		return nil, err
	}
	if plain {
		return raw[1 : len(raw)-1], nil
	}
	if inner := raw[1 : len(raw)-1]; !hasBackslash(inner) {
		if !utf8.Valid(inner) {
			return nil, d.errorf("a string is not UTF-8")
		}
		return inner, nil
	}
	var unquoteErr error
	if d.scratch, unquoteErr = jsontext.AppendUnquote(d.scratch[:0], raw); unquoteErr != nil {
		return nil, d.errorf("a string has an invalid escape or is not UTF-8")
	}
	return d.scratch, nil
}

func hasBackslash(b []byte) bool {
	for _, c := range b {
		if c == '\\' {
			return true
		}
	}
	return false
}

// number consumes a number and returns its text, and whether it is an integer without exponent.
func (d *Decoder) number(want string) (text []byte, integer bool, err *Error) {
	c := d.next()
	start, data := d.pos, d.data
	i := d.pos
	if c == '-' {
		i++
	}
	digits := func() bool {
		from := i
		for i < len(data) && '0' <= data[i] && data[i] <= '9' {
			i++
		}
		return i > from
	}
	if i < len(data) && data[i] == '0' {
		i++
	} else if !digits() {
		return nil, false, d.mismatch(want)
	}
	integer = true
	if i < len(data) && data[i] == '.' {
		i++
		if integer = false; !digits() {
			return nil, false, d.errorf("a number ends with a point")
		}
	}
	if i < len(data) && data[i]|0x20 == 'e' {
		i++
		if i < len(data) && (data[i] == '+' || data[i] == '-') {
			i++
		}
		if integer = false; !digits() {
			return nil, false, d.errorf("a number ends within its exponent")
		}
	}
	d.pos = i
	return data[start:i], integer, nil
}

// skip consumes a value and returns it. It reads only as much as is needed to find the end; the caller has
// encoding/json validate it.
func (d *Decoder) skip() ([]byte, *Error) {
	d.next()
	start, depth := d.pos, 0
	for {
		switch c := d.next(); {
		case d.pos >= len(d.data):
			return nil, d.errorf("the text ends within a value")
		case c == '"':
			if _, _, err := d.raw(); err != nil {
				return nil, err
			}
		case c == '{' || c == '[':
			if depth++; d.depth+depth > d.MaxDepth {
				return nil, d.errorf("nested deeper than " + strconv.Itoa(d.MaxDepth))
			}
			d.pos++
		case c == '}' || c == ']':
			if depth--; depth < 0 {
				return nil, d.errorf("a value is missing")
			}
			d.pos++
		case c == ',' || c == ':':
			if depth == 0 {
				return nil, d.errorf("a value is missing")
			}
			d.pos++
		default:
			d.scalar()
		}
		if depth == 0 {
			return d.data[start:d.pos], nil
		}
	}
}

// scalar consumes a possible number or word.
func (d *Decoder) scalar() {
	d.pos++
	for d.pos < len(d.data) {
		switch c := d.data[d.pos]; c {
		case ' ', '\t', '\r', '\n', ',', ':', ']', '}', '[', '{', '"':
			return
		}
		d.pos++
	}
}

// standard decodes by encoding/json.
func standard(t reflect.Type) decodeFunc {
	return func(d *Decoder, p unsafe.Pointer) *Error {
		raw, err := d.skip()
		if err != nil {
			return err
		}
		o := &lenient
		if d.RefuseUnknown {
			o = &refusing
		}
		if err := jsonv2.Unmarshal(raw, value(t, p), o.decode); err != nil {
			if located := jsonv2.Unmarshal(raw, reflect.New(t).Interface(), o.locate); located != nil {
				err = located
			}
			return d.wrap(err)
		}
		return nil
	}
}

// notKnown is the reason for refusing a member that the type does not have.
const notKnown = "the member is not known"

// wrap makes an Error from encoding/json's error about a value that begins before d.pos.
func (d *Decoder) wrap(err error) *Error {
	e := &Error{Offset: d.pos, Reason: strings.TrimPrefix(err.Error(), "json: ")}
	if s, ok := errors.AsType[*jsonv2.SemanticError](err); ok {
		e.Pointer, e.Reason = string(s.JSONPointer), "found "+kindName(s.JSONKind)+" where "+wanted(s.GoType)+" is expected"
		switch {
		case errors.Is(s.Err, jsonv2.ErrUnknownName):
			e.Reason = notKnown
		case s.Err != nil && s.JSONKind != '0':
			e.Reason = s.Err.Error()
		}
	} else if s, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		e.Pointer, e.Reason = string(s.JSONPointer), s.Err.Error()
	}
	return e
}

// kindName names a kind of JSON.
func kindName(k jsontext.Kind) string {
	switch k {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return "a string"
	case '0':
		return "a number"
	case 't', 'f':
		return "a boolean"
	}
	return "null"
}

// wanted names the JSON that is decoded into a type.
func wanted(t reflect.Type) string {
	switch {
	case t == nil:
		return "something else"
	case t == timeType:
		return "a time such as 2006-01-02T15:04:05Z"
	case custom(t, unmarshalers):
		return "a text"
	}
	switch k := t.Kind(); k {
	case reflect.Bool:
		return "a boolean"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		return "an integer of " + strconv.Itoa(t.Bits()) + " bits"
	case reflect.Float32, reflect.Float64:
		return "a number of " + strconv.Itoa(t.Bits()) + " bits"
	case reflect.Slice, reflect.Array:
		return "an array"
	case reflect.Map, reflect.Struct:
		return "an object"
	}
	return "a string"
}

// Forget drops buffers of more than size bytes.
func (d *Decoder) Forget(size int) {
	if cap(d.scratch) > size {
		d.scratch = nil
	}
}
