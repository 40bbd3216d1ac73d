package schema

import (
	"encoding/json"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headpond/headpond/route/internal/check"
)

// Required reports whether a request without a field of the request type t is refused: the field has no default, and
// its rules, or those of the fields within it, refuse its zero value.
func Required(t reflect.Type, sf reflect.StructField, rules map[string]check.Rule) bool {
	if _, ok := sf.Tag.Lookup("default"); ok {
		return false
	}
	return (&Set{rules: rules}).required(t, sf)
}

// required is Required for a field that does not belong directly to the request type: defaults have
// no effect there.
func (s *Set) required(t reflect.Type, sf reflect.StructField) bool {
	for _, i := range sf.Index[:len(sf.Index)-1] {
		if t = t.Field(i).Type; t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
	}
	return !check.Ignored(sf) && !check.ZeroValid(sf.Type, t, check.Tag(sf), s.rules)
}

// Field returns the schema of a field of the request type t, from its type, rules, tags and default.
func (s *Set) Field(t reflect.Type, sf reflect.StructField, use Use) map[string]any {
	schema := s.field(sf, use, Required(t, sf, s.rules))
	if text, ok := sf.Tag.Lookup("default"); ok {
		schema["default"] = literal(sf.Type, text, use)
	}
	return schema
}

// field is Field without the default.
func (s *Set) field(sf reflect.StructField, use Use, required bool) map[string]any {
	schema := s.value(sf.Type, check.Tag(sf), use)
	_, options, _ := strings.Cut(sf.Tag.Get("json"), ",")
	if slices.Contains(strings.Split(options, ","), "string") && !use.text {
		schema = quoted(sf.Type)
	}
	switch {
	case !use.request && omitted(options):
		schema = NotNull(schema)
	case use.request:
		if schema = NotNull(schema); !use.text && !required {
			schema = Nullable(schema) // null does not change a field
		}
	}
	return described(schema, sf, use)
}

// quoted returns the schema of a value whose json tag has the option string.
func quoted(t reflect.Type) map[string]any {
	schema := map[string]any{"type": "string"}
	if format, ok := integers[t.Kind()]; ok {
		schema["format"], schema["pattern"] = format, "^-?[0-9]+$"
	}
	return schema
}

// described adds the texts of the tags doc and example.
func described(schema map[string]any, sf reflect.StructField, use Use) map[string]any {
	if text := sf.Tag.Get("doc"); text != "" {
		schema["description"] = text
	}
	if text, ok := sf.Tag.Lookup("example"); ok {
		schema["examples"] = []any{literal(sf.Type, text, use)}
	}
	return schema
}

// apply adds rules to the schema of a value of type t or a pointer to it.
func apply(at map[string]any, t reflect.Type, rules string, pointer bool, use Use) {
	zero := any(nil)
	for word := range strings.SplitSeq(rules, ",") {
		if word == "required" && pointer {
			continue // its target may be zero
		}
		if strings.Contains(word, "|") {
			continue // alternatives, which no keyword says
		}
		if zero == nil && !pointer && (word == "omitempty" || word == "omitzero") {
			zero = zeroOf(t)
		}
		rule(at, t, word, use)
	}
	if zero != nil {
		unlessZero(at, zero)
	}
}

// cutDive cuts a tag at its first dive.
func cutDive(tag string) (rules, rest string, dive bool) {
	if rest, ok := strings.CutPrefix(tag+",", "dive,"); ok {
		return "", strings.TrimSuffix(rest, ","), true
	}
	rules, rest, dive = strings.Cut(tag+",", ",dive,")
	return strings.TrimSuffix(rules, ","), strings.TrimSuffix(rest, ","), dive
}

// zeroOf returns the zero value of a type for which JSON has a constant, nil for other types.
func zeroOf(t reflect.Type) any {
	switch t.Kind() {
	case reflect.String:
		return ""
	case reflect.Bool:
		return false
	case reflect.Float32, reflect.Float64:
		return 0
	}
	if _, ok := integers[t.Kind()]; ok {
		return 0
	}
	return nil
}

// unlessZero changes a schema so that its rules apply only to values other than zero.
func unlessZero(at map[string]any, zero any) {
	rules := map[string]any{}
	for _, key := range ruleKeys {
		if value, ok := at[key]; ok && (key != "format" || zero == "") && key != "maximum" && key != "maxLength" {
			rules[key] = value
			delete(at, key)
		}
	}
	if len(rules) > 0 {
		at["anyOf"] = []any{rules, map[string]any{"const": zero}}
	}
}

// ruleKeys are the keys that rule sets for scalars, except those that zero satisfies.
var ruleKeys = []string{"minLength", "format", "minimum", "exclusiveMinimum", "exclusiveMaximum", "pattern", "enum", "not", "const"}

// literal is the JSON value of a text for a type.
func literal(t reflect.Type, text string, use Use) any {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if d, err := time.ParseDuration(text); err == nil && t == reflect.TypeFor[time.Duration]() && !use.text {
		return d.Nanoseconds()
	}
	switch t.Kind() {
	case reflect.String:
	case reflect.Struct:
		if t == timeType {
			return text
		}
		fallthrough
	default:
		if !implements(t, textMarshaler) && json.Valid([]byte(text)) {
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

// bounds are the keywords for the minimum and maximum of a kind, inclusive and exclusive.
func bounds(t reflect.Type) (least, most, above, below string) {
	switch t.Kind() {
	case reflect.String:
		return "minLength", "maxLength", "", ""
	case reflect.Slice, reflect.Array:
		return "minItems", "maxItems", "", ""
	case reflect.Map:
		return "minProperties", "maxProperties", "", ""
	}
	return "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"
}

// rule adds the constraints of a rule to the schema of a value of type t.
func rule(at map[string]any, t reflect.Type, word string, use Use) {
	name, param, _ := strings.Cut(word, "=")
	param = check.Unescape(param)
	if f, ok := formats[name]; ok && t.Kind() == reflect.String {
		at["format"] = f
	}
	if p, ok := patterns[name]; ok && t.Kind() == reflect.String {
		at["pattern"] = p
	}
	least, most, above, below := bounds(t)
	set := func(key string, more int64) {
		if use.text && t == reflect.TypeFor[time.Duration]() {
			return // no rule of a text says it
		}
		if n, err := strconv.ParseInt(param, 0, 64); err == nil {
			at[key] = n + more
		} else if d, err := time.ParseDuration(param); err == nil && t == reflect.TypeFor[time.Duration]() {
			at[key] = d.Nanoseconds()
		} else if _, err := strconv.ParseFloat(param, 64); err == nil && json.Valid([]byte(param)) {
			at[key] = json.RawMessage(param)
		}
	}
	switch name {
	case "required":
		present(at, t)
	case "min", "gte":
		set(least, 0)
	case "max", "lte":
		set(most, 0)
	case "gt":
		if above == "" {
			set(least, 1)
		} else {
			set(above, 0)
		}
	case "lt":
		if below == "" {
			set(most, -1)
		} else {
			set(below, 0)
		}
	case "eq":
		if zeroOf(t) != nil {
			at["const"] = literal(t, param, use)
		}
	case "ne":
		if zeroOf(t) != nil {
			at["not"] = map[string]any{"const": literal(t, param, use)}
		}
	case "len":
		set(least, 0)
		set(most, 0)
	case "unique":
		at["uniqueItems"] = true
	case "oneof":
		var values []any
		for w := range strings.FieldsSeq(param) {
			values = append(values, literal(t, strings.Trim(w, "'"), use))
		}
		if !strings.Contains(param, "'") {
			at["enum"] = values
		}
	}
}

// present adds the rule required: a value that is not zero.
func present(at map[string]any, t reflect.Type) {
	if t.Kind() == reflect.Interface {
		at["not"] = nullType
		return
	}
	switch zero := zeroOf(t); zero {
	case "":
		if at["minLength"] == nil {
			at["minLength"] = 1
		}
	case false:
		at["const"] = true
	case 0:
		at["not"] = map[string]any{"const": 0}
	}
}
