package check

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
	"unsafe"
)

// step makes the step of one word of a tag: a rule, rules joined by |, or omitempty and its like.
func (c *compiler) step(word string, t, parent reflect.Type, pointer bool) (step, error) {
	switch word {
	case "omitempty", "omitzero", "omitnil":
		return step{name: word, omit: omitter(word, t, pointer)}, nil
	}
	alternatives := strings.Split(word, "|")
	if len(alternatives) == 1 {
		return c.rule(word, t, parent, pointer)
	}
	var rules []step
	for _, w := range alternatives {
		s, err := c.rule(w, t, parent, pointer)
		if err != nil {
			return step{}, err
		}
		rules = append(rules, s)
	}
	return step{name: word, ok: func(p, parent unsafe.Pointer) bool {
		for i := range rules {
			if rules[i].ok(p, parent) {
				return true
			}
		}
		return false
	}}, nil
}

// omitter returns a check that ends the checks of an unset field.
func omitter(word string, t reflect.Type, pointer bool) func(unsafe.Pointer) bool {
	never := func(unsafe.Pointer) bool { return false }
	switch {
	case word == "omitzero":
		return zero(t)
	case nilable(t):
		return zero(t)
	case word == "omitnil", pointer: // a pointer that is not nil counts as set
		return never
	}
	return zero(t)
}

// zero returns a function that recognizes the zero value of t.
func zero(t reflect.Type) func(unsafe.Pointer) bool {
	switch {
	case t.Kind() == reflect.String:
		return func(p unsafe.Pointer) bool { return *(*string)(p) == "" }
	case t.Kind() >= reflect.Int && t.Kind() <= reflect.Uintptr && t.Size() == 8:
		return func(p unsafe.Pointer) bool { return *(*int64)(p) == 0 }
	}
	return func(p unsafe.Pointer) bool { return reflect.NewAt(t, p).Elem().IsZero() }
}

func nilable(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Slice, reflect.Map, reflect.Interface, reflect.Chan, reflect.Func:
		return true
	}
	return false
}

// Unescape returns the parameter of a rule with the commas and bars that a tag cannot have.
func Unescape(param string) string {
	return strings.ReplaceAll(strings.ReplaceAll(param, "0x2C", ","), "0x7C", "|")
}

// rule makes the step of one rule.
func (c *compiler) rule(word string, t, parent reflect.Type, pointer bool) (step, error) {
	name, param, hasParam := strings.Cut(word, "=")
	param = Unescape(param)
	s := step{name: name, param: param}
	if custom, ok := c.custom[name]; ok {
		s.ok = func(p, _ unsafe.Pointer) bool { return custom(reflect.NewAt(t, p).Elem().Interface(), param) }
		return s, nil
	}
	if t.Kind() == reflect.Interface && name != "required" {
		return s, fmt.Errorf("the rule %q cannot check an interface", word)
	}
	var err error
	switch name {
	case "required", "isdefault":
		set := omitter("omitempty", t, pointer)
		s.ok = func(p, _ unsafe.Pointer) bool { return set(p) == (name == "isdefault") }
	case "min", "gte":
		s.ok, err = compare(t, param, hasParam, func(c int) bool { return c >= 0 })
	case "max", "lte":
		s.ok, err = compare(t, param, hasParam, func(c int) bool { return c <= 0 })
	case "gt":
		s.ok, err = compare(t, param, hasParam, func(c int) bool { return c > 0 })
	case "lt":
		s.ok, err = compare(t, param, hasParam, func(c int) bool { return c < 0 })
	case "len", "eq", "ne":
		s.ok, err = equal(name, t, param)
	case "oneof":
		s.ok, err = oneOf(t, param)
	case "unique":
		s.ok, err = unique(t, param)
	case "eqfield", "nefield", "gtfield", "gtefield", "ltfield", "ltefield":
		s.ok, err = field(name, t, parent, param)
	default:
		s.ok, err = text(name, t, param, hasParam)
	}
	return s, err
}

// compare orders a value and a number: text by its characters, collections by their length, times by
// now when there is no number.
func compare(t reflect.Type, param string, hasParam bool, ok func(int) bool) (func(p, _ unsafe.Pointer) bool, error) {
	if t.ConvertibleTo(timeType) && t.Kind() == reflect.Struct && !hasParam {
		return func(p, _ unsafe.Pointer) bool {
			return ok((*time.Time)(p).Compare(time.Now()))
		}, nil
	}
	order, err := orderer(t, param)
	if err != nil {
		return nil, err
	}
	return func(p, _ unsafe.Pointer) bool { return ok(order(p)) }, nil
}

// orderer returns a function that compares a value with the number in param. NaN is below everything; neither JSON nor
// the binders accept one.
func orderer(t reflect.Type, param string) (func(unsafe.Pointer) int, error) {
	bad := func(err error) error { return fmt.Errorf("%q is no bound for %v: %w", param, t, err) }
	switch k := t.Kind(); k {
	case reflect.String, reflect.Slice, reflect.Map, reflect.Array:
		n, err := strconv.ParseInt(param, 0, 64)
		if err != nil {
			return nil, bad(err)
		}
		if k == reflect.String {
			return func(p unsafe.Pointer) int { return cmp.Compare(characters(*(*string)(p)), n) }, nil
		}
		return func(p unsafe.Pointer) int { return cmp.Compare(int64(reflect.NewAt(t, p).Elem().Len()), n) }, nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		n, err := strconv.ParseInt(param, 0, 64)
		if d, dErr := time.ParseDuration(param); t == reflect.TypeFor[time.Duration]() && dErr == nil {
			n, err = int64(d), nil
		}
		if err != nil {
			return nil, bad(err)
		}
		if t.Size() == 8 {
			return func(p unsafe.Pointer) int { return cmp.Compare(*(*int64)(p), n) }, nil
		}
		return func(p unsafe.Pointer) int { return cmp.Compare(reflect.NewAt(t, p).Elem().Int(), n) }, nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		n, err := strconv.ParseUint(param, 0, 64)
		if err != nil {
			return nil, bad(err)
		}
		return func(p unsafe.Pointer) int { return cmp.Compare(reflect.NewAt(t, p).Elem().Uint(), n) }, nil
	case reflect.Float32, reflect.Float64:
		n, err := strconv.ParseFloat(param, t.Bits())
		if err != nil {
			return nil, bad(err)
		}
		return func(p unsafe.Pointer) int { return cmp.Compare(reflect.NewAt(t, p).Elem().Float(), n) }, nil
	}
	return nil, fmt.Errorf("%v has no order and no length", t)
}

// characters counts the characters of s; those of an ASCII prefix eight at a time.
func characters(s string) int64 {
	b, i := unsafe.Slice(unsafe.StringData(s), len(s)), 0
	for i+8 <= len(b) && binary.LittleEndian.Uint64(b[i:])&0x8080808080808080 == 0 {
		i += 8
	}
	return int64(i + utf8.RuneCountInString(s[i:]))
}

// equal makes len, eq and ne.
func equal(name string, t reflect.Type, param string) (func(p, _ unsafe.Pointer) bool, error) {
	want := name != "ne"
	switch {
	case t.Kind() == reflect.String && name != "len":
		return func(p, _ unsafe.Pointer) bool { return (*(*string)(p) == param) == want }, nil
	case t.Kind() == reflect.Bool && name != "len":
		b, err := strconv.ParseBool(param)
		if err != nil {
			return nil, fmt.Errorf("%q is neither true nor false", param)
		}
		return func(p, _ unsafe.Pointer) bool { return (*(*bool)(p) == b) == want }, nil
	}
	order, err := orderer(t, param)
	if err != nil {
		return nil, err
	}
	return func(p, _ unsafe.Pointer) bool { return (order(p) == 0) == want }, nil
}

var words = regexp.MustCompile(`'[^']*'|\S+`)

// oneOf makes the rule that a value is one of a list, which is separated by spaces, with quotes around values that have
// some.
func oneOf(t reflect.Type, param string) (func(p, _ unsafe.Pointer) bool, error) {
	list := words.FindAllString(param, -1)
	for i, w := range list {
		list[i] = strings.ReplaceAll(w, "'", "")
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("oneof has no values")
	}
	switch {
	case t.Kind() == reflect.String:
		return func(p, _ unsafe.Pointer) bool { return slices.Contains(list, *(*string)(p)) }, nil
	case t.Kind() >= reflect.Int && t.Kind() <= reflect.Int64:
		return func(p, _ unsafe.Pointer) bool {
			return slices.Contains(list, strconv.FormatInt(reflect.NewAt(t, p).Elem().Int(), 10))
		}, nil
	case t.Kind() >= reflect.Uint && t.Kind() <= reflect.Uint64:
		return func(p, _ unsafe.Pointer) bool {
			return slices.Contains(list, strconv.FormatUint(reflect.NewAt(t, p).Elem().Uint(), 10))
		}, nil
	}
	return nil, fmt.Errorf("oneof needs a string or an integer, not %v", t)
}

// unique makes the rule that no two elements, or values of a map, are equal.
func unique(t reflect.Type, param string) (func(p, _ unsafe.Pointer) bool, error) {
	switch t.Kind() {
	case reflect.Slice, reflect.Array, reflect.Map:
	default:
		return nil, fmt.Errorf("unique needs a slice, array or map, not %v", t)
	}
	elem := t.Elem()
	for elem.Kind() == reflect.Pointer && elem == t.Elem() {
		elem = elem.Elem()
	}
	if param != "" || !elem.Comparable() || holdsInterface(elem) {
		return nil, fmt.Errorf("unique cannot compare the elements of %v", t)
	}
	return func(p, _ unsafe.Pointer) bool {
		v := reflect.NewAt(t, p).Elem()
		if v.Kind() == reflect.Map {
			seen := make(map[any]bool, v.Len())
			for it := v.MapRange(); it.Next(); {
				if !add(seen, it.Value()) {
					return false
				}
			}
			return true
		}
		seen := make(map[any]bool, v.Len())
		for i := range v.Len() {
			if !add(seen, v.Index(i)) {
				return false
			}
		}
		return true
	}, nil
}

// holdsInterface reports whether values of t may hold values that cannot be compared, which would
// panic.
func holdsInterface(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Interface:
		return true
	case reflect.Array:
		return holdsInterface(t.Elem())
	case reflect.Struct:
		for i := range t.NumField() {
			if holdsInterface(t.Field(i).Type) {
				return true
			}
		}
	}
	return false
}

// add reports whether v, or the value it points to, is new to the set.
func add(seen map[any]bool, v reflect.Value) bool {
	var key any = struct{ null bool }{true}
	if v.Kind() != reflect.Pointer {
		key = v.Interface()
	} else if !v.IsNil() {
		key = v.Elem().Interface()
	}
	if seen[key] {
		return false
	}
	seen[key] = true
	return true
}

// field makes the rules that compare a field with one beside it.
func field(name string, t, parent reflect.Type, param string) (func(p, _ unsafe.Pointer) bool, error) {
	if parent == nil {
		return nil, fmt.Errorf("%s needs a struct around the field", name)
	}
	other, ok := parent.FieldByName(param)
	if !ok || other.Type != t || len(other.Index) > 1 {
		return nil, fmt.Errorf("%s needs a field %q of type %v in %v", name, param, t, parent)
	}
	order, err := fieldOrder(t, name)
	if err != nil {
		return nil, err
	}
	return func(p, parent unsafe.Pointer) bool {
		c := order(p, unsafe.Add(parent, other.Offset))
		switch name {
		case "eqfield":
			return c == 0
		case "nefield":
			return c != 0
		case "gtfield":
			return c > 0
		case "gtefield":
			return c >= 0
		case "ltfield":
			return c < 0
		}
		return c <= 0
	}, nil
}

// fieldOrder compares two values of a type; text by its length, but for equality, as validator does.
func fieldOrder(t reflect.Type, name string) (func(a, b unsafe.Pointer) int, error) {
	switch k := t.Kind(); {
	case k == reflect.String && (name == "eqfield" || name == "nefield"):
		return func(a, b unsafe.Pointer) int { return strings.Compare(*(*string)(a), *(*string)(b)) }, nil
	case k == reflect.String:
		return func(a, b unsafe.Pointer) int { return cmp.Compare(len(*(*string)(a)), len(*(*string)(b))) }, nil
	case k >= reflect.Int && k <= reflect.Int64:
		return func(a, b unsafe.Pointer) int {
			return cmp.Compare(reflect.NewAt(t, a).Elem().Int(), reflect.NewAt(t, b).Elem().Int())
		}, nil
	case k >= reflect.Uint && k <= reflect.Uintptr:
		return func(a, b unsafe.Pointer) int {
			return cmp.Compare(reflect.NewAt(t, a).Elem().Uint(), reflect.NewAt(t, b).Elem().Uint())
		}, nil
	case k == reflect.Float32 || k == reflect.Float64:
		return func(a, b unsafe.Pointer) int {
			return cmp.Compare(reflect.NewAt(t, a).Elem().Float(), reflect.NewAt(t, b).Elem().Float())
		}, nil
	case k == reflect.Struct && t.ConvertibleTo(timeType):
		return func(a, b unsafe.Pointer) int { return (*time.Time)(a).Compare(*(*time.Time)(b)) }, nil
	}
	return nil, fmt.Errorf("%s cannot compare %v", name, t)
}
