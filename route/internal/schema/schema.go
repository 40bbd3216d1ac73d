// Package schema describes Go types by JSON Schema 2020-12, as OpenAPI 3.1 uses it: what encoding/json
// makes of them, and what their validate tags ask.
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

// Set is the schemas of a document. Structs with a name are components, referred to by it.
type Set struct {
	prefix     string // of references
	names      map[reflect.Type]string
	components map[string]any
	around     []reflect.Type // lists and maps of which the schema is being made
}

// New returns an empty set whose components are at prefix.
func New(prefix string) *Set {
	return &Set{prefix: prefix, names: map[reflect.Type]string{}, components: map[string]any{}}
}

// Components returns the schemas by name.
func (s *Set) Components() map[string]any { return s.components }

var (
	jsonMarshaler = reflect.TypeFor[json.Marshaler]()
	textMarshaler = reflect.TypeFor[encoding.TextMarshaler]()
	timeType      = reflect.TypeFor[time.Time]()
)

func implements(t, i reflect.Type) bool { return t.Implements(i) || reflect.PointerTo(t).Implements(i) }

// Type returns the schema of a type.
func (s *Set) Type(t reflect.Type) map[string]any {
	switch {
	case t == timeType:
		return map[string]any{"type": "string", "format": "date-time"}
	case t == reflect.TypeFor[json.Number]():
		return map[string]any{"type": "number"}
	case t.Kind() == reflect.Pointer:
		return nullable(s.Type(t.Elem()))
	case implements(t, jsonMarshaler):
		return map[string]any{}
	case implements(t, textMarshaler):
		return map[string]any{"type": "string"}
	}
	if slices.Contains(s.around, t) {
		return map[string]any{} // it holds itself, and has no name to refer to
	}
	switch t.Kind() {
	case reflect.Slice, reflect.Array, reflect.Map:
		s.around = append(s.around, t)
		defer func() { s.around = s.around[:len(s.around)-1] }()
	}
	switch t.Kind() {
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Int64, reflect.Int:
		return map[string]any{"type": "integer", "format": "int64"}
	case reflect.Int8, reflect.Int16, reflect.Int32:
		return map[string]any{"type": "integer", "format": "int32"}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		return map[string]any{"type": "integer", "minimum": 0}
	case reflect.Float32:
		return map[string]any{"type": "number", "format": "float"}
	case reflect.Float64:
		return map[string]any{"type": "number", "format": "double"}
	case reflect.Slice, reflect.Array:
		if t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8 {
			return nullable(map[string]any{"type": "string", "contentEncoding": "base64"})
		}
		array := map[string]any{"type": "array", "items": s.Type(t.Elem())}
		if t.Kind() == reflect.Slice {
			return nullable(array) // it is null when it is nil
		}
		return array
	case reflect.Map:
		return nullable(map[string]any{"type": "object", "additionalProperties": s.Type(t.Elem())})
	case reflect.Struct:
		return s.structure(t)
	}
	return map[string]any{} // an interface: anything
}

// nullable adds null to a schema.
func nullable(m map[string]any) map[string]any {
	if name, ok := m["type"].(string); ok {
		m["type"] = []string{name, "null"}
		return m
	}
	if len(m) == 0 {
		return m
	}
	return map[string]any{"anyOf": []any{m, map[string]any{"type": "null"}}}
}

// NotNull takes null from a schema that Type or Field has returned.
func NotNull(m map[string]any) map[string]any {
	if names, ok := m["type"].([]string); ok {
		m["type"] = names[0]
	} else if choice, ok := m["anyOf"].([]any); ok {
		return choice[0].(map[string]any)
	}
	return m
}

// structure returns a reference to the component of a struct, or the schema of one without a name.
func (s *Set) structure(t reflect.Type) map[string]any {
	if t.Name() == "" {
		return s.fields(t).JSON()
	}
	name, ok := s.names[t]
	if !ok {
		name = s.name(t)
		s.names[t] = name
		s.components[name] = map[string]any{} // for a type that holds itself
		s.components[name] = s.fields(t).JSON()
	}
	return map[string]any{"$ref": s.prefix + name}
}

// name makes the name of a component: the type's, with a number when it is taken.
func (s *Set) name(t reflect.Type) string {
	name := strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', r == '_', r == '-', r == '.':
			return r
		}
		return '_'
	}, t.Name())
	free := name
	for i := 2; s.components[free] != nil; i++ {
		free = name + strconv.Itoa(i)
	}
	return free
}

// fields returns the schema of a struct's members.
func (s *Set) fields(t reflect.Type) *Members {
	o := Object()
	for _, sf := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(sf.Tag.Get("json"), ",")
		embedded := sf.Anonymous && name == "" && sf.Type.Kind() == reflect.Struct
		if !sf.IsExported() || embedded || sf.Tag.Get("json") == "-" {
			continue
		}
		if name == "" {
			name = sf.Name
		}
		o.Set(name, s.Field(sf), Required(sf))
	}
	return o
}

// Members is an object in the making.
type Members struct {
	properties map[string]any
	required   []string
}

// Object returns an object without members.
func Object() *Members { return &Members{properties: map[string]any{}} }

// Set adds a member.
func (m *Members) Set(name string, schema map[string]any, required bool) {
	m.properties[name] = schema
	if required {
		m.required = append(m.required, name)
	}
}

// JSON returns the schema.
func (m *Members) JSON() map[string]any {
	schema := map[string]any{"type": "object", "properties": m.properties}
	if len(m.required) > 0 {
		schema["required"] = m.required
	}
	return schema
}

// Required reports whether a field's rules want it to be set, or those of a field within, when it is a struct.
func Required(sf reflect.StructField) bool {
	for word := range strings.SplitSeq(check.Tag(sf), ",") {
		switch word {
		case "required":
			return true
		case "dive", "omitempty", "omitnil", "omitzero":
			return false
		}
	}
	if t := sf.Type; t.Kind() == reflect.Struct && !t.ConvertibleTo(timeType) && sf.Tag.Get("validate") != "-" && sf.Tag.Get("binding") != "-" {
		for i := range t.NumField() {
			if f := t.Field(i); (f.IsExported() || f.Anonymous) && Required(f) {
				return true
			}
		}
	}
	return false
}

// Field returns the schema of a field: that of its type, with its rules and its default.
func (s *Set) Field(sf reflect.StructField) map[string]any {
	schema := s.Type(sf.Type)
	if _, options, _ := strings.Cut(sf.Tag.Get("json"), ","); slices.Contains(strings.Split(options, ","), "string") {
		schema = map[string]any{"type": "string"}
	}
	if Required(sf) {
		schema = NotNull(schema)
	}
	if text, ok := sf.Tag.Lookup("default"); ok {
		schema["default"] = literal(sf.Type, text)
	}
	at, t := schema, sf.Type
	for word := range strings.SplitSeq(check.Tag(sf), ",") {
		for t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		if word == "dive" {
			next, ok := at["items"].(map[string]any)
			if !ok {
				next, ok = at["additionalProperties"].(map[string]any)
			}
			if !ok {
				break
			}
			at, t = next, t.Elem()
			continue
		}
		if _, ref := at["$ref"]; !ref {
			rule(at, t, word)
		}
	}
	return schema
}

// literal is the JSON value of a text for a type.
func literal(t reflect.Type, text string) any {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if d, err := time.ParseDuration(text); err == nil && t == reflect.TypeFor[time.Duration]() {
		return d.Nanoseconds()
	}
	switch t.Kind() {
	case reflect.Bool, reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Float32, reflect.Float64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		if json.Valid([]byte(text)) {
			return json.RawMessage(text)
		}
	}
	return text
}

// formats are the rules that JSON Schema has a format for.
var formats = map[string]string{
	"email": "email", "url": "uri", "uri": "uri-reference", "http_url": "uri", "uuid": "uuid", "uuid3": "uuid", "uuid4": "uuid", "uuid5": "uuid",
	"ipv4": "ipv4", "ipv6": "ipv6", "hostname_rfc1123": "hostname",
}

// patterns are the rules that are a regular expression.
var patterns = map[string]string{
	"alpha": "^[a-zA-Z]+$", "alphanum": "^[a-zA-Z0-9]+$", "number": "^[0-9]+$", "numeric": `^[-+]?[0-9]+(\.[0-9]+)?$`, "hexadecimal": "^(0[xX])?[0-9a-fA-F]+$",
	"e164": `^\+?[1-9][0-9]{7,14}$`,
}

// rule adds what a rule asks to the schema of a value of type t.
func rule(at map[string]any, t reflect.Type, word string) {
	name, param, _ := strings.Cut(word, "=")
	if f, ok := formats[name]; ok && t.Kind() == reflect.String {
		at["format"] = f
	}
	if p, ok := patterns[name]; ok && t.Kind() == reflect.String {
		at["pattern"] = p
	}
	least, most, above, below := "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"
	switch t.Kind() {
	case reflect.String:
		least, most, above, below = "minLength", "maxLength", "", ""
	case reflect.Slice, reflect.Array:
		least, most, above, below = "minItems", "maxItems", "", ""
	case reflect.Map:
		least, most, above, below = "minProperties", "maxProperties", "", ""
	}
	n := json.RawMessage(param)
	if !json.Valid(n) {
		n = nil
	}
	set := func(key string) {
		if key != "" && n != nil {
			at[key] = n
		}
	}
	switch name {
	case "min", "gte":
		set(least)
	case "max", "lte":
		set(most)
	case "gt":
		set(above)
	case "lt":
		set(below)
	case "len":
		set(least)
		set(most)
	case "unique":
		at["uniqueItems"] = true
	case "oneof":
		var values []any
		for w := range strings.FieldsSeq(param) {
			values = append(values, literal(t, strings.Trim(w, "'")))
		}
		if !strings.Contains(param, "'") {
			at["enum"] = values
		}
	}
}
