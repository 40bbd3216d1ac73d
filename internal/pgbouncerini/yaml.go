package pgbouncerini

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// mapping is a part of the configuration that is written, with comments. Package config writes none.
type mapping struct{ fields []field }

type field struct {
	key, value, comment string
	above               []string   // lines of a comment before it
	sub                 *mapping   // instead of a value
	items               []*mapping // instead of a value: a list
}

// put adds a value, which is written as it is: quote it if it is the user's.
func (m *mapping) put(key, value, comment string) {
	m.fields = append(m.fields, field{key: key, value: value, comment: comment})
}

// in returns the mapping below a key, which it adds.
func (m *mapping) in(key string) *mapping {
	sub := &mapping{}
	m.fields = append(m.fields, field{key: key, sub: sub})
	return sub
}

// add adds an item to the list below a key, which is the last one.
func (m *mapping) add(key string) *mapping {
	if n := len(m.fields); n == 0 || m.fields[n-1].key != key {
		m.fields = append(m.fields, field{key: key})
	}
	last, item := &m.fields[len(m.fields)-1], &mapping{}
	last.items = append(last.items, item)
	return item
}

// note adds a comment before the next key.
func (m *mapping) note(format string, args ...any) {
	m.fields = append(m.fields, field{above: wrap(fmt.Sprintf(format, args...))})
}

// shared are the keys whose mappings are written once if they are equal, with an anchor of YAML.
var shared = map[string]string{"postgres": "clients", "pool": "pool", "params": "params"}

// writer writes mappings.
type writer struct {
	strings.Builder
	uses    map[string]int    // of texts of shared mappings
	anchors map[string]string // of those that have been written
	names   map[string]int    // of anchors
}

// render returns the configuration.
func (m *mapping) render() string {
	w := &writer{uses: map[string]int{}, anchors: map[string]string{}, names: map[string]int{}}
	m.count(w.uses)
	w.write(m, "")
	return w.String()
}

// plain returns the text of m without anchors, for comparisons.
func (m *mapping) plain() string {
	var w writer
	w.write(m, "")
	return w.String()
}

// count counts the texts of mappings that may be shared.
func (m *mapping) count(uses map[string]int) {
	for _, f := range m.fields {
		if f.sub != nil {
			if shared[f.key] != "" {
				uses[f.key+"\n"+f.sub.plain()]++
			}
			f.sub.count(uses)
		}
		for _, item := range f.items {
			item.count(uses)
		}
	}
}

// write appends the lines of m at an indentation.
func (w *writer) write(m *mapping, indent string) {
	for _, f := range m.fields {
		for _, line := range f.above {
			_, _ = fmt.Fprintf(w, "%s# %s\n", indent, line)
		}
		switch {
		case f.key == "":
		case f.sub != nil && len(f.sub.fields) == 0: // nothing is set there
		case f.sub != nil:
			w.section(f, indent)
		case f.items != nil:
			_, _ = fmt.Fprintf(w, "%s%s:\n", indent, f.key)
			for _, item := range f.items {
				begin := w.Len()
				w.write(item, indent+"    ")
				text := w.String()
				w.Reset()
				w.WriteString(text[:begin] + indent + "  - " + strings.TrimPrefix(text[begin:], indent+"    "))
			}
		case f.comment != "":
			_, _ = fmt.Fprintf(w, "%s%s: %s # %s\n", indent, f.key, f.value, f.comment)
		default:
			_, _ = fmt.Fprintf(w, "%s%s: %s\n", indent, f.key, f.value)
		}
	}
}

// section writes a mapping below a key, or an alias of an equal one.
func (w *writer) section(f field, indent string) {
	text, anchor := f.key+"\n"+f.sub.plain(), ""
	if w.uses[text] > 1 {
		if name := w.anchors[text]; name != "" {
			_, _ = fmt.Fprintf(w, "%s%s: *%s\n", indent, f.key, name)
			return
		}
		name := shared[f.key]
		if f.key == "postgres" && f.sub.fields[0].key != "mode" {
			name = "login" // of an upstream
		}
		if w.names[name]++; w.names[name] > 1 {
			name = fmt.Sprintf("%s-%d", name, w.names[name])
		}
		w.anchors[text], anchor = name, " &"+name
	}
	_, _ = fmt.Fprintf(w, "%s%s:%s\n", indent, f.key, anchor)
	w.write(f.sub, indent+"  ")
}

// wrapAt is the width of comments.
const wrapAt = 100

func wrap(text string) (lines []string) {
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && len(line)+1+len(word) > wrapAt {
			lines, line = append(lines, line), ""
		}
		line = strings.TrimPrefix(line+" "+word, " ")
	}
	return append(lines, line)
}

// quote returns text as YAML, so that the gateway reads it as it is.
func quote(text string) string {
	plain := text != "" && strings.IndexFunc(text, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("_./-", c)
	}) < 0 && !strings.ContainsAny(text[:1], "-.0123456789")
	switch strings.ToLower(text) {
	case "true", "false", "null", "yes", "no", "on", "off", "y", "n":
		plain = false
	}
	if plain {
		return text
	}
	return strconv.Quote(strings.ReplaceAll(text, "${", "$${"))
}

// list returns texts as a list of YAML in one line.
func list(texts []string) string {
	quoted := make([]string, len(texts))
	for i, text := range texts {
		quoted[i] = quote(text)
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

// short returns a duration as people write it: 2m, not 2m0s.
func short(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}
