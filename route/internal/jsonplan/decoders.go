package jsonplan

import (
	"encoding/json/jsontext"
	"reflect"
	"strconv"
	"unsafe"
)

// decoder returns the function that decodes values of t.
func (c *compiler) decoder(t reflect.Type) decodeFunc {
	if custom(t, unmarshalers) {
		return standard(t)
	}
	switch t.Kind() {
	case reflect.String:
		return decodeString
	case reflect.Bool:
		return decodeBool
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return intDecoder(t)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		return uintDecoder(t)
	case reflect.Float32, reflect.Float64:
		return floatDecoder(t.Bits())
	case reflect.Pointer, reflect.Slice:
		return c.holderDecoder(t)
	case reflect.Struct:
		if done, ok := c.dec[t]; ok {
			return func(d *Decoder, p unsafe.Pointer) *Error { return (*done)(d, p) } // t holds itself
		}
		fields, ok := structFields(t, nil)
		if !ok {
			return standard(t)
		}
		made := new(decodeFunc)
		c.dec[t] = made
		c.inStruct(func() { *made = c.structDecoder(fields).decode })
		return *made
	}
	return standard(t)
}

// holderDecoder returns the decoder of a pointer or slice.
func (c *compiler) holderDecoder(t reflect.Type) decodeFunc {
	isSlice := t.Kind() == reflect.Slice
	if isSlice && t.Elem().Kind() == reflect.Uint8 {
		return standard(t) // base64
	}
	var elem decodeFunc
	switch {
	case !c.within(t, func() { elem = c.decoder(t.Elem()) }):
		return standard(t)
	case isSlice:
		return sliceDecoder(t, elem)
	}
	return pointerDecoder(t.Elem(), elem)
}

func decodeString(d *Decoder, p unsafe.Pointer) *Error {
	if d.null() {
		return nil
	}
	b, err := d.text()
	if err == nil {
		*(*string)(p) = string(b)
	}
	return err
}

func decodeBool(d *Decoder, p unsafe.Pointer) *Error {
	switch {
	case d.null():
	case d.literal("true"):
		*(*bool)(p) = true
	case d.literal("false"):
		*(*bool)(p) = false
	default:
		return d.mismatch("a boolean")
	}
	return nil
}

// view is a string over b, for functions that do not keep it.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// integer consumes an integer and returns its text, nil for null.
func (d *Decoder) integer() ([]byte, *Error) {
	if d.null() {
		return nil, nil
	}
	text, whole, err := d.number("an integer")
	if err == nil && !whole {
		err = d.errorf("found a fraction or exponent where an integer is expected")
	}
	return text, err
}

func intDecoder(t reflect.Type) decodeFunc {
	bitSize := t.Bits()
	return func(d *Decoder, p unsafe.Pointer) *Error {
		text, err := d.integer()
		if err != nil || text == nil {
			return err
		}
		n, parseErr := strconv.ParseInt(view(text), 10, bitSize)
		if parseErr != nil {
			return d.errorf("the number is out of range for " + strconv.Itoa(bitSize) + " bits")
		}
		store(p, bitSize, uint64(n))
		return nil
	}
}

func uintDecoder(t reflect.Type) decodeFunc {
	bitSize := t.Bits()
	return func(d *Decoder, p unsafe.Pointer) *Error {
		text, err := d.integer()
		if err != nil || text == nil {
			return err
		}
		n, parseErr := strconv.ParseUint(view(text), 10, bitSize)
		if parseErr != nil {
			return d.errorf("the number is negative or out of range for " + strconv.Itoa(bitSize) + " bits")
		}
		store(p, bitSize, n)
		return nil
	}
}

// store writes the lower bits of n, an integer with or without a sign.
func store(p unsafe.Pointer, bits int, n uint64) {
	switch bits {
	case 8:
		*(*uint8)(p) = uint8(n)
	case 16:
		*(*uint16)(p) = uint16(n)
	case 32:
		*(*uint32)(p) = uint32(n)
	default:
		*(*uint64)(p) = n
	}
}

func floatDecoder(bitSize int) decodeFunc {
	return func(d *Decoder, p unsafe.Pointer) *Error {
		if d.null() {
			return nil
		}
		text, _, err := d.number("a number")
		if err != nil {
			return err
		}
		f, parseErr := strconv.ParseFloat(view(text), bitSize)
		if parseErr != nil {
			return d.errorf("the number is out of range")
		}
		if bitSize == 32 {
			*(*float32)(p) = float32(f)
		} else {
			*(*float64)(p) = f
		}
		return nil
	}
}

func pointerDecoder(elem reflect.Type, dec decodeFunc) decodeFunc {
	return func(d *Decoder, p unsafe.Pointer) *Error {
		to := (*unsafe.Pointer)(p)
		if d.null() {
			*to = nil
			return nil
		}
		if *to == nil {
			*to = reflect.New(elem).UnsafePointer()
		}
		return dec(d, *to)
	}
}

// slice is the memory of a slice of any type.
type slice struct {
	data     unsafe.Pointer
	len, cap int
}

func sliceDecoder(t reflect.Type, dec decodeFunc) decodeFunc {
	size := t.Elem().Size()
	return func(d *Decoder, p unsafe.Pointer) *Error {
		if d.null() {
			*(*slice)(p) = slice{}
			return nil
		}
		if err := d.open('[', "an array"); err != nil {
			return err
		}
		v := reflect.NewAt(t, p).Elem()
		if d.next() == ']' {
			d.pos++
			d.depth--
			v.Set(reflect.MakeSlice(t, 0, 0))
			return nil
		}
		*(*slice)(p) = slice{} // replaces a default
		for s := (*slice)(p); ; {
			if s.len == s.cap {
				v.Grow(max(4, s.len)) // the memory is zero
			}
			s.len++
			if err := dec(d, unsafe.Add(s.data, uintptr(s.len-1)*size)); err != nil {
				return err.in(strconv.Itoa(s.len - 1))
			}
			switch d.next() {
			case ',':
				d.pos++
			case ']':
				d.pos++
				d.depth--
				return nil
			default:
				return d.errorf("expected , or ] after an element")
			}
		}
	}
}

// structDecoder makes the decoder of an object with these members.
func (c *compiler) structDecoder(fields []structField) *structDecoder {
	s := &structDecoder{}
	for _, f := range fields {
		s.members = append(s.members, memberDecoder{f.name, f.offset, c.decoder(f.typ)})
	}
	if len(fields) > 8 {
		s.index = make(map[string]int, len(fields))
		for i, f := range fields {
			s.index[f.name] = i
		}
	}
	return s
}

type memberDecoder struct {
	name   string
	offset uintptr
	decode decodeFunc
}

type structDecoder struct {
	members []memberDecoder
	index   map[string]int // by name; nil when a search is faster
}

// find returns the member with a name, -1 if there is none. Members are usually in the order of the
// fields, so guess is tried first.
func (s *structDecoder) find(name []byte, guess int) int {
	if guess < len(s.members) && s.members[guess].name == string(name) {
		return guess
	}
	if s.index != nil {
		if i, ok := s.index[string(name)]; ok {
			return i
		}
		return -1
	}
	for i := range s.members {
		if s.members[i].name == string(name) {
			return i
		}
	}
	return -1
}

// object is the decoder's state of the object it is in.
type object struct {
	seen    [maxFields / 64]uint64
	start   int  // of the object
	unknown int  // where its names begin in Decoder.unknown
	recheck bool // whether a name occurs twice is left to encoding/json
}

func (s *structDecoder) decode(d *Decoder, p unsafe.Pointer) *Error {
	if d.null() {
		return nil
	}
	if err := d.open('{', "an object"); err != nil {
		return err
	}
	o := object{start: d.pos - 1, unknown: len(d.unknown)}
	if d.next() == '}' {
		return d.close(&o)
	}
	for guess := 0; ; guess++ {
		name, err := d.text()
		if err != nil {
			return err
		}
		i := s.find(name, guess)
		if i < 0 {
			if err := d.member(&o, name); err != nil {
				return err
			}
		} else {
			guess = i
			m := &s.members[i]
			if o.seen[i/64]&(1<<(i%64)) != 0 {
				return d.errorf("a name occurs twice").in(m.name)
			}
			o.seen[i/64] |= 1 << (i % 64)
			if d.next() != ':' {
				return d.errorf("expected : after a name")
			}
			d.pos++
			if err := m.decode(d, unsafe.Add(p, m.offset)); err != nil {
				return err.in(m.name)
			}
		}
		switch d.next() {
		case ',':
			d.pos++
		case '}':
			return d.close(&o)
		default:
			return d.errorf("expected , or } after a member")
		}
	}
}

// close consumes the end of an object.
func (d *Decoder) close(o *object) *Error {
	d.pos++
	d.depth--
	d.unknown = d.unknown[:o.unknown]
	if o.recheck && !jsontext.Value(d.data[o.start:d.pos]).IsValid() {
		return d.errorf("a name occurs twice")
	}
	return nil
}

// maxUnknown bounds the search for repeated names. With more unknown members encoding/json
// searches.
const maxUnknown = 16

// member consumes the rest of a member that the type does not have.
func (d *Decoder) member(o *object, name []byte) *Error {
	if d.RefuseUnknown {
		return d.errorf(notKnown).in(string(name))
	}
	inPlace := len(name) > 0 && len(d.scratch) > 0 && &name[0] == &d.scratch[0]
	for _, other := range d.unknown[o.unknown:] {
		if string(other) == string(name) {
			return d.errorf("a name occurs twice").in(string(name))
		}
	}
	if inPlace || len(d.unknown)-o.unknown >= maxUnknown {
		o.recheck = true
	} else {
		d.unknown = append(d.unknown, name)
	}
	if d.next() != ':' {
		return d.errorf("expected : after a name")
	}
	d.pos++
	raw, err := d.skip()
	if err != nil {
		return err
	}
	if !jsontext.Value(raw).IsValid() {
		return d.errorf("not JSON").in(string(name))
	}
	return nil
}
