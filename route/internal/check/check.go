// Package check validates values by the rules in their struct tags, compiled once per type.
//
// Tags have the syntax and meaning of github.com/go-playground/validator, under the key validate or
// binding; a differential test in bench/route compares the two. Every field is checked, and an
// invalid field is reported once, with the first of its rules that fails. A valid value costs no
// allocation.
//
//	Name string `validate:"required,max=100"`
//
// A plan is immutable and may be used by any number of goroutines.
package check

import (
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"
)

// Violation is a field that breaks a rule.
type Violation struct {
	In      string // the outermost field's source, by Namer
	Pointer string // the field, as a JSON pointer from the value that was checked
	Rule    string
	Param   string
	Detail  string // for people
}

// MaxViolations bounds the violations found in one value, because a body of a megabyte may hold half a million
// elements: Check stops there.
const MaxViolations = 100

// Rule is a rule of the caller: it gets the field's value and the text after = in the tag.
type Rule func(value any, param string) bool

// Plan checks values of one type.
type Plan struct{ root node }

// Namer returns a field's name for pointers, and its source.
type Namer func(reflect.StructField) (in, name string)

// Compile makes the plan of t; of a slice or a map the elements are checked. The error names the field whose tag cannot
// be applied to its type, or is not known.
func Compile(t reflect.Type, name Namer, custom map[string]Rule) (*Plan, error) {
	c := compiler{name: name, custom: custom, structs: map[reflect.Type]*structPlan{}}
	p := &Plan{}
	tag := ""
	if t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
		tag = "dive"
	}
	err := c.value(&p.root, t, tag, nil)
	return p, err
}

// Idle reports whether there is nothing to check.
func (p *Plan) Idle() bool {
	n := &p.root
	if n.dive != nil {
		n = n.dive
	}
	return len(n.steps) == 0 && n.nilRule == nil && n.dive == nil && (n.fields == nil || len(n.fields.fields) == 0)
}

// Check appends the violations of the value p points to, which has the plan's type, MaxViolations at most.
func (p *Plan) Check(ptr unsafe.Pointer, found []Violation) []Violation {
	return p.root.check(ptr, ptr, found)
}

// node checks a value: its rules in order, then its contents.
type node struct {
	typ      reflect.Type // without the pointers
	pointers int          // to follow to get to the value
	steps    []step
	nilRule  *step       // fails when one of the pointers is nil; nil: nothing does
	fields   *structPlan // of a struct, looked at after the steps
	dive     *node       // for the elements of a slice, array or map
	keys     *node       // for the keys of a map; nil: nothing is asked of them
}

// step is a rule, or an end: omitempty and its like.
type step struct {
	name, param string
	ok          func(p, parent unsafe.Pointer) bool // of a rule
	omit        func(p unsafe.Pointer) bool         // of an end: true leaves
}

type structPlan struct{ fields []fieldPlan }

type fieldPlan struct {
	in     string
	name   string // "" for an embedded struct: it adds nothing to pointers
	offset uintptr
	node   node
}

func (n *node) check(p, parent unsafe.Pointer, found []Violation) []Violation {
	for range n.pointers {
		if p = *(*unsafe.Pointer)(p); p == nil {
			if n.nilRule == nil {
				return found
			}
			return append(found, n.violation(n.nilRule))
		}
	}
	for i := range n.steps {
		s := &n.steps[i]
		if s.omit != nil {
			if s.omit(p) {
				return found
			}
		} else if !s.ok(p, parent) {
			return append(found, n.violation(s))
		}
	}
	if n.fields != nil {
		found = n.fields.check(p, found)
	}
	if n.dive != nil {
		found = n.elements(p, parent, found)
	}
	return found
}

func (s *structPlan) check(p unsafe.Pointer, found []Violation) []Violation {
	for i := range s.fields {
		if len(found) >= MaxViolations {
			return found
		}
		f := &s.fields[i]
		before := len(found)
		found = f.node.check(unsafe.Add(p, f.offset), p, found)
		if len(found) > before {
			prefix(found[before:], f.name)
			if f.name != "" {
				for j := range found[before:] {
					found[before+j].In = f.in
				}
			}
		}
	}
	return found
}

// prefix puts a name in front of the pointers of violations.
func prefix(found []Violation, name string) {
	if name == "" {
		return
	}
	name = "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
	for i := range found {
		found[i].Pointer = name + found[i].Pointer
	}
}

// elements checks the elements of a slice, array or map.
func (n *node) elements(p, parent unsafe.Pointer, found []Violation) []Violation {
	v := reflect.NewAt(n.typ, p).Elem()
	if n.typ.Kind() == reflect.Map {
		first := len(found)
		for it := v.MapRange(); len(found) < MaxViolations && it.Next(); {
			e := reflect.New(n.typ.Elem())
			e.Elem().Set(it.Value())
			before := len(found)
			if n.keys != nil {
				k := reflect.New(n.typ.Key())
				k.Elem().Set(it.Key())
				found = n.keys.check(k.UnsafePointer(), parent, found)
			}
			if found = n.dive.check(e.UnsafePointer(), parent, found); len(found) > before {
				prefix(found[before:], keyName(it.Key()))
			}
		}
		slices.SortStableFunc(found[first:], func(a, b Violation) int { return strings.Compare(a.Pointer, b.Pointer) })
		return found
	}
	for i := 0; i < v.Len() && len(found) < MaxViolations; i++ {
		before := len(found)
		found = n.dive.check(v.Index(i).Addr().UnsafePointer(), parent, found)
		if len(found) > before {
			prefix(found[before:], strconv.Itoa(i))
		}
	}
	return found
}

// keyName is the member name that encoding/json gives a key of a map.
func keyName(key reflect.Value) string {
	if m, ok := key.Interface().(encoding.TextMarshaler); ok && key.Kind() != reflect.String {
		if b, err := m.MarshalText(); err == nil {
			return string(b)
		}
	}
	return fmt.Sprint(key)
}

// compiler makes the nodes of one plan.
type compiler struct {
	name    Namer
	custom  map[string]Rule
	structs map[reflect.Type]*structPlan // those made or being made, for types that hold themselves
}

var timeType = reflect.TypeFor[time.Time]()

func nested(t reflect.Type) bool { return t.Kind() == reflect.Struct && !t.ConvertibleTo(timeType) }

// value fills the node for a value of type t with the rules of a tag; parent is the struct it is in.
func (c *compiler) value(n *node, t reflect.Type, tag string, parent reflect.Type) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
		n.pointers++
	}
	n.typ = t
	first := true
	for tag != "" {
		var word string
		word, tag, _ = strings.Cut(tag, ",")
		if word == "dive" {
			return c.dive(n, t, tag, parent)
		}
		s, err := c.step(word, t, parent, n.pointers > 0)
		if err != nil {
			return err
		}
		n.steps = append(n.steps, s)
		if first && s.omit == nil && n.pointers > 0 {
			n.nilRule = &s
		}
		first = false
	}
	if !nested(t) {
		return nil
	}
	if made, ok := c.structs[t]; ok {
		n.fields = made
		return nil
	}
	s := &structPlan{}
	c.structs[t] = s
	n.fields = s
	return c.fields(s, t)
}

func (c *compiler) dive(n *node, t reflect.Type, tag string, parent reflect.Type) error {
	switch t.Kind() {
	case reflect.Slice, reflect.Array, reflect.Map:
	default:
		return fmt.Errorf("dive needs a slice, array or map, not %v", t)
	}
	if n.pointers > 0 && len(n.steps) == 0 {
		n.nilRule = &step{name: "dive"}
	}
	if rules, rest, ok := CutKeys(tag); ok {
		if t.Kind() != reflect.Map {
			return fmt.Errorf("keys needs a map, not %v", t)
		}
		n.keys, tag = &node{}, rest
		if err := c.value(n.keys, t.Key(), rules, parent); err != nil {
			return err
		}
	} else if strings.HasPrefix(tag, "keys,") {
		return errors.New("keys has no endkeys")
	}
	n.dive = &node{}
	return c.value(n.dive, t.Elem(), tag, parent)
}

// CutKeys cuts the rules for the keys of a map, between keys and endkeys, from the text behind dive in a tag.
func CutKeys(tag string) (keys, rest string, ok bool) {
	if tag, ok = strings.CutPrefix(tag, "keys,"); !ok {
		return "", tag, false
	}
	keys, rest, ok = strings.Cut(","+tag+",", ",endkeys,")
	return strings.TrimPrefix(keys, ","), strings.TrimSuffix(rest, ","), ok
}

// fields fills the plan of a struct.
func (c *compiler) fields(s *structPlan, t reflect.Type) error {
	for i := range t.NumField() {
		sf := t.Field(i)
		if !sf.IsExported() && !sf.Anonymous {
			continue
		}
		tag, err := tagOf(sf)
		if err != nil {
			return err
		}
		if tag == "-" {
			continue
		}
		f := fieldPlan{offset: sf.Offset}
		if !promoted(sf) {
			f.in, f.name = c.name(sf)
		}
		if err := c.value(&f.node, sf.Type, tag, t); err != nil {
			return fmt.Errorf("field %s of %v: %w", sf.Name, t, err)
		}
		if n := &f.node; len(n.steps) > 0 || n.nilRule != nil || n.dive != nil || n.fields != nil && !c.empty(n.fields, sf.Type) {
			s.fields = append(s.fields, f)
		}
	}
	return nil
}

// promoted reports whether the fields of an embedded struct are in the place of the struct, for encoding/json.
func promoted(sf reflect.StructField) bool {
	t := sf.Type
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	name, _, _ := strings.Cut(sf.Tag.Get("json"), ",")
	return sf.Anonymous && t.Kind() == reflect.Struct && name == ""
}

// empty reports whether a struct that is not being made has nothing to check.
func (c *compiler) empty(s *structPlan, t reflect.Type) bool {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return len(s.fields) == 0 && !c.holdsItself(t, t, map[reflect.Type]bool{})
}

// holdsItself reports whether a value of type in can hold one of type t.
func (c *compiler) holdsItself(t, in reflect.Type, seen map[reflect.Type]bool) bool {
	if seen[in] {
		return false
	}
	seen[in] = true
	switch in.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		return in.Elem() == t || c.holdsItself(t, in.Elem(), seen)
	case reflect.Struct:
		for i := range in.NumField() {
			if ft := in.Field(i).Type; ft == t || c.holdsItself(t, ft, seen) {
				return true
			}
		}
	}
	return false
}

// tagOf returns the rules of a field.
func tagOf(sf reflect.StructField) (string, error) {
	v, hasV := sf.Tag.Lookup("validate")
	b, hasB := sf.Tag.Lookup("binding")
	switch {
	case hasV && hasB && v != b:
		return "", fmt.Errorf("field %s has the tags validate and binding, which differ", sf.Name)
	case hasB:
		return b, nil
	}
	return v, nil
}

// ZeroValid reports whether the zero value of t, the type of a field of parent, satisfies the rules of a tag, so that a
// request may omit the field. The caller's own rules count as satisfied. A tag that Compile refuses has no rules.
func ZeroValid(t, parent reflect.Type, tag string, custom map[string]Rule) bool {
	anything := make(map[string]Rule, len(custom))
	for name := range custom {
		anything[name] = func(any, string) bool { return true }
	}
	c := compiler{name: func(sf reflect.StructField) (in, name string) { return "", sf.Name }, custom: anything, structs: map[reflect.Type]*structPlan{}}
	var n node
	if c.value(&n, t, tag, parent) != nil {
		return true
	}
	return len(n.check(reflect.New(t).UnsafePointer(), reflect.New(parent).UnsafePointer(), nil)) == 0
}

// Ignored reports whether the tags of a field say that nothing in it is checked.
func Ignored(sf reflect.StructField) bool {
	tag, _ := tagOf(sf)
	return tag == "-"
}

// Tag returns the rules in the tags of a field, "" when it has none.
func Tag(sf reflect.StructField) string {
	tag, _ := tagOf(sf) // Compile has refused invalid tags
	if tag == "-" {
		return ""
	}
	return tag
}
