package sqlite

import (
	"strings"

	"github.com/headpond/headpond/pgwire"
)

// word edits the construct that begins with the identifier or keyword at token i.
func (r *rewriter) word(i int) (int, error) {
	t, next := r.tokens[i], r.at(i+1)
	if next.is("(") {
		if last, done, err := r.call(i); done || err != nil {
			return last, err
		}
	}
	switch word := strings.ToLower(t.text); word {
	case "u":
		if next.is("&") && (r.at(i+2).kind == kindString || r.at(i+2).kind == kindQuoted) && r.at(i+2).start == t.end+1 {
			return i, unsupported("U&'…'").hint("Write E'\\u0041'.").at(r.sql, t.start)
		}
	case "select":
		r.nameItems(i)
	case "operator":
		return r.namedOperator(i), nil
	case "collate":
		return r.collate(i), nil
	case "ilike":
		r.replace[i] = "LIKE"
	case "cast":
		return i, r.cast(i)
	case "array":
		return i, r.array(i)
	case "any", "some", "all":
		return i, r.quantified(i)
	case "at":
		return r.atTimeZone(i), nil
	case "current_user", "session_user", "current_role", "current_schema", "current_catalog":
		if !next.isAny("(", ".") && !r.at(i-1).isAny(".", "AS") {
			r.replace[i] = t.text + "()"
		}
	case "for":
		return r.locking(i), nil
	case "date", "time", "timestamp", "timestamptz", "json", "jsonb", "uuid", "numeric", "interval":
		return r.typedLiteral(i)
	case "localtimestamp", "localtime":
		if !next.isAny("(", ".") && !r.at(i-1).isAny(".", "AS") {
			r.replace[i] = t.text + "()"
		}
	case "default":
		return r.defaultValue(i), nil
	case "as":
		return r.label(i), nil
	case "on":
		r.upsertSelect(i)
	case "generated", "serial", "bigserial", "smallserial", "serial4", "serial8", "serial2", "using", "concurrently", "nulls", "cascade", "restrict":
		return r.definition(i, word)
	}
	if strings.HasSuffix(t.text, "_ops") && next.isAny(",", ")") && r.created() == "CREATE INDEX" {
		r.replace[i] = ""
		return i, nil
	}
	return r.qualified(i), nil
}

var schemas = map[string]bool{"public": true, "pg_catalog": true, "information_schema": true}

// qualified edits a name with a schema, quoted or not.
func (r *rewriter) qualified(i int) int {
	if !r.at(i + 1).is(".") {
		return i
	}
	if name := strings.ToLower(r.tokens[i].name()); schemas[name] {
		return r.schema(i, name)
	}
	return r.ownSchema(i)
}

// labels are keywords in SQLite that PostgreSQL allows as column names after AS.
var labels = words(`ADD ALTER CHECK COLLATE COMMIT CONSTRAINT CREATE DEFAULT DEFERRABLE DELETE DISTINCT DROP ESCAPE EXISTS FOREIGN FROM GROUP HAVING IN INDEX
	INSERT INTO IS ISNULL JOIN LIMIT NOTNULL NULL ON OR ORDER PRIMARY REFERENCES RETURNING SET TABLE THEN TO TRANSACTION UNION UNIQUE UPDATE USING WHEN WHERE`)

// label quotes a keyword after AS.
func (r *rewriter) label(i int) int {
	if name := r.at(i + 1); name.kind == kindIdent && labels[strings.ToUpper(name.text)] {
		r.replace[i+1] = quoteIdent(strings.ToLower(name.text))
		return i + 1
	}
	return i
}

// beforeName returns the token before the name at token i and before its schema, if any.
func (r *rewriter) beforeName(i int) int {
	if r.at(i-1).is(".") && schemas[strings.ToLower(r.at(i-2).name())] {
		return i - 3
	}
	return i - 1
}

// ownSchema edits the name of a table in a schema that SQLite lacks: the table is stored as "schema.table". A pair of
// names is a table where a table's name is expected, and before a third name.
func (r *rewriter) ownSchema(i int) int {
	prev, object := r.at(r.beforeName(i)), r.at(i+2)
	if prev.is(".") || object.kind != kindIdent && object.kind != kindQuoted || r.tokens[i].isAny("main", "temp", "excluded") {
		return i
	}
	_, edited := r.replace[i-1] // the FROM of EXTRACT(… FROM …)
	table := prev.isAny("FROM", "JOIN", "INTO", "UPDATE", "TABLE", "EXISTS", "REFERENCES", "ONLY", "TRUNCATE") && !edited && !r.at(i-2).is("DISTINCT") ||
		prev.is("ON") && r.created() == "CREATE INDEX"
	switch {
	case r.at(i - 1).is("."), table && r.at(i+3).is("."): // in another database: SQLite refuses it
	case table:
		r.drop(i, i+1)
		r.replace[i+2] = quoteIdent(r.tokens[i].name() + "." + object.name())
		if alias, _, _ := aliasAt(r.tokens, i+3); alias < 0 && prev.isAny("FROM", "JOIN", "UPDATE") {
			name := object.text
			if labels[strings.ToUpper(name)] {
				name = quoteIdent(name)
			}
			r.replace[i+2] += " AS " + name
		}
		return i + 2
	case r.at(i+3).is(".") && !r.at(i+5).is(".") && !schemas[strings.ToLower(object.name())]:
		r.drop(i, i+1)
		return i + 1
	}
	return i
}

// schema edits the schema before a dot, quoted or not. The views of the catalogs have no schema,
// and tables are in SQLite's main.
func (r *rewriter) schema(i int, name string) int {
	object := r.at(i + 2)
	if prev := r.at(i - 1); r.at(i+3).is(".") && prev.isAny("FROM", "JOIN", "INTO", "UPDATE", "TABLE") {
		return i // in another database: SQLite refuses it
	}
	if !r.at(i+1).is(".") || r.at(i-1).is(".") || object.kind != kindIdent && object.kind != kindQuoted || schemas[strings.ToLower(object.name())] {
		return i
	}
	switch {
	case name == "public" && (r.at(i-1).is("REFERENCES") || r.at(i-1).is("ON") && r.created() == "CREATE INDEX"):
		r.drop(i, i+1)
		return i + 1
	case name == "public":
		r.replace[i] = "main"
	case name == "pg_catalog" && object.kind == kindIdent && valueWords[strings.ToUpper(object.text)] && !r.at(i+3).is("("):
		r.drop(i, i+1)
		r.replace[i+2] = quoteIdent(strings.ToLower(object.text))
		return i + 2
	case name == "pg_catalog", name == "information_schema" && object.is("_pg_expandarray"):
		r.drop(i, i+1)
		return i + 1
	case name == "information_schema" && r.tokens[i].kind == kindIdent && object.kind == kindIdent:
		r.replace[i+1] = "_"
		return i + 1
	case name == "information_schema":
		r.drop(i, i+1)
		r.replace[i+2] = quoteIdent(name + "_" + object.name())
		return i + 2
	}
	return i
}

// namedOperator edits OPERATOR(pg_catalog.~).
func (r *rewriter) namedOperator(i int) int {
	j := i + 2
	if r.at(j + 1).is(".") {
		j += 2
	}
	if !r.at(i+1).is("(") || !r.at(j+1).is(")") || r.at(j).kind != kindOp || i > 0 && !endsOperand(r.tokens[i-1]) {
		return i
	}
	to, ok := matchOperators[r.at(j).text]
	if !ok {
		to = r.at(j).text
	}
	r.match(i, j+1, to)
	return j + 1
}

// collate drops PostgreSQL's default collation, which psql writes, and maps "C".
func (r *rewriter) collate(i int) int {
	j := i + 1
	if r.at(j).is("pg_catalog") && r.at(j+1).is(".") {
		j += 2
	}
	switch name := r.at(j).name(); {
	case i == 0 || !endsOperand(r.tokens[i-1]) || r.at(j+1).is("("): // none
	case strings.EqualFold(name, "default"):
		r.drop(i, j)
		return j
	case name == "C", name == "POSIX", name == "ucs_basic":
		r.drop(i, j)
		r.replace[j] = "COLLATE BINARY"
		return j
	}
	return i
}

// cast edits CAST(x AS type) if SQLite would read another affinity from the type's name. The
// operand's tokens are edited later.
func (r *rewriter) cast(i int) error {
	if !r.at(i + 1).is("(") {
		return nil
	}
	end, as := closing(r.tokens, i+1), -1
	if end == len(r.tokens) {
		return nil
	}
	for j := end - 1; j > i+1 && as < 0; j-- {
		switch t := r.tokens[j]; {
		case t.is(")"):
			j = opening(r.tokens, j)
		case t.is("AS"):
			as = j
		}
	}
	name, last := typeAt(r.tokens, as+1)
	switch {
	case as < 0:
		return nil
	case name == "":
		return sqlError(pgwire.StateSyntaxError, "syntax error at or near %q", clip(r.at(as+1).text)).at(r.sql, r.at(as+1).start)
	case last != end-1:
		return nil
	}
	if as == i+3 && r.boundAs(i+2, name) {
		r.drop(i, i+1)
		r.drop(as, end)
		return nil
	}
	open, closed := r.castCode(name)
	if open == "CAST(" {
		r.drop(as+1, last)
		r.replace[last] = strings.TrimSuffix(strings.TrimPrefix(closed, " AS "), ")")
		return nil
	}
	r.replace[i] = strings.TrimSuffix(open, "(")
	r.drop(as, last)
	return nil
}

// typedLiteral edits typed literals such as DATE '…'.
func (r *rewriter) typedLiteral(i int) (int, error) {
	name, last := typeAt(r.tokens, i)
	literal := r.at(last + 1)
	if name == "" || literal.kind != kindString || i > 0 && endsOperand(r.tokens[i-1]) || r.at(i-1).is(".") {
		return i, nil
	}
	if strings.EqualFold(name, "interval") {
		return i, unsupported("type interval").hint("SQLite computes with modifiers: datetime(x, '+1 day').").at(r.sql, r.tokens[i].start)
	}
	open, end := r.castCode(name)
	r.drop(i, last)
	r.replace[last+1] = open + quoteString(stringValue(literal.text)) + strings.TrimPrefix(end, " ")
	return last + 1, nil
}

// locking drops FOR UPDATE and similar clauses at the end of a SELECT. The statement then runs on
// the only writer, which is a stronger lock.
func (r *rewriter) locking(i int) int {
	if !r.at(i+1).isAny("UPDATE", "SHARE", "NO", "KEY") || i == 0 || !endsOperand(r.tokens[i-1]) {
		return i
	}
	if i < r.noLock {
		return i
	}
	j := i
	for ; j < len(r.tokens) && !r.tokens[j].is(")"); j++ {
		named := r.at(j-1).isAny("OF", ",", ".") && (r.tokens[j].kind == kindIdent || r.tokens[j].kind == kindQuoted)
		if !named && !r.tokens[j].isAny("FOR", "UPDATE", "SHARE", "NO", "KEY", "OF", ",", ".", "NOWAIT", "SKIP", "LOCKED") {
			r.noLock = j
			return i
		}
	}
	r.drop(i, j-1)
	r.out.locking = true
	return j - 1
}
