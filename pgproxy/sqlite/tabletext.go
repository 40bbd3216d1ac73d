package sqlite

import (
	"slices"
	"strconv"
	"strings"

	"github.com/headpond/headpond/pgwire"
)

// tableText is a parsed CREATE TABLE: the text before the columns, the columns and constraints, and the text after
// them.
type tableText struct {
	head, tail string
	items      []string
}

// parseTable reads a CREATE TABLE as SQLite stores it. It drops comments. It returns an error for other statements,
// such as those of virtual tables, and for definitions that it cannot split in the way SQLite does.
func parseTable(sql string) (*tableText, error) {
	sql = stripComments(sql)
	tokens := tokenize(sql)
	open := slices.IndexFunc(tokens, func(t token) bool { return t.isAny("(", "AS") })
	if createdThing(tokens) != "CREATE TABLE" || open < 0 || tokens[open].is("AS") || closing(tokens, open) == len(tokens) {
		return nil, unsupported("ALTER TABLE of a virtual table")
	}
	end := closing(tokens, open)
	out := &tableText{head: sql[:tokens[open].end], tail: sql[tokens[end].start:]}
	for _, it := range splitItemsPlain(tokens, open+1, end) {
		for _, it := range splitConstraints(tokens, it) {
			out.items = append(out.items, strings.TrimSpace(sql[tokens[it.lo].start:tokens[it.hi].start])) // includes bigKey's comment
		}
	}
	return out, nil
}

// splitConstraints splits an item at its constraints: SQLite accepts table constraints without commas between them.
func splitConstraints(tokens []token, it item) (items []item) {
	if !beginsConstraint(tokens[it.lo]) {
		return []item{it}
	}
	for i := it.lo + 1; i < it.hi; i++ {
		switch t := tokens[i]; {
		case t.is("("):
			i = closing(tokens, i)
		case tokens[i-1].is("CONSTRAINT") || i > it.lo+1 && tokens[i-2].is("CONSTRAINT"): // the name of a constraint and its keyword
		case beginsConstraint(t):
			items = append(items, item{lo: it.lo, hi: i})
			it.lo = i
		}
	}
	return append(items, it)
}

// beginsConstraint reports whether a token begins a table constraint.
func beginsConstraint(t token) bool {
	return t.kind == kindIdent && t.isAny("CONSTRAINT", "PRIMARY", "UNIQUE", "CHECK", "FOREIGN")
}

// stripComments replaces the comments in a statement of SQLite's dialect by blanks, except that of bigKey. In SQLite
// comments do not nest.
func stripComments(sql string) string {
	var b strings.Builder
	for i := 0; i < len(sql); {
		n := 1
		switch c := sql[i]; {
		case c == '\'' || c == '"' || c == '`':
			n = quotedLen(sql[i:], c)
		case c == '[':
			n = max(strings.IndexByte(sql[i:], ']')+1, 1)
		case strings.HasPrefix(sql[i:], "--"):
			n = strings.IndexByte(sql[i:]+"\n", '\n')
			b.WriteByte(' ')
			i += n
			continue
		case strings.HasPrefix(sql[i:], "/* bigint */"): // see bigKey
			n = len("/* bigint */")
		case strings.HasPrefix(sql[i:], "/*"):
			if n = strings.Index(sql[i+2:], "*/") + 4; n < 4 {
				n = len(sql) - i
			}
			b.WriteByte(' ')
			i += n
			continue
		}
		b.WriteString(sql[i : i+n])
		i += n
	}
	return b.String()
}

// withoutComments removes the comments from a client's statement. SQLite would end a nested comment earlier and read
// its remainder as part of the statement.
func withoutComments(src string, tokens []token) (string, []token) {
	var b strings.Builder
	comment, last := false, 0
	for i, t := range tokens {
		if gap := src[last:t.start]; i > 0 && gap != "" {
			comment = comment || strings.TrimSpace(gap) != ""
			b.WriteByte(' ')
		}
		b.WriteString(t.text)
		last = t.end
	}
	if !comment {
		return src, tokens
	}
	return b.String(), tokenize(b.String())
}

// String returns the statement.
func (t *tableText) String() string { return t.head + strings.Join(t.items, ", ") + t.tail }

// tableConstraint is a constraint of a table or of a column.
type tableConstraint struct {
	name, kind, text string // kind is its first keyword, in upper case
	columns          []string
	item, clause     int // its position; clause is -1 for a table constraint
}

// parseDefinition reads a constraint of a table.
func parseDefinition(text string) tableConstraint {
	d := tableConstraint{text: strings.TrimSpace(text), clause: -1}
	tokens := tokenize(d.text)
	if len(tokens) > 2 && tokens[len(tokens)-1].is("VALID") && tokens[len(tokens)-2].is("NOT") {
		tokens = tokens[:len(tokens)-2]
		d.text = d.text[:tokens[len(tokens)-1].end]
	}
	i := 0
	if len(tokens) > 2 && tokens[0].is("CONSTRAINT") {
		d.name, i = tokens[1].name(), 2
	}
	if i >= len(tokens) {
		return d
	}
	d.kind = strings.ToUpper(tokens[i].text)
	for ; i < len(tokens) && !tokens[i].is("("); i++ {
	}
	if end := closing(tokens, i); end < len(tokens) && d.kind != "CHECK" {
		for _, it := range splitItemsPlain(tokens, i+1, end) {
			d.columns = append(d.columns, tokens[it.lo].name())
		}
	}
	return d
}

// named returns the constraint's name, or PostgreSQL's default name for it.
func (d *tableConstraint) named(table string) string {
	if d.name != "" {
		return d.name
	}
	return d.defaultName(table)
}

func (d *tableConstraint) defaultName(table string) string {
	columns := strings.Join(append([]string{table}, d.columns...), "_")
	switch d.kind {
	case "PRIMARY":
		return table + "_pkey"
	case "UNIQUE":
		return columns + "_key"
	case "FOREIGN", "REFERENCES":
		return columns + "_fkey"
	}
	return columns + "_check"
}

// withName returns the constraint's text with its name.
func (d *tableConstraint) withName(name string) string {
	if d.name != "" {
		return d.text
	}
	return "CONSTRAINT " + quoteIdent(name) + " " + d.text
}

// isTableConstraint reports whether an item is a table constraint rather than a column.
func isTableConstraint(item string) bool {
	tokens := tokenize(item)
	return len(tokens) > 0 && beginsConstraint(tokens[0])
}

// definitions returns the constraints of the table and of its columns.
func (t *tableText) definitions() (list []tableConstraint) {
	columns := map[string]bool{}
	for _, item := range t.items {
		if !isTableConstraint(item) {
			columns[strings.ToLower(parseColumn(item).name)] = true
		}
	}
	defer func() {
		for i := range list {
			if d := &list[i]; d.kind == "CHECK" {
				d.columns = checkedColumn(d.expression(), columns)
			}
		}
	}()
	for i, item := range t.items {
		if isTableConstraint(item) {
			d := parseDefinition(item)
			d.item = i
			list = append(list, d)
			continue
		}
		column := parseColumn(item)
		for k, clause := range column.clauses {
			d := parseDefinition(clause)
			d.item, d.clause, d.columns = i, k, []string{column.name}
			if d.kind == "PRIMARY" || d.kind == "UNIQUE" || d.kind == "CHECK" || d.kind == "REFERENCES" {
				list = append(list, d)
			}
		}
	}
	return list
}

// expression returns the expression in parentheses of a CHECK.
func (d *tableConstraint) expression() string {
	tokens := tokenize(d.text)
	open := slices.IndexFunc(tokens, func(t token) bool { return t.is("(") })
	if open < 0 || closing(tokens, open) == len(tokens) {
		return ""
	}
	return strings.TrimSpace(d.text[tokens[open].end:tokens[closing(tokens, open)].start])
}

// checkedColumn returns the column of a CHECK that uses exactly one: PostgreSQL's name for the
// constraint then contains it.
func checkedColumn(check string, columns map[string]bool) (checked []string) {
	for _, t := range tokenize(check) {
		name := t.name()
		if (t.kind == kindIdent || t.kind == kindQuoted) && columns[strings.ToLower(name)] && !slices.Contains(checked, name) {
			checked = append(checked, name)
		}
	}
	if len(checked) > 1 {
		return nil
	}
	return checked
}

// references returns the table that a foreign key refers to, "" for other constraints.
func (d *tableConstraint) references() string {
	tokens := tokenize(d.text)
	for i, t := range tokens {
		if t.is("REFERENCES") && (d.kind == "FOREIGN" || d.kind == "REFERENCES") {
			name, _ := qualifiedAt(tokens, i+1)
			return name
		}
	}
	return ""
}

// constraints returns the constraints of a table and of its columns, with PostgreSQL's default names for those without
// one.
func (t *tableText) constraints(table string) []tableConstraint {
	list, taken := t.definitions(), map[string]int{}
	for i := range list {
		d := &list[i]
		byDefault := d.defaultName(table)
		if d.name == "" {
			d.name = byDefault
			if n := taken[byDefault]; n > 0 {
				d.name += strconv.Itoa(n)
			}
		}
		taken[byDefault]++
	}
	return list
}

// constraint returns the constraint with that name, nil if there is none.
func (t *tableText) constraint(table, name string) *tableConstraint {
	list := t.constraints(table)
	i := slices.IndexFunc(list, func(d tableConstraint) bool { return strings.EqualFold(d.name, name) })
	if i < 0 {
		return nil
	}
	return &list[i]
}

// dropParents removes the foreign keys that refer to one of the tables.
func (t *tableText) dropParents(tables []string) {
	for {
		list := t.definitions()
		i := slices.IndexFunc(list, func(d tableConstraint) bool { return contains(tables, d.references()) })
		if i < 0 {
			return
		}
		t.remove(&list[i])
	}
}

// contains reports whether names contains name, ignoring case.
func contains(names []string, name string) bool {
	return slices.ContainsFunc(names, func(n string) bool { return strings.EqualFold(n, name) })
}

// remove removes a constraint from the text.
func (t *tableText) remove(d *tableConstraint) {
	if d.clause < 0 {
		t.items = append(t.items[:d.item], t.items[d.item+1:]...)
		return
	}
	column := parseColumn(t.items[d.item])
	column.clauses = append(column.clauses[:d.clause], column.clauses[d.clause+1:]...)
	t.items[d.item] = column.String()
}

// dropReferences removes the foreign keys of a column.
func (t *tableText) dropReferences(column string) {
	for again := true; again; {
		again = false
		for _, d := range t.definitions() {
			for _, name := range d.columns {
				again = again || strings.EqualFold(name, column) && (d.kind == "FOREIGN" || d.kind == "REFERENCES")
			}
			if again {
				t.remove(&d)
				break
			}
		}
	}
}

// editColumn changes the definition of a column.
func (t *tableText) editColumn(name string, fn func(d *columnDefinition)) error {
	for i, item := range t.items {
		if d := parseColumn(item); !isTableConstraint(item) && strings.EqualFold(d.name, name) {
			fn(d)
			t.items[i] = d.String()
			return nil
		}
	}
	return sqlError(pgwire.StateUndefinedColumn, "column %q does not exist", name)
}

// columnDefinition is the definition of a column: its type and its clauses.
type columnDefinition struct {
	name, quoted, typ string
	clauses           []string
}

// parseColumn reads the definition of a column.
func parseColumn(text string) *columnDefinition {
	text = strings.TrimSpace(text)
	tokens := tokenize(text)
	if len(tokens) == 0 {
		return &columnDefinition{}
	}
	d := &columnDefinition{name: tokens[0].name(), quoted: tokens[0].text}
	starts := []int{}
	for i := 1; i < len(tokens); i++ {
		if tokens[i].is("(") {
			i = closing(tokens, i)
		} else if startsClause(tokens, i) {
			starts = append(starts, i)
		}
	}
	end := len(text)
	if len(starts) > 0 {
		end = tokens[starts[0]].start
	}
	d.typ = strings.TrimSpace(text[tokens[0].end:end])
	for k, i := range starts {
		end := len(text)
		if k+1 < len(starts) {
			end = tokens[starts[k+1]].start
		}
		d.clauses = append(d.clauses, strings.TrimSpace(text[tokens[i].start:end]))
	}
	return d
}

// startsClause reports whether a clause of a column definition begins at token i.
func startsClause(tokens []token, i int) bool {
	t, prev := tokens[i], tokens[i-1]
	if t.kind != kindIdent || prev.isAny("CONSTRAINT", "SET") || i > 1 && tokens[i-2].is("CONSTRAINT") {
		return false
	}
	switch {
	case t.is("NOT"):
		return i+1 < len(tokens) && tokens[i+1].is("NULL")
	case t.is("NULL"):
		return !prev.isAny("NOT", "DEFAULT")
	case t.is("AS"):
		return !prev.is("ALWAYS")
	}
	return t.isAny("CONSTRAINT", "PRIMARY", "UNIQUE", "CHECK", "DEFAULT", "COLLATE", "REFERENCES", "GENERATED")
}

// clause returns the index of the clause of that kind, -1 if there is none.
func (d *columnDefinition) clause(kind string) int {
	for i, text := range d.clauses {
		if c := parseDefinition(text); c.kind == kind {
			return i
		}
	}
	return -1
}

// remove removes the clause of that kind and reports whether there was one.
func (d *columnDefinition) remove(kind string) bool {
	i := d.clause(kind)
	if i >= 0 {
		d.clauses = append(d.clauses[:i], d.clauses[i+1:]...)
	}
	return i >= 0
}

// String returns the definition.
func (d *columnDefinition) String() string {
	return strings.Join(append([]string{d.quoted, d.typ}, d.clauses...), " ")
}
