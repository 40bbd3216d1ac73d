// Package yamltext writes configurations of the gateway as YAML with comments, which package gateway/config does not.
package yamltext

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Mapping is a part of the configuration.
type Mapping struct{ Fields []Field }

// Field is a key with its value, or a comment.
type Field struct {
	Key, Value, Comment string
	Above               []string   // lines of a comment before it
	Sub                 *Mapping   // instead of a value
	Items               []*Mapping // instead of a value: a list
}

// Put adds a value, which is written as it is: quote it if it is the user's.
func (m *Mapping) Put(key, value, comment string) {
	m.Fields = append(m.Fields, Field{Key: key, Value: value, Comment: comment})
}

// In returns the mapping below a key, which it adds.
func (m *Mapping) In(key string) *Mapping {
	sub := &Mapping{}
	m.Fields = append(m.Fields, Field{Key: key, Sub: sub})
	return sub
}

// Add adds an item to the list below a key, which is the last one.
func (m *Mapping) Add(key string) *Mapping {
	if n := len(m.Fields); n == 0 || m.Fields[n-1].Key != key {
		m.Fields = append(m.Fields, Field{Key: key})
	}
	last, item := &m.Fields[len(m.Fields)-1], &Mapping{}
	last.Items = append(last.Items, item)
	return item
}

// Note adds a comment before the next key.
func (m *Mapping) Note(format string, args ...any) {
	m.Fields = append(m.Fields, Field{Above: wrap(fmt.Sprintf(format, args...))})
}

// Anchors returns the name of the anchor for the mapping below a key, if equal ones are written once; "": they are not.
type Anchors func(key string, sub *Mapping) string

// writer writes mappings.
type writer struct {
	strings.Builder
	uses    map[string]int    // of texts of shared mappings
	anchors map[string]string // of those that have been written
	names   map[string]int    // of anchors
	anchor  Anchors
}

// Render returns the configuration. anchor may be nil.
func (m *Mapping) Render(anchor Anchors) string {
	if anchor == nil {
		anchor = func(string, *Mapping) string { return "" }
	}
	w := &writer{uses: map[string]int{}, anchors: map[string]string{}, names: map[string]int{}, anchor: anchor}
	m.count(w.uses, anchor)
	w.write(m, "")
	return w.String()
}

// plain returns the text of m without anchors, for comparisons.
func (m *Mapping) plain() string {
	var w writer
	w.write(m, "")
	return w.String()
}

// count counts the texts of mappings that may be shared.
func (m *Mapping) count(uses map[string]int, anchor Anchors) {
	for _, f := range m.Fields {
		if f.Sub != nil {
			if anchor(f.Key, f.Sub) != "" {
				uses[f.Key+"\n"+f.Sub.plain()]++
			}
			f.Sub.count(uses, anchor)
		}
		for _, item := range f.Items {
			item.count(uses, anchor)
		}
	}
}

// write appends the lines of m at an indentation.
func (w *writer) write(m *Mapping, indent string) {
	for _, f := range m.Fields {
		for _, line := range f.Above {
			w.WriteString(strings.TrimRight(indent+"# "+line, " ") + "\n")
		}
		switch {
		case f.Key == "":
		case f.Sub != nil && len(f.Sub.Fields) == 0: // nothing is set there
		case f.Sub != nil:
			w.section(f, indent)
		case f.Items != nil:
			_, _ = fmt.Fprintf(w, "%s%s:\n", indent, f.Key)
			for _, item := range f.Items {
				of := writer{uses: w.uses, anchors: w.anchors, names: w.names, anchor: w.anchor}
				of.write(item, indent+"    ")
				w.WriteString(indent + "  - " + strings.TrimPrefix(of.String(), indent+"    "))
			}
		case f.Comment != "":
			_, _ = fmt.Fprintf(w, "%s%s: %s # %s\n", indent, f.Key, f.Value, f.Comment)
		default:
			_, _ = fmt.Fprintf(w, "%s%s: %s\n", indent, f.Key, f.Value)
		}
	}
}

// section writes a mapping below a key, or an alias of an equal one.
func (w *writer) section(f Field, indent string) {
	text, anchor := f.Key+"\n"+f.Sub.plain(), ""
	if w.uses[text] > 1 {
		if name := w.anchors[text]; name != "" {
			_, _ = fmt.Fprintf(w, "%s%s: *%s\n", indent, f.Key, name)
			return
		}
		name := w.anchor(f.Key, f.Sub)
		if w.names[name]++; w.names[name] > 1 {
			name = fmt.Sprintf("%s-%d", name, w.names[name])
		}
		w.anchors[text], anchor = name, " &"+name
	}
	_, _ = fmt.Fprintf(w, "%s%s:%s\n", indent, f.Key, anchor)
	w.write(f.Sub, indent+"  ")
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

// Quote returns text as YAML, so that the gateway reads it as it is.
func Quote(text string) string {
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

// List returns texts as a list of YAML in one line.
func List(texts []string) string {
	quoted := make([]string, len(texts))
	for i, text := range texts {
		quoted[i] = Quote(text)
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

// Short returns a duration as people write it: 2m, not 2m0s.
func Short(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}
