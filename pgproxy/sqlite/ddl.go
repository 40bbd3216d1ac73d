package sqlite

import (
	"slices"
	"strings"
)

// created returns what a CREATE, ALTER or DROP is about, such as "CREATE TABLE", without words such as UNIQUE; "" for
// other statements.
func (r *rewriter) created() string { return createdThing(r.tokens) }

func createdThing(tokens []token) string {
	if len(tokens) < 2 || !tokens[0].isAny("CREATE", "ALTER", "DROP") {
		return ""
	}
	i := 1
	for i < len(tokens)-1 && tokens[i].isAny("OR", "REPLACE", "UNIQUE", "TEMP", "TEMPORARY") {
		i++
	}
	return strings.ToUpper(tokens[0].text) + " " + strings.ToUpper(tokens[i].text)
}

// definition edits words that occur only in the definitions of tables and indexes.
func (r *rewriter) definition(i int, word string) (int, error) {
	next := r.at(i + 1)
	switch what := r.created(); {
	case what == "CREATE TABLE" || what == "ALTER TABLE":
		if word == "generated" && (next.is("ALWAYS") && r.at(i+3).is("IDENTITY") || next.is("BY") && r.at(i+2).is("DEFAULT")) {
			return r.identity(i)
		}
		if strings.Contains(word, "serial") && r.at(i-1).kind != kindOp {
			return i, r.serial(i)
		}
	case what == "CREATE INDEX" && word == "using":
		if !next.is("btree") {
			return i, unsupported("CREATE INDEX USING %s", next.text).at(r.sql, r.tokens[i].start)
		}
		r.drop(i, i+1)
		return i + 1, nil
	case (what == "CREATE INDEX" || what == "DROP INDEX") && word == "concurrently":
		r.replace[i] = ""
	case what == "CREATE INDEX" && word == "nulls" && next.isAny("FIRST", "LAST"):
		r.drop(i, i+1)
		return i + 1, nil
	case strings.HasPrefix(what, "DROP ") && (word == "cascade" || word == "restrict") && i == len(r.tokens)-1:
		r.replace[i] = ""
	}
	return i, nil
}

// identity drops GENERATED … AS IDENTITY: SQLite numbers the rows of an INTEGER primary key by
// itself.
func (r *rewriter) identity(i int) (int, error) {
	last := i + 3 // GENERATED ALWAYS AS IDENTITY
	if r.at(i + 1).is("BY") {
		last++
	}
	if !r.at(last-1).is("AS") || !r.at(last).is("IDENTITY") {
		return i, nil
	}
	if options := last + 1; r.at(options).is("(") {
		last = closing(r.tokens, options)
		if last == len(r.tokens) || slices.ContainsFunc(r.tokens[options+1:last], token.notOfSequence) {
			return i, nil
		}
	}
	lo, _ := r.columnAround(i)
	typ, end := typeAt(r.tokens, lo+1)
	if typ == "" || end >= i {
		return i, nil
	}
	r.drop(i, last)
	r.drop(lo+1, end)
	return last, r.serial(lo + 1)
}

// notOfSequence reports whether t cannot be part of a sequence's options, which are words, names and numbers.
func (t token) notOfSequence() bool {
	return t.kind != kindIdent && t.kind != kindQuoted && t.kind != kindNumber && !t.isAny("-", ".")
}

// serial replaces the type at token i by INTEGER. SQLite numbers primary keys only.
func (r *rewriter) serial(i int) error {
	lo, hi := r.columnAround(i)
	name := r.at(lo).name()
	key := false
	for k := lo; k < hi; k++ {
		key = key || r.tokens[k].is("PRIMARY")
	}
	for k := 0; k+3 < len(r.tokens) && !key; k++ { // PRIMARY KEY (name) with this column only
		key = r.tokens[k].is("PRIMARY") && r.at(k+2).is("(") && strings.EqualFold(r.at(k+3).name(), name) && r.at(k+4).is(")")
	}
	if !key {
		return unsupported("a serial or identity column that is not the primary key").at(r.sql, r.at(lo).start)
	}
	r.replace[i] = keyType(r.tokens[i].text)
	return nil
}

// bigKey is the type of a primary key that was declared with 8 bytes. SQLite numbers the rows of a key only if its type
// is INTEGER, so a comment keeps the difference.
const bigKey = "INTEGER /* bigint */"

// keyType returns the type for a numbered primary key that has an integer type of PostgreSQL.
func keyType(typ string) string {
	if declaredOID(typ) == oidInt8 {
		return bigKey
	}
	return "INTEGER"
}

// keyDecl is the SQL for the declared type of column x, a row of pragma_table_xinfo; BIGINT for bigKey. table is the
// table's name.
func keyDecl(table string) string {
	return "CASE WHEN x.pk = 1 AND upper(x.type) = 'INTEGER' AND EXISTS (SELECT 1 FROM main.sqlite_schema b WHERE b.type = 'table'" +
		" AND b.name = " + table + " COLLATE NOCASE AND instr(b.sql, '" + bigKey + "')) THEN 'BIGINT' ELSE x.type END"
}

// columnAround returns the range of the column definition that contains token i.
func (r *rewriter) columnAround(i int) (lo, hi int) {
	for lo = i; lo > 0 && !r.tokens[lo-1].isAny(",", "(", "COLUMN", "ADD", "EXISTS"); lo-- {
		if r.tokens[lo-1].is(")") {
			if lo = opening(r.tokens, lo-1) + 1; lo == 0 {
				break
			}
		}
	}
	for hi = i; hi < len(r.tokens) && !r.tokens[hi].isAny(",", ")"); hi++ {
		if r.tokens[hi].is("(") {
			hi = closing(r.tokens, hi)
		}
	}
	return lo, min(hi, len(r.tokens))
}

// columnDefault edits DEFAULT in a column's definition. SQLite accepts a literal there, or an expression in
// parentheses.
func (r *rewriter) columnDefault(i int) int {
	value, next := r.at(i+1), r.at(i+2)
	end := i + 1
	if value.isAny("-", "+") {
		end++
	}
	call := value.kind == kindIdent && next.is("(")
	if call {
		end = closing(r.tokens, i+2)
	}
	if end >= len(r.tokens) || value.is("(") {
		return i
	}
	last := end
	for r.at(last + 1).is("::") { // a literal has the column's type
		typ, end := typeAt(r.tokens, last+2)
		if typ == "" {
			return i
		}
		last = end
	}
	switch {
	case value.isAny("now", "transaction_timestamp", "statement_timestamp", "clock_timestamp", "localtimestamp") && (!call || end == i+3):
		r.drop(i+1, last)
		r.replace[i+1] = "CURRENT_TIMESTAMP"
	case value.isAny("gen_random_uuid", "uuid_generate_v4") && end == i+3: // replaced by an expression that every program with SQLite can compute
		r.drop(i+1, last)
		r.replace[i+1] = "(lower(hex(randomblob(4)) || '-' || hex(randomblob(2)) || '-4' || substr(hex(randomblob(2)), 2) || '-' ||" +
			" substr('89ab', 1 + (random() & 3), 1) || substr(hex(randomblob(2)), 2) || '-' || hex(randomblob(6))))"
	case call:
		r.before[i+1] = "(" + r.before[i+1]
		if last == end {
			last++
			if last < len(r.tokens) {
				r.before[last] = ") " + r.before[last]
			}
			return i
		}
		r.drop(end+1, last)
		r.replace[last] = ")"
		return i
	case last > end:
		r.drop(end+1, last)
	default:
		return i
	}
	return last
}
