package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	yaml "go.yaml.in/yaml/v4"
)

// maxValues bounds how many values one file may have after its aliases are followed.
const maxValues = 100_000

// decoder walks YAML nodes and the schema side by side and keeps every problem it meets.
type decoder struct {
	file, dir string
	lookup    func(string) (string, bool) // the environment
	problems  Problems
	marks     map[any]Position // by address of the field that was written
	scope     string           // `upstream "pg"` while inside it
	visited   int
	root      Position            // where the document begins
	slots     map[any][]schemaKey // see sections
	noted     *[]string           // for FilesOf: takes the names of files, which are not read then
}

// report adds a problem at pos.
func (d *decoder) report(pos Position, format string, args ...any) {
	pos.File = d.file
	d.problems = append(d.problems, Problem{Position: pos, Scope: d.scope, Message: fmt.Sprintf(format, args...)})
}

// warn adds a warning at pos.
func (d *decoder) warn(pos Position, format string, args ...any) {
	d.report(pos, format, args...)
	d.problems[len(d.problems)-1].Warning = true
}

func at(n *yaml.Node) Position { return Position{Line: n.Line, Column: n.Column} }

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// decode fills cfg from the document's root.
func (d *decoder) decode(root *yaml.Node, cfg *Config) {
	d.object(root, reflect.ValueOf(cfg).Elem(), "the file")
}

// follow resolves aliases and counts visits; nil means that the file has too many values (Parse reports it).
func (d *decoder) follow(n *yaml.Node) *yaml.Node {
	for hops := 0; n.Kind == yaml.AliasNode && n.Alias != nil && hops < 8; hops++ {
		n = n.Alias
	}
	d.visited++
	if d.visited > maxValues || n.Kind == yaml.AliasNode {
		return nil
	}
	return n
}

// value decodes one node into one field; key is the field's name in the file.
func (d *decoder) value(n *yaml.Node, v reflect.Value, key string, tag reflect.StructTag) {
	if n = d.follow(n); n == nil {
		return
	}
	d.marks[v.Addr().Interface()] = at(n)
	if tag := n.ShortTag(); !strings.HasPrefix(tag, "!!") || tag == "!!binary" {
		d.report(at(n), "%s: the tag %q has no meaning here", key, clip(tag))
		return
	}
	if isNull(n) {
		d.report(at(n), "%s: has no value; give it one or leave the key out", key)
		return
	}
	switch {
	case isScalar(v.Type()):
		d.scalar(n, v, key, tag)
	case v.Kind() == reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		if !d.short(n, v.Elem(), key, tag) {
			d.object(n, v.Elem(), key)
		}
	case v.Kind() == reflect.Struct && d.short(n, v, key, tag):
	case v.Kind() == reflect.Struct:
		d.object(n, v, key)
	case tag.Get("key") != "":
		d.named(n, v, key, tag)
	default:
		d.list(n, v, key, tag)
	}
}

// short decodes a plain value in place of a struct, into the field with the scalar tag, and reports whether there was a
// plain value.
func (d *decoder) short(n *yaml.Node, v reflect.Value, key string, tag reflect.StructTag) bool {
	f, ok := v.Type().FieldByName(tag.Get("scalar"))
	if ok = ok && (n.Kind == yaml.ScalarNode || isBracketed(n)); ok {
		d.value(n, v.FieldByIndex(f.Index), key, f.Tag)
	}
	return ok
}

// entry is one key of a mapping, merge keys resolved.
type entry struct{ key, value *yaml.Node }

// entries returns a mapping's keys in the order of the file, reports duplicates and keys that are not text, and follows "<<".
func (d *decoder) entries(n *yaml.Node) []entry {
	var own, merged []entry
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		switch {
		case key.Kind != yaml.ScalarNode:
			d.report(at(key), "a key must be plain text")
		case d.repeats(seen, key):
		case key.ShortTag() == "!!merge":
			merged = d.mergeEntries(value)
		default:
			own = append(own, entry{key, value})
		}
	}
	for _, m := range merged {
		if seen[m.key.Value] == 0 {
			seen[m.key.Value] = m.key.Line
			own = append(own, m)
		}
	}
	return own
}

// repeats reports a key that the mapping has already, and records it otherwise. seen has the lines of
// the mapping's keys.
func (d *decoder) repeats(seen map[string]int, key *yaml.Node) bool {
	if line := seen[key.Value]; line != 0 {
		d.report(at(key), "duplicate key %q; it is already at line %d", clip(key.Value), line)
		return true
	}
	seen[key.Value] = key.Line
	return false
}

// mergeEntries returns the entries that "<<" merges: those of a mapping or of a list of mappings, where earlier
// mappings win. Merges do not nest.
func (d *decoder) mergeEntries(value *yaml.Node) []entry {
	n := d.follow(value)
	if n == nil {
		return nil
	}
	sources := []*yaml.Node{n}
	if n.Kind == yaml.SequenceNode {
		sources = n.Content
	}
	var out []entry
	for _, s := range sources {
		m := d.follow(s)
		if m == nil {
			return out
		}
		if m.Kind != yaml.MappingNode {
			d.report(at(m), "\"<<\" merges mappings only, such as \"<<: *name\"")
			continue
		}
		seen := map[string]int{}
		for i := 0; i+1 < len(m.Content); i += 2 {
			switch k := m.Content[i]; {
			case k.Kind != yaml.ScalarNode || k.ShortTag() == "!!merge":
				d.report(at(k), "a merged mapping cannot itself hold \"<<\" or keys that are not text")
			case !d.repeats(seen, k):
				out = append(out, entry{k, m.Content[i+1]})
			}
		}
	}
	return out
}

// object decodes a mapping into a struct.
func (d *decoder) object(n *yaml.Node, v reflect.Value, key string) {
	if n.Kind != yaml.MappingNode {
		d.report(at(n), "%s: want keys and values (%s), got %s", key, strings.Join(firstKeys(v.Type()), ", "), describe(n))
		return
	}
	fields := d.fields(v)
	written := map[string]bool{}
	for _, e := range d.entries(n) {
		i := slices.IndexFunc(fields, func(k schemaKey) bool { return k.name == e.key.Value })
		if i < 0 {
			d.unknownKey(e.key, v.Type())
			continue
		}
		written[e.key.Value] = true
		d.value(e.value, fields[i].value, e.key.Value, fields[i].tag)
	}
	for _, k := range fields {
		if k.tag.Get("required") == "true" && !written[k.name] {
			d.report(at(n), "%q is missing", k.name)
		}
	}
}

// unknownKey reports a key that the schema does not have here, with the most similar known key or the section it
// belongs to.
func (d *decoder) unknownKey(key *yaml.Node, t reflect.Type) {
	name, value, glued := strings.Cut(key.Value, ":") // the text after the colon may be a password
	if t == reflect.TypeFor[Config]() && strings.HasPrefix(name, "x-") {
		return
	}
	if glued && keysOf(t)[name] {
		d.report(at(key), "want a space after \"%s:\"", name)
		return
	}
	hint := didYouMean(name, sortedKeys(t))
	sections := sectionsWith(name)
	if other := otherNumber(name, sortedKeys(t)); other != "" {
		hint = `; did you mean "` + other + `"?`
	} else if len(sections) > 0 {
		hint = "; it belongs in " + strings.Join(sections, " or ")
	}
	if hint == "" {
		hint = "; known here: " + strings.Join(sortedKeys(t), ", ")
	}
	if name = withoutPassword(name); glued && value != "" {
		name = clip(name) + ":…"
	}
	d.report(at(key), "unknown key %q%s", clip(name), hint)
}

// list decodes a sequence.
func (d *decoder) list(n *yaml.Node, v reflect.Value, key string, tag reflect.StructTag) {
	if tag.Get("single") != "" && n.Kind != yaml.SequenceNode { // one value needs no list
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		d.value(n, v.Index(0), key, tag)
		return
	}
	if n.Kind != yaml.SequenceNode {
		hint := ""
		if n.Kind == yaml.ScalarNode {
			hint = "; put brackets around it"
		}
		d.report(at(n), "%s: want a list such as [a, b], got %s%s", key, describe(n), hint)
		return
	}
	d.checkLength(n, len(n.Content), key, tag)
	v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content))) // an empty list is not nil, as one that is not there
	for i, item := range n.Content {
		restore := d.enter(tag.Get("scope"), scopeName(item), i)
		d.value(item, v.Index(i), key, tag)
		restore()
	}
}

// named decodes a mapping into a list of structs, each with its key in the field that the key tag names.
func (d *decoder) named(n *yaml.Node, v reflect.Value, key string, tag reflect.StructTag) {
	if tag.Get("names") != "" && n.Kind == yaml.SequenceNode {
		d.names(n, v, key, tag)
		return
	}
	if n.Kind != yaml.MappingNode {
		d.report(at(n), "%s: want names with their settings, got %s", key, describe(n))
		return
	}
	all := d.entries(n)
	if d.checkLength(n, len(all), key, tag); len(all) == 0 {
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), len(all), len(all)))
	for i, e := range all {
		item := v.Index(i)
		name := item.FieldByName(tag.Get("key"))
		name.SetString(e.key.Value)
		d.marks[name.Addr().Interface()] = at(e.key)
		restore := d.enter(tag.Get("scope"), e.key.Value, i)
		if short := tag.Get("scalar"); short != "" && e.value.Kind == yaml.ScalarNode {
			f, _ := item.Type().FieldByName(short)
			d.value(e.value, item.FieldByName(short), fmt.Sprintf("%s %q", key, clip(e.key.Value)), f.Tag)
		} else {
			d.value(e.value, item, fmt.Sprintf("%s %q", key, clip(e.key.Value)), "")
		}
		restore()
	}
}

// names decodes a list of names in place of a mapping of names to settings: no name has settings.
func (d *decoder) names(n *yaml.Node, v reflect.Value, key string, tag reflect.StructTag) {
	if d.checkLength(n, len(n.Content), key, tag); len(n.Content) == 0 {
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
	for i, item := range n.Content {
		d.value(item, v.Index(i).FieldByName(tag.Get("key")), key, "")
	}
}

// checkLength reports a list that is too long or empty. A list that is too long is still decoded, within maxValues:
// references to its entries must not be reported as unknown.
func (d *decoder) checkLength(n *yaml.Node, length int, key string, tag reflect.StructTag) {
	var limit int
	_, _ = fmt.Sscan(tag.Get("maxlen"), &limit)
	switch {
	case length == 0 && tag.Get("required") != "":
		d.report(at(n), "%s: is empty; at least one is needed", key)
	case limit > 0 && length > limit:
		d.report(at(n), "%s: has %d entries; at most %d are possible", key, length, limit)
	}
}

// enter sets the scope to a named object of the kind, and returns a function that restores it.
func (d *decoder) enter(kind, name string, index int) func() {
	before := d.scope
	switch {
	case kind == "":
	case name == "":
		d.scope = fmt.Sprintf("%s %d", kind, index+1)
	default:
		d.scope = fmt.Sprintf("%s %q", kind, clip(name))
	}
	return func() { d.scope = before }
}

// scopeName returns the plain "name" of a mapping that is not decoded yet.
func scopeName(n *yaml.Node) string {
	for n.Kind == yaml.AliasNode && n.Alias != nil && n.Alias.Kind != yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind == yaml.MappingNode {
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == "name" && n.Content[i+1].Kind == yaml.ScalarNode {
				return n.Content[i+1].Value
			}
		}
	}
	return ""
}

// describe names the kind of value of a node, without quoting it: it may be a secret in the wrong
// place.
func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "keys and values"
	case yaml.SequenceNode:
		return "a list"
	}
	return "a single value"
}

// clip shortens text that is quoted in a message.
func clip(s string) string {
	const most = 80
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}

// withoutPassword removes from text that is quoted in a message everything before an "@" (user and password of a URL),
// and the value of "password=".
func withoutPassword(s string) string {
	if at := strings.LastIndexByte(s, '@'); at >= 0 {
		begin := 0
		if scheme := strings.Index(s, "://"); scheme >= 0 && scheme < at {
			begin = scheme + len("://")
		}
		s = s[:begin] + "…" + s[at:]
	}
	if i := strings.Index(strings.ToLower(s), "password="); i >= 0 && i+len("password=") <= len(s) {
		s = s[:i+len("password=")] + "…"
	}
	return s
}
