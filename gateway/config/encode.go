package config

import (
	"fmt"
	"net/netip"
	"reflect"
	"strconv"
	"strings"
	"time"

	yaml "go.yaml.in/yaml/v4"
)

// YAML returns the whole configuration in force: defaults written out, variables expanded, paths
// resolved, secrets redacted (a secret from a file shows "file:/path"). Parse accepts it under a name
// in the working directory, where relative paths start.
func (c *Config) YAML() ([]byte, error) {
	doc := &yaml.Node{Kind: yaml.DocumentNode, Content: []*yaml.Node{encodeStruct(reflect.ValueOf(*c))}}
	out, err := yaml.Dump(doc, yaml.WithIndent(2))
	if err != nil {
		return nil, fmt.Errorf("config: encode: %w", err)
	}
	return out, nil
}

// encodeStruct writes the fields that have a key, except empty ones.
func encodeStruct(v reflect.Value) *yaml.Node {
	n := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
	keys := keysIn(v.Type(), v)
	switch x := v.Interface().(type) {
	case Config:
		keys = append(keys, keysOfParts(x.parts)...)
	case Upstream:
		keys = append(keys, keysOfParts(x.parts)...)
	case Listener:
		if x.Section != nil {
			keys = append(keys, schemaKey{name: string(x.Protocol), value: reflect.ValueOf(x.Section)})
		}
	case Discover:
		keys = append(keys, schemaKey{name: x.Kind, value: reflect.ValueOf(x.Section)})
	}
	for _, k := range keys {
		if value := encodeValue(k.value, k.tag); value != nil {
			n.Content = append(n.Content, text(k.name, false), value)
		}
	}
	return n
}

// encodeValue returns nil for omitted values: empty text, lists and sections that are absent.
func encodeValue(v reflect.Value, tag reflect.StructTag) *yaml.Node {
	if isScalar(v.Type()) {
		return encodeScalar(v, tag)
	}
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return nil
		}
		return encodeStruct(v.Elem())
	case reflect.Struct:
		if e, ok := v.Interface().(Endpoint); ok && e.Weight == 1 && e.Priority == 0 && e.Zone == "" {
			return encodeScalar(reflect.ValueOf(e.Address), "")
		}
		return encodeStruct(v)
	}
	if v.Len() == 0 {
		if v.Kind() == reflect.Slice && !v.IsNil() && tag.Get("key") == "" { // an empty list that was written is not the default
			return &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq", Style: yaml.FlowStyle}
		}
		return nil
	}
	if tag.Get("single") != "" && v.Len() == 1 {
		return encodeScalar(v.Index(0), "")
	}
	if key := tag.Get("key"); key != "" {
		return encodeNamed(v, key, tag.Get("scalar"))
	}
	n := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
	for i := range v.Len() {
		if item := encodeValue(v.Index(i), ""); item != nil {
			n.Content = append(n.Content, item)
		}
	}
	return n
}

// encodeNamed writes a list as a mapping; short is the field that represents an item without other fields.
func encodeNamed(v reflect.Value, key, short string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
	for i := range v.Len() {
		item := v.Index(i)
		value := encodeStruct(item)
		if f, ok := item.Type().FieldByName(short); ok && len(value.Content) == 2 && value.Content[0].Value == f.Tag.Get("conf") {
			value = encodeScalar(item.FieldByName(short), "")
		}
		n.Content = append(n.Content, text(item.FieldByName(key).String(), true), value)
	}
	return n
}

func encodeScalar(v reflect.Value, tag reflect.StructTag) *yaml.Node {
	switch x := v.Interface().(type) {
	case Secret:
		switch {
		case x.IsZero():
			return nil
		case x.from != "":
			return text(escape(x.from), true)
		}
		return text(redacted, true)
	case netip.Prefix:
		return text(x.String(), false)
	case time.Duration:
		if never, err := time.ParseDuration(tag.Get("never")); err == nil && x == never {
			return text("never", false)
		}
		return text(x.String(), false)
	case bool:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!bool", Value: strconv.FormatBool(x)}
	case int:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!int", Value: strconv.Itoa(x)}
	}
	if v.String() == "" {
		return nil
	}
	return text(escape(v.String()), true)
}

// escape keeps Parse from expanding text a second time.
func escape(s string) string { return strings.ReplaceAll(s, "${", "$${") }

// text returns a string node, quoted if the text is the user's and could be read as something else.
func text(s string, quoted bool) *yaml.Node {
	n := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: s}
	if quoted {
		n.Style = yaml.DoubleQuotedStyle
	}
	return n
}
