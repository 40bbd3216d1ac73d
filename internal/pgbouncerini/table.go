package pgbouncerini

import (
	"fmt"
	"strings"
)

// Table returns the table of all settings, in Markdown: what documentation shows of them.
func Table() string {
	var b strings.Builder
	b.WriteString("| PgBouncer | default | here |\n|---|---|---|\n")
	name := func(prefix string, k *key) string {
		text := "`" + prefix + k.name + "`"
		if k.link != "" {
			text = fmt.Sprintf("[%s](%s)", text, k.link)
		}
		return text
	}
	for _, section := range []struct {
		prefix string
		keys   []key
	}{{"", mainKeys}, {"database: ", databaseKeys}, {"user: ", userKeys}} {
		for _, k := range section.keys {
			fmt.Fprintf(&b, "| %s | %s | %s |\n", name(section.prefix, &k), k.shownDefault(), k.here())
		}
	}
	return b.String()
}

// shownDefault is a default in the table.
func (k *key) shownDefault() string {
	switch {
	case k.def == "" || k.def == "-1":
		return ""
	case len(k.def) > 20:
		return "of `pg_authid`"
	}
	return "`" + k.def + "`"
}

// here is what the table says of a key.
func (k *key) here() string {
	switch k.fate {
	case Itself:
		return "not needed: " + k.note
	case Ignored:
		return "ignored: " + k.note
	case Missing:
		return "**not supported**: " + k.note
	}
	return k.note
}
