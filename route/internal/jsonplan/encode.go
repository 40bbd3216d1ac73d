package jsonplan

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"time"
	"unicode/utf8"
	"unsafe"
)

// encoder returns the function that encodes values of t.
func (c *compiler) encoder(t reflect.Type) encodeFunc {
	if t == timeType {
		return encodeTime
	}
	if custom(t, marshalers) {
		return standardEncoder(t)
	}
	switch t.Kind() {
	case reflect.String:
		return func(dst []byte, p unsafe.Pointer) ([]byte, error) { return appendString(dst, *(*string)(p)), nil }
	case reflect.Bool:
		return func(dst []byte, p unsafe.Pointer) ([]byte, error) { return strconv.AppendBool(dst, *(*bool)(p)), nil }
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return intEncoder(t.Size())
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		return uintEncoder(t.Size())
	case reflect.Float32:
		return func(dst []byte, p unsafe.Pointer) ([]byte, error) {
			return appendFloat(dst, float64(*(*float32)(p)), 32)
		}
	case reflect.Float64:
		return func(dst []byte, p unsafe.Pointer) ([]byte, error) { return appendFloat(dst, *(*float64)(p), 64) }
	case reflect.Pointer:
		return c.pointerEncoder(t)
	case reflect.Slice:
		return c.sliceEncoder(t)
	case reflect.Struct:
		fields, ok := structFields(t, nil)
		if !ok || c.enc[t] { // a recursive type may contain a cycle, which encoding/json detects
			return standardEncoder(t)
		}
		c.enc[t] = true
		defer delete(c.enc, t)
		var enc encodeFunc
		c.inStruct(func() { enc = c.structEncoder(fields) })
		return enc
	}
	return standardEncoder(t)
}

// standardEncoder encodes by encoding/json.
func standardEncoder(t reflect.Type) encodeFunc {
	return func(dst []byte, p unsafe.Pointer) ([]byte, error) {
		b, err := json.Marshal(value(t, p))
		return append(dst, b...), err
	}
}

func encodeTime(dst []byte, p unsafe.Pointer) ([]byte, error) {
	start := len(dst)
	b, err := (*time.Time)(p).AppendText(append(dst, '"'))
	if err != nil {
		return dst[:start], fmt.Errorf("json: a time: %w", err)
	}
	return append(b, '"'), nil
}

func intEncoder(size uintptr) encodeFunc {
	return func(dst []byte, p unsafe.Pointer) ([]byte, error) {
		var n int64
		switch size {
		case 1:
			n = int64(*(*int8)(p))
		case 2:
			n = int64(*(*int16)(p))
		case 4:
			n = int64(*(*int32)(p))
		default:
			n = *(*int64)(p)
		}
		return strconv.AppendInt(dst, n, 10), nil
	}
}

func uintEncoder(size uintptr) encodeFunc {
	return func(dst []byte, p unsafe.Pointer) ([]byte, error) {
		var n uint64
		switch size {
		case 1:
			n = uint64(*(*uint8)(p))
		case 2:
			n = uint64(*(*uint16)(p))
		case 4:
			n = uint64(*(*uint32)(p))
		default:
			n = *(*uint64)(p)
		}
		return strconv.AppendUint(dst, n, 10), nil
	}
}

// appendFloat formats a number like ES6 and encoding/json.
func appendFloat(dst []byte, f float64, bitSize int) ([]byte, error) {
	if math.IsInf(f, 0) || math.IsNaN(f) {
		return dst, fmt.Errorf("json: %v has no form in JSON", f)
	}
	format, abs := byte('f'), math.Abs(f)
	if abs != 0 {
		if bitSize == 64 && (abs < 1e-6 || abs >= 1e21) || bitSize == 32 && (float32(abs) < 1e-6 || float32(abs) >= 1e21) {
			format = 'e'
		}
	}
	dst = strconv.AppendFloat(dst, f, format, -1, bitSize)
	if n := len(dst); format == 'e' && n >= 4 && dst[n-4] == 'e' && (dst[n-3] == '-' || dst[n-3] == '+') && dst[n-2] == '0' {
		dst[n-2] = dst[n-1] // e-09 is e-9
		dst = dst[:n-1]
	}
	return dst, nil
}

func (c *compiler) pointerEncoder(t reflect.Type) encodeFunc {
	var enc encodeFunc
	if !c.within(t, func() { enc = c.encoder(t.Elem()) }) {
		return standardEncoder(t)
	}
	return func(dst []byte, p unsafe.Pointer) ([]byte, error) {
		to := *(*unsafe.Pointer)(p)
		if to == nil {
			return append(dst, "null"...), nil
		}
		return enc(dst, to)
	}
}

func (c *compiler) sliceEncoder(t reflect.Type) encodeFunc {
	elem := t.Elem()
	if elem.Kind() == reflect.Uint8 {
		if elem.NumMethod() > 0 || custom(elem, marshalers) {
			return standardEncoder(t)
		}
		return func(dst []byte, p unsafe.Pointer) ([]byte, error) {
			b := *(*[]byte)(p)
			if b == nil {
				return append(dst, "null"...), nil
			}
			return append(base64.StdEncoding.AppendEncode(append(dst, '"'), b), '"'), nil
		}
	}
	var enc encodeFunc
	if !c.within(t, func() { enc = c.encoder(elem) }) {
		return standardEncoder(t)
	}
	size := elem.Size()
	return func(dst []byte, p unsafe.Pointer) ([]byte, error) {
		s := *(*slice)(p)
		if s.data == nil {
			return append(dst, "null"...), nil
		}
		dst = append(dst, '[')
		for i := range s.len {
			if i > 0 {
				dst = append(dst, ',')
			}
			var err error
			if dst, err = enc(dst, unsafe.Add(s.data, uintptr(i)*size)); err != nil {
				return dst, err
			}
		}
		return append(dst, ']'), nil
	}
}

// memberEncoder is a member of an object.
type memberEncoder struct {
	name   string // with quotes, colon and a comma in front
	offset uintptr
	encode encodeFunc
	omit   func(p unsafe.Pointer) bool // nil: never
}

func (c *compiler) structEncoder(fields []structField) encodeFunc {
	var members []memberEncoder
	for _, f := range fields {
		members = append(members, memberEncoder{`,"` + f.name + `":`, f.offset, c.encoder(f.typ), omitter(f)})
	}
	return func(dst []byte, p unsafe.Pointer) ([]byte, error) {
		start := len(dst)
		dst = append(dst, '{')
		for i := range members {
			m := &members[i]
			at := unsafe.Add(p, m.offset)
			if m.omit != nil && m.omit(at) {
				continue
			}
			name := m.name
			if len(dst) == start+1 {
				name = name[1:]
			}
			dst = append(dst, name...)
			var err error
			if dst, err = m.encode(dst, at); err != nil {
				return dst, fmt.Errorf("%s: %w", m.name[2:len(m.name)-2], err)
			}
		}
		return append(dst, '}'), nil
	}
}

// omitter returns a function that decides whether a member is omitted.
func omitter(f structField) func(unsafe.Pointer) bool {
	t := f.typ
	zero := func(p unsafe.Pointer) bool { return reflect.NewAt(t, p).Elem().IsZero() }
	if t.Kind() == reflect.String {
		zero = func(p unsafe.Pointer) bool { return *(*string)(p) == "" }
	}
	type zeroer interface{ IsZero() bool }
	omitZero := zero
	if z := reflect.TypeFor[zeroer](); t.Implements(z) || reflect.PointerTo(t).Implements(z) {
		omitZero = func(p unsafe.Pointer) bool {
			v := reflect.NewAt(t, p)
			if k := t.Kind(); (k == reflect.Pointer || k == reflect.Interface) && v.Elem().IsNil() {
				return true
			}
			return v.Interface().(zeroer).IsZero()
		}
		if !reflect.PointerTo(t).Implements(z) { // t is a pointer or interface
			omitZero = func(p unsafe.Pointer) bool {
				v := reflect.NewAt(t, p).Elem()
				return v.IsNil() || v.Interface().(zeroer).IsZero()
			}
		}
	}
	var omitEmpty func(unsafe.Pointer) bool
	switch t.Kind() {
	case reflect.Slice, reflect.Map, reflect.Array:
		omitEmpty = func(p unsafe.Pointer) bool { return reflect.NewAt(t, p).Elem().Len() == 0 }
	case reflect.Struct:
		omitEmpty = func(unsafe.Pointer) bool { return false }
	default:
		omitEmpty = zero
	}
	switch {
	case f.omitEmpty && f.omitZero:
		return func(p unsafe.Pointer) bool { return omitEmpty(p) || omitZero(p) }
	case f.omitEmpty:
		return omitEmpty
	case f.omitZero:
		return omitZero
	}
	return nil
}

const hexDigits = "0123456789abcdef"

// plainByte marks the bytes that encoding/json does not escape. It escapes those that HTML and
// JavaScript could misread.
var plainByte = func() (plain [256]bool) {
	for c := ' '; c < utf8.RuneSelf; c++ {
		plain[c] = c != '"' && c != '\\' && c != '<' && c != '>' && c != '&'
	}
	return plain
}()

// plainPrefix returns the length of a prefix of s without bytes that need escapes. The prefix may be shorter than
// possible.
func plainPrefix(s string) int {
	b, i := unsafe.Slice(unsafe.StringData(s), len(s)), 0
	for ; i+8 <= len(b); i += 8 {
		w := binary.LittleEndian.Uint64(b[i:])
		// Below 0x20, or one of the five characters: a byte of x that is zero, borrowing as it is below 1.
		special := (w - ones*' ') | zero(w^(ones*'"')) | zero(w^(ones*'\\')) | zero(w^(ones*'<')) | zero(w^(ones*'>')) | zero(w^(ones*'&'))
		if (special|w)&highs != 0 {
			break
		}
	}
	return i
}

// zero returns the high bit of each zero byte of x, and possibly of bytes above one.
func zero(x uint64) uint64 { return (x - ones) & ^x }

func appendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	start := 0
	for i := plainPrefix(s); i < len(s); {
		c := s[i]
		if plainByte[c] {
			i++
			continue
		}
		if c < utf8.RuneSelf {
			dst = append(dst, s[start:i]...)
			dst = appendEscape(dst, c)
			i++
			start = i
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			dst = append(dst, s[start:i]...)
			dst = append(dst, "\ufffd"...)
			start = i + size
		case r == '\u2028' || r == '\u2029':
			dst = append(dst, s[start:i]...)
			dst = append(dst, '\\', 'u', '2', '0', '2', hexDigits[r&0xf])
			start = i + size
		}
		i += size
	}
	dst = append(dst, s[start:]...)
	return append(dst, '"')
}

func appendEscape(dst []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(dst, '\\', c)
	case '\b':
		return append(dst, '\\', 'b')
	case '\f':
		return append(dst, '\\', 'f')
	case '\n':
		return append(dst, '\\', 'n')
	case '\r':
		return append(dst, '\\', 'r')
	case '\t':
		return append(dst, '\\', 't')
	}
	return append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&0xf])
}
