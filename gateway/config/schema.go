package config

import (
	"fmt"
	"reflect"
	"slices"
)

// schemaKey is one key that a mapping of the file may have.
type schemaKey struct {
	name  string
	typ   reflect.Type
	tag   reflect.StructTag
	value reflect.Value // the field; invalid where only the type matters
}

// keysIn returns the keys of a struct's fields, or those of a type if v is invalid.
func keysIn(t reflect.Type, v reflect.Value) []schemaKey {
	keys := make([]schemaKey, 0, t.NumField())
	for i := range t.NumField() {
		f := t.Field(i)
		if name := f.Tag.Get("conf"); name != "" && name != "-" {
			k := schemaKey{name: name, typ: f.Type, tag: f.Tag}
			if v.IsValid() {
				k.value = v.Field(i)
			}
			keys = append(keys, k)
		}
	}
	return keys
}

// schemaOf returns every key of a mapping that is read into a t: the keys of its fields, and those that extensions and
// protocols add.
func schemaOf(t reflect.Type) []schemaKey {
	keys := keysIn(t, reflect.Value{})
	for _, part := range partTypes(t) {
		keys = append(keys, keysIn(part, reflect.Value{})...)
	}
	return append(keys, sectionsOf(t)...)
}

// fields is schemaOf for a struct that is being read: with the fields, which it makes where there are none yet.
func (d *decoder) fields(v reflect.Value) []schemaKey {
	keys := keysIn(v.Type(), v)
	switch x := v.Addr().Interface().(type) {
	case *Config:
		x.parts = withParts(x.parts, v.Type())
		return append(keys, keysOfParts(x.parts)...)
	case *Upstream:
		x.parts = withParts(x.parts, v.Type())
		return append(keys, keysOfParts(x.parts)...)
	case *Listener, *Discover:
		return append(keys, d.sections(x)...)
	}
	return keys
}

// withParts returns parts, made if there are none.
func withParts(parts []any, owner reflect.Type) []any {
	if parts == nil {
		for _, t := range partTypes(owner) {
			parts = append(parts, reflect.New(t).Interface())
		}
	}
	return parts
}

func keysOfParts(parts []any) (keys []schemaKey) {
	for _, part := range parts {
		v := reflect.ValueOf(part).Elem()
		keys = append(keys, keysIn(v.Type(), v)...)
	}
	return keys
}

// sectionsOf returns the keys that protocols add to listeners, and kinds of sources to "discover".
func sectionsOf(t reflect.Type) (keys []schemaKey) {
	switch t {
	case reflect.TypeFor[Listener]():
		for _, p := range protocols {
			keys = append(keys, schemaKey{name: string(p.Name), typ: reflect.TypeOf(p.Section)})
		}
	case reflect.TypeFor[Discover]():
		for _, k := range sources {
			keys = append(keys, schemaKey{name: k.Name, typ: reflect.TypeOf(k.Section), tag: k.tag()})
		}
	}
	return keys
}

// sections returns the keys of a *Listener or *Discover for the settings of each protocol or kind. One
// of these settings becomes its Section, see fillDefaults.
func (d *decoder) sections(owner any) []schemaKey {
	keys := d.slots[owner]
	if keys == nil {
		for _, k := range sectionsOf(reflect.TypeOf(owner).Elem()) {
			k.value = reflect.New(k.typ).Elem()
			keys = append(keys, k)
		}
		d.slots[owner] = keys
	}
	return keys
}

// Schema returns the fields behind every key of a mapping that is read into a t, including those of extensions and
// protocols.
func Schema(t reflect.Type) []reflect.StructField {
	var fields []reflect.StructField
	for _, k := range schemaOf(t) {
		if k.tag == "" {
			k.tag = reflect.StructTag(fmt.Sprintf("conf:%q", k.name))
		}
		fields = append(fields, reflect.StructField{Name: k.name, Type: k.typ, Tag: k.tag})
	}
	return fields
}

// keysOf is the set of the keys of a mapping that is read into a t.
func keysOf(t reflect.Type) map[string]bool {
	keys := map[string]bool{}
	for _, k := range schemaOf(t) {
		keys[k.name] = true
	}
	return keys
}

func sortedKeys(t reflect.Type) []string {
	var keys []string
	for _, k := range schemaOf(t) {
		keys = append(keys, k.name)
	}
	slices.Sort(keys)
	return keys
}

// firstKeys gives a few keys of t as an example.
func firstKeys(t reflect.Type) []string {
	var keys []string
	for _, k := range schemaOf(t) {
		if len(keys) < 3 {
			keys = append(keys, k.name+": …")
		}
	}
	return keys
}

// sectionsWith returns the sections of the file that know key, for instance `"pool" of an upstream`.
func sectionsWith(name string) []string {
	var out []string
	for _, top := range schemaOf(reflect.TypeFor[Config]()) {
		scope := top.tag.Get("scope")
		if scope == "" {
			continue
		}
		owner := article(scope)
		if keysOf(top.typ.Elem())[name] {
			out = append(out, owner)
		}
		for _, k := range schemaOf(top.typ.Elem()) {
			t := k.typ
			if t.Kind() == reflect.Pointer {
				t = t.Elem()
			}
			if t.Kind() != reflect.Struct || isScalar(t) {
				continue
			}
			section := fmt.Sprintf("%q of %s", k.name, owner)
			if keysOf(t)[name] {
				out = append(out, section)
			}
			for _, list := range schemaOf(t) { // the routes of http
				if list.typ.Kind() == reflect.Slice && list.typ.Elem().Kind() == reflect.Struct && keysOf(list.typ.Elem())[name] {
					out = append(out, fmt.Sprintf("%q in %s", list.name, section))
				}
			}
		}
	}
	return out
}

// article puts "a" or "an" before a noun.
func article(noun string) string {
	if slices.Contains([]byte("aeiou"), noun[0]) {
		return "an " + noun
	}
	return "a " + noun
}
