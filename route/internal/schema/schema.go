// Package schema describes Go types by JSON Schema 2020-12, as OpenAPI 3.1 uses it: for responses the output of
// encoding/json, for requests the values that decoding and the rules in tags accept.
package schema

import (
	"encoding"
	"encoding/json"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headpond/headpond/route/internal/check"
)

// Use tells whether the values are part of a request or a response. It decides what is required, what may be null, and
// whether rules apply.
type Use struct{ request, checked, strict, text bool }

// The uses.
var (
	Response      = Use{}
	Request       = Use{request: true, checked: true}
	StrictRequest = Use{request: true, checked: true, strict: true} // members that the type does not have are refused
	Text          = Use{request: true, checked: true, text: true}   // of a query, a header, a cookie or a form
)

// unchecked is the use of values without rules: the elements of a collection without dive.
func (u Use) unchecked() Use {
	u.checked = u.text
	return u
}

// suffixes keep apart the components of one type, in the order of uses.
var uses, suffixes = []Use{Response, Request, StrictRequest, Text, Request.unchecked(), StrictRequest.unchecked()},
	[]string{"", "Input", "StrictInput", "Text", "UncheckedInput", "UncheckedStrictInput"}

// Set is the schemas of a document. Named structs are components, to which schemas refer. The same calls give the same
// names. Components of responses have no suffix if responses are described first.
type Set struct {
	prefix     string // of references
	rules      map[string]check.Rule
	names      map[key]string
	components map[string]any
	around     []reflect.Type // lists and maps of which the schema is being made
}

type key struct {
	t   reflect.Type
	use Use
}

// New returns an empty set whose components are at prefix. rules are additional rules for tags.
func New(prefix string, rules map[string]check.Rule) *Set {
	return &Set{prefix: prefix, rules: rules, names: map[key]string{}, components: map[string]any{}}
}

// Components returns the schemas by name.
func (s *Set) Components() map[string]any { return s.components }

var (
	jsonMarshaler = reflect.TypeFor[json.Marshaler]()
	textMarshaler = reflect.TypeFor[encoding.TextMarshaler]()
	timeType      = reflect.TypeFor[time.Time]()
)

func implements(t, i reflect.Type) bool { return t.Implements(i) || reflect.PointerTo(t).Implements(i) }

// integers are the kinds of integers by their name in OpenAPI's registry of formats.
var integers = map[reflect.Kind]string{
	reflect.Int: "int64", reflect.Int8: "int8", reflect.Int16: "int16", reflect.Int32: "int32", reflect.Int64: "int64",
	reflect.Uint: "uint64", reflect.Uint8: "uint8", reflect.Uint16: "uint16", reflect.Uint32: "uint32", reflect.Uint64: "uint64", reflect.Uintptr: "uint64",
}

// Type returns the schema of a type. For the body of a request it includes the rules for elements of a collection.
func (s *Set) Type(t reflect.Type, use Use) map[string]any {
	if use.request && (t.Kind() == reflect.Slice || t.Kind() == reflect.Map) {
		return s.value(t, "dive", use)
	}
	return s.value(t, "", use)
}

// value returns the schema of a value with the rules of a tag.
func (s *Set) value(t reflect.Type, tag string, use Use) map[string]any {
	pointer := t.Kind() == reflect.Pointer
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	rules, rest, dive := cutDive(tag)
	schema := s.plain(t, rest, dive, use)
	if _, ref := schema["$ref"]; !ref && use.checked {
		apply(schema, t, rules, pointer, use)
	}
	if pointer {
		return Nullable(schema)
	}
	return schema
}

// plain returns the schema of a type that is not a pointer; rest are the rules of its elements.
func (s *Set) plain(t reflect.Type, rest string, dive bool, use Use) map[string]any {
	switch {
	case t == reflect.TypeFor[time.Duration]() && use.text:
		return map[string]any{"type": "string"} // such as 1m30s; in JSON it is a number
	case t == timeType:
		m := map[string]any{"type": "string", "format": "date-time"}
		if use.request {
			m["minLength"] = len("2006-01-02T15:04:05Z") // "" is none
		}
		return m
	case t == reflect.TypeFor[json.Number]():
		return map[string]any{"type": "number"}
	case implements(t, jsonMarshaler):
		return map[string]any{}
	case implements(t, textMarshaler):
		return map[string]any{"type": "string"}
	}
	if format, ok := integers[t.Kind()]; ok {
		m := map[string]any{"type": "integer", "format": format}
		if format[0] == 'u' {
			m["minimum"] = 0
		}
		return m
	}
	switch t.Kind() {
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Float32:
		return map[string]any{"type": "number", "format": "float"}
	case reflect.Float64:
		return map[string]any{"type": "number", "format": "double"}
	case reflect.Slice, reflect.Array, reflect.Map:
		return s.collection(t, rest, dive, use)
	case reflect.Struct:
		return s.structure(t, use)
	}
	return map[string]any{} // an interface: anything
}

// collection returns the schema of a slice, an array or a map.
func (s *Set) collection(t reflect.Type, rest string, dive bool, use Use) map[string]any {
	if slices.Contains(s.around, t) {
		return map[string]any{} // it contains itself and has no name for a reference
	}
	s.around = append(s.around, t)
	defer func() { s.around = s.around[:len(s.around)-1] }()
	if t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8 {
		bytes := map[string]any{"type": "string", "format": "byte", "contentEncoding": "base64"}
		if use.request && !use.text { // encoding/json takes the numbers of the bytes, too
			bytes["type"], bytes["items"] = []string{"string", "array", "null"}, Nullable(s.value(t.Elem(), rest, use.unchecked()))
			return bytes
		}
		return Nullable(bytes)
	}
	keys, rest, hasKeys := check.CutKeys(rest)
	inner := use
	if !dive {
		inner = use.unchecked()
	}
	items := s.value(t.Elem(), rest, inner)
	if use.request && !use.text && (!inner.checked || check.ZeroValid(t.Elem(), t, rest, s.rules)) {
		items = Nullable(NotNull(items)) // null does not change an element: it stays zero
	}
	if t.Kind() == reflect.Map {
		m := map[string]any{"type": "object", "additionalProperties": items}
		if _, ok := integers[t.Key().Kind()]; ok && !implements(t.Key(), textMarshaler) {
			m["propertyNames"] = map[string]any{"pattern": "^-?[0-9]+$"}
		} else if hasKeys && inner.checked {
			names := map[string]any{}
			apply(names, t.Key(), keys, false, use)
			m["propertyNames"] = names
		}
		return Nullable(m)
	}
	if t.Kind() == reflect.Slice {
		return Nullable(map[string]any{"type": "array", "items": items}) // null when it is nil
	}
	if !use.request {
		return map[string]any{"type": "array", "items": items, "minItems": t.Len(), "maxItems": t.Len()}
	}
	array := map[string]any{"type": "array"} // elements may be missing, and those beyond the length are ignored
	if t.Len() > 0 && t.Len() <= maxPrefix {
		array["prefixItems"] = slices.Repeat([]any{items}, t.Len())
	}
	return array
}

// maxPrefix bounds the elements of an array that have their own schemas.
const maxPrefix = 16

var nullType = map[string]any{"type": "null"}

// Nullable adds null to a schema that says a type.
func Nullable(m map[string]any) map[string]any {
	if names, ok := m["type"].([]string); ok && !slices.Contains(names, "null") {
		m["type"] = append(names, "null")
	} else if name, ok := m["type"].(string); ok {
		m["type"] = []string{name, "null"}
		if choice, ok := m["anyOf"].([]any); ok {
			m["anyOf"] = append(choice, nullType)
		}
		if values, ok := m["enum"].([]any); ok {
			m["enum"] = append(values, nil)
		}
		return m
	}
	if _, ok := m["$ref"]; ok {
		return map[string]any{"anyOf": []any{m, nullType}}
	}
	return m
}

// NotNull removes null from a schema returned by Type or Field.
func NotNull(m map[string]any) map[string]any {
	if names, ok := m["type"].([]string); ok {
		if names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == "null" }); len(names) == 1 {
			m["type"] = names[0]
		} else {
			m["type"] = names
		}
		if values, ok := m["enum"].([]any); ok && len(values) > 0 && values[len(values)-1] == nil {
			m["enum"] = values[:len(values)-1]
		}
		if choice, ok := m["anyOf"].([]any); ok && reflect.DeepEqual(choice[len(choice)-1], nullType) {
			m["anyOf"] = choice[:len(choice)-1]
		}
	} else if choice, ok := m["anyOf"].([]any); ok {
		if ref, ok := choice[0].(map[string]any); ok && ref["$ref"] != nil {
			return ref
		}
	}
	return m
}

// structure returns a reference to the component of a struct, or the schema of an unnamed one.
func (s *Set) structure(t reflect.Type, use Use) map[string]any {
	if t.Name() == "" {
		return s.fields(t, use).JSON()
	}
	name, ok := s.names[key{t, use}]
	if !ok {
		name = s.add(t, use)
	}
	return map[string]any{"$ref": s.prefix + name}
}

// add makes the component of a struct and returns its name. It reuses an equal component of another use of the type.
func (s *Set) add(t reflect.Type, use Use) string {
	suffix := ""
	for _, other := range uses {
		if s.names[key{t, other}] != "" {
			suffix = suffixes[slices.Index(uses, use)]
		}
	}
	name := s.free(t.Name() + suffix)
	s.names[key{t, use}] = name
	s.components[name] = map[string]any{} // for a type that holds itself
	made := s.fields(t, use).JSON()
	for _, other := range uses {
		if before := s.names[key{t, other}]; other != use && before != "" && reflect.DeepEqual(s.components[before], made) {
			delete(s.components, name)
			s.names[key{t, use}] = before
			return before
		}
	}
	s.components[name] = made
	return name
}

// free returns the name of a component: that of the type, with a number if the name is taken.
func (s *Set) free(typeName string) string {
	name := strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', r == '_', r == '-', r == '.':
			return r
		}
		return '_'
	}, typeName)
	free := name
	for i := 2; s.components[free] != nil; i++ {
		free = name + strconv.Itoa(i)
	}
	return free
}

// fields returns the schema of a struct's members.
func (s *Set) fields(t reflect.Type, use Use) *Members {
	o := Object(use)
	for _, sf := range reflect.VisibleFields(t) {
		name, options, _ := strings.Cut(sf.Tag.Get("json"), ",")
		if !sf.IsExported() || Embedded(sf) || sf.Tag.Get("json") == "-" {
			continue
		}
		if name == "" {
			name = sf.Name
		}
		required := use.checked && s.required(t, sf)
		if !use.request {
			required = !omitted(options)
		}
		o.Set(name, s.field(sf, use, required), required && !throughPointer(t, sf.Index))
	}
	return o
}

// Embedded reports whether the members of an embedded struct, or pointer to a struct, are members of the outer struct.
func Embedded(sf reflect.StructField) bool {
	t := sf.Type
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	name, _, _ := strings.Cut(sf.Tag.Get("json"), ",")
	return sf.Anonymous && name == "" && t.Kind() == reflect.Struct
}

// omitted reports whether the options of a json tag can omit a member in responses.
func omitted(options string) bool {
	words := strings.Split(options, ",")
	return slices.Contains(words, "omitempty") || slices.Contains(words, "omitzero")
}

// throughPointer reports whether a field is promoted from an embedded pointer, which may be nil.
func throughPointer(t reflect.Type, index []int) bool {
	for _, i := range index[:len(index)-1] {
		if t = t.Field(i).Type; t.Kind() == reflect.Pointer {
			return true
		}
	}
	return false
}

// Members is an object in the making.
type Members struct {
	properties map[string]any
	required   []string
	strict     bool
}

// Object returns an object without members.
func Object(use Use) *Members {
	return &Members{properties: map[string]any{}, strict: use.strict}
}

// Set adds a member.
func (m *Members) Set(name string, schema map[string]any, required bool) {
	m.properties[name] = schema
	if required {
		m.required = append(m.required, name)
	}
}

// Embed adds the members of an embedded pointer's struct. None of them is required; existing names are kept.
func (m *Members) Embed(s *Set, t reflect.Type, use Use) {
	for name, schema := range s.fields(t, use).properties {
		if m.properties[name] == nil {
			m.properties[name] = schema
		}
	}
}

// JSON returns the schema.
func (m *Members) JSON() map[string]any {
	schema := map[string]any{"type": "object", "properties": m.properties}
	if len(m.required) > 0 {
		schema["required"] = m.required
	}
	if m.strict {
		schema["additionalProperties"] = false
	}
	return schema
}
