package bind

import (
	"encoding"
	"errors"
	"math"
	"reflect"
	"strconv"
	"time"
	"unsafe"
)

// setter parses a text into *p. Its errors continue a sentence: "must be …".
type setter func(p unsafe.Pointer, text string) error

var (
	textType     = reflect.TypeFor[encoding.TextUnmarshaler]()
	timeType     = reflect.TypeFor[time.Time]()
	durationType = reflect.TypeFor[time.Duration]()
)

// scalar returns the setter of a type made of one text, nil for others, and whether it keeps the text.
func scalar(t reflect.Type) (set setter, keeps bool) {
	switch {
	case t.Kind() == reflect.Pointer:
		elem, keeps := scalar(t.Elem())
		if elem == nil {
			return nil, false
		}
		return func(p unsafe.Pointer, text string) error {
			v := reflect.New(t.Elem()).UnsafePointer()
			*(*unsafe.Pointer)(p) = v
			return elem(v, text)
		}, keeps
	case t == timeType:
		return setTime, false
	case t == durationType:
		return setDuration, false
	case reflect.PointerTo(t).Implements(textType):
		return func(p unsafe.Pointer, text string) error {
			u := reflect.NewAt(t, p).Interface().(encoding.TextUnmarshaler)
			if err := u.UnmarshalText([]byte(text)); err != nil {
				return errors.New("is invalid: " + err.Error())
			}
			return nil
		}, true
	}
	switch t.Kind() {
	case reflect.String:
		return func(p unsafe.Pointer, text string) error { *(*string)(p) = text; return nil }, true
	case reflect.Bool:
		return setBool, false
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return intSetter(t), false
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return uintSetter(t), false
	case reflect.Float32, reflect.Float64:
		return floatSetter(t), false
	}
	return nil, false
}

func setTime(p unsafe.Pointer, text string) (err error) {
	if *(*time.Time)(p), err = time.Parse(time.RFC3339, text); err != nil {
		return errors.New("must be a time such as 2006-01-02T15:04:05Z")
	}
	return nil
}

func setDuration(p unsafe.Pointer, text string) (err error) {
	if *(*time.Duration)(p), err = time.ParseDuration(text); err != nil {
		return errors.New("must be a duration such as 1m30s")
	}
	return nil
}

func setBool(p unsafe.Pointer, text string) (err error) {
	if *(*bool)(p), err = strconv.ParseBool(text); err != nil {
		return errors.New("must be true or false")
	}
	return nil
}

func intSetter(t reflect.Type) setter {
	bits := t.Bits()
	return func(p unsafe.Pointer, text string) error {
		n, err := strconv.ParseInt(text, 10, bits)
		if err != nil {
			return numberError(err, "an integer", bits)
		}
		store(p, bits, uint64(n))
		return nil
	}
}

func uintSetter(t reflect.Type) setter {
	bits := t.Bits()
	return func(p unsafe.Pointer, text string) error {
		n, err := strconv.ParseUint(text, 10, bits)
		if err != nil {
			return numberError(err, "an integer that is not negative", bits)
		}
		store(p, bits, n)
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

func floatSetter(t reflect.Type) setter {
	bits := t.Bits()
	return func(p unsafe.Pointer, text string) error {
		f, err := strconv.ParseFloat(text, bits)
		if err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
			return numberError(err, "a number", bits)
		}
		if bits == 32 {
			*(*float32)(p) = float32(f)
		} else {
			*(*float64)(p) = f
		}
		return nil
	}
}

func numberError(err error, want string, bits int) error {
	if errors.Is(err, strconv.ErrRange) {
		return errors.New("must be " + want + " that " + strconv.Itoa(bits) + " bits can hold")
	}
	return errors.New("must be " + want)
}

// appender returns a function that appends one element to a slice.
func appender(t reflect.Type, elem setter) setter {
	size := t.Elem().Size()
	return func(p unsafe.Pointer, text string) error {
		v := reflect.NewAt(t, p).Elem()
		n := v.Len()
		v.Grow(1)
		v.SetLen(n + 1)
		return elem(unsafe.Add(v.UnsafePointer(), uintptr(n)*size), text)
	}
}
