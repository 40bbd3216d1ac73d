package repotest

import (
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/headpond/headpond/gateway/config"
)

// KeyTable is a table of keys in the documentation. It must contain every key of each struct that it describes, with
// its default.
type KeyTable struct {
	File, Header string // Header is the first cell of its first line
	After        string // the heading above it, if the header is not unique
	Of           []any
}

// Code finds text between backquotes.
var Code = regexp.MustCompile("`([^`]+)`")

// CheckKeys compares tables of keys in documents, by file, with the configuration: names and defaults.
func CheckKeys(t *testing.T, docs map[string]string, tables []KeyTable) {
	t.Helper()
	documented := map[reflect.Type]map[string]bool{}
	for _, table := range tables {
		rows := table.rows(docs[table.File])
		if len(rows) == 0 {
			t.Errorf("%s has no table %q below %q", table.File, table.Header, table.After)
		}
		for _, row := range rows {
			for _, of := range table.Of {
				typ := reflect.TypeOf(of)
				if documented[typ] == nil {
					documented[typ] = map[string]bool{}
				}
				for _, key := range Code.FindAllStringSubmatch(row[0], -1) {
					checkKey(t, table.File, typ, key[1], row, documented[typ])
				}
			}
		}
	}
	for typ, keys := range documented {
		for _, f := range config.Schema(typ) {
			if key := f.Tag.Get("conf"); !keys[key] {
				t.Errorf("no table of the documentation has the key %q of %s", key, typ.Name())
			}
		}
	}
}

// rows returns the table's lines after the header, as cells.
func (k KeyTable) rows(text string) (rows [][]string) {
	if k.After != "" {
		_, text, _ = strings.Cut(text, "\n"+k.After+"\n")
	}
	_, text, found := strings.Cut(text, "\n| "+k.Header+" |")
	if !found {
		return nil
	}
	lines := strings.Split(text, "\n")
	for _, line := range lines[2:] {
		if !strings.HasPrefix(line, "|") {
			break
		}
		cells := strings.Split(strings.Trim(line, "| "), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		rows = append(rows, append(cells, "", ""))
	}
	return rows
}

// checkKey finds the field of a key, such as log.format, and compares it with the row.
func checkKey(t *testing.T, file string, typ reflect.Type, key string, row []string, seen map[string]bool) {
	first, rest, nested := strings.Cut(key, ".")
	f, ok := fieldOf(typ, first)
	if !ok {
		t.Errorf("%s: %s has no key %q", file, typ.Name(), key)
		return
	}
	seen[first] = true
	sub := f.Type
	if sub.Kind() == reflect.Pointer {
		sub = sub.Elem()
	}
	switch {
	case nested:
		checkKey(t, file, sub, rest, row, map[string]bool{})
	case f.Tag.Get("default") != "":
		if want := "`" + f.Tag.Get("default") + "`"; !strings.HasPrefix(row[1], want) {
			t.Errorf("%s: the default of %q is %s, the table says %s", file, key, want, row[1])
		}
	case sub.Kind() == reflect.Struct && strings.Contains(row[1]+row[2], "`"):
		checkInline(t, file, key, sub, row[1]+" "+row[2])
	}
}

// checkInline looks for the keys of a struct without a table in the text about it: `{ca, cert}`, or `interval` `2s` for
// a default.
func checkInline(t *testing.T, file, key string, typ reflect.Type, text string) {
	for _, f := range config.Schema(typ) {
		tag := f.Tag
		name, value := tag.Get("conf"), tag.Get("default")
		if value != "" && !strings.Contains(text, "`"+name+"` `"+value+"`") {
			t.Errorf("%s: the text about %q lacks `%s` `%s`", file, key, name, value)
		} else if !regexp.MustCompile("`[^`]*\\b" + name + "\\b[^`]*`").MatchString(text) {
			t.Errorf("%s: the text about %q lacks its key %q", file, key, name)
		}
	}
}

func fieldOf(typ reflect.Type, key string) (reflect.StructField, bool) {
	for _, f := range config.Schema(typ) {
		if f.Tag.Get("conf") == key {
			return f, true
		}
	}
	return reflect.StructField{}, false
}
