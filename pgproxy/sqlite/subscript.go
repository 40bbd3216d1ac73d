package sqlite

import "strings"

// Arrays. SQLite has none. An array is a text, in PostgreSQL's notation as clients send it ({1,2}) or in JSON as
// SQLite's functions make it ([1,2]). The rewriter turns the syntax of arrays into calls of functions that accept both.

// array edits ARRAY[…] and ARRAY(SELECT …).
func (r *rewriter) array(i int) error {
	end := closing(r.tokens, i+1)
	if end == len(r.tokens) {
		return nil
	}
	switch {
	case r.at(i + 1).is("["):
		if _, done := r.replace[i]; done { // already edited by quantified
			return nil
		}
		if r.at(i+2).isAny("[", "ARRAY") {
			return unsupported("an array of arrays").at(r.sql, r.tokens[i].start)
		}
		r.replace[i], r.replace[i+1], r.replace[end] = "pg_list", "(", ")"
	case r.at(i+1).is("(") && r.at(i+2).isAny("SELECT", "WITH", "VALUES"):
		r.replace[i], r.replace[i+1] = "(", "WITH pg_list(v) AS ("
		r.replace[end] = ") SELECT coalesce(array_agg(v), pg_list()) AS v FROM pg_list)"
	}
	r.started[end] = i
	return nil
}

// subscript edits a[i]. ARRAY[…] and the [] of a type are not subscripts.
func (r *rewriter) subscript(i int) error {
	end := closing(r.tokens, i)
	if end == len(r.tokens) || end == i+1 || i == 0 || !endsOperand(r.tokens[i-1]) || r.at(i-1).is("ARRAY") {
		return nil
	}
	for k := i + 1; k < end; k++ {
		if r.tokens[k].is(":") {
			return unsupported("a slice of an array").at(r.sql, r.tokens[i].start)
		}
	}
	return r.wrap(i-1, "pg_item(", i, ",", end, ")")
}

// wrap inserts open before the operand that ends at token operand, and replaces tokens i and last. The result can be an
// operand again.
func (r *rewriter) wrap(operand int, open string, i int, text string, last int, end string) error {
	start := r.operandStart(operand)
	if len(r.before[start]) > maxCasts {
		return tooManyCasts(r, i)
	}
	r.before[start] = open + r.before[start]
	r.replace[i], r.replace[last] = text, end
	r.started[last] = start
	return nil
}

// fieldOf edits (x).name, a field of a composite value. Such a value is a JSON object.
func (r *rewriter) fieldOf(i int) int {
	name := r.at(i + 1)
	if !r.at(i-1).is(")") || name.kind != kindIdent && name.kind != kindQuoted {
		return i
	}
	r.replace[i] = "->>"
	r.replace[i+1] = quoteString(strings.ToLower(name.name()))
	return i + 1
}

// quantified edits x = ANY (…) and x <> ALL (…) into IN and NOT IN.
func (r *rewriter) quantified(i int) error {
	op, end := r.at(i-1), closing(r.tokens, i+1)
	if !r.at(i+1).is("(") || end == len(r.tokens) || !op.isAny("=", "<>", "!=", "<", ">", "<=", ">=", "LIKE", "ILIKE", "~", "~*", "!~", "!~*", "~~", "!~~") {
		return nil
	}
	switch all := r.tokens[i].is("ALL"); {
	case op.is("=") && !all:
		r.replace[i-1] = "IN"
	case op.isAny("<>", "!=") && all:
		r.replace[i-1] = "NOT IN"
	default:
		return unsupported("%s %s", op.text, strings.ToUpper(r.tokens[i].text)).at(r.sql, op.start).
			hint("Of ANY and ALL, x = ANY (…) and x <> ALL (…) are understood.")
	}
	r.replace[i] = ""
	first := r.at(i + 2)
	if first.isAny("SELECT", "WITH", "VALUES") {
		return nil
	}
	if list := closing(r.tokens, i+3); first.is("ARRAY") && r.at(i+3).is("[") && list < end {
		if _, last := typeAt(r.tokens, list+2); list == end-1 || r.at(list+1).is("::") && last == end-1 {
			r.drop(i+2, i+3)
			r.drop(list, end-1)
			return nil
		}
	}
	r.replace[i+1] = "(SELECT value FROM json_each(pg_elements("
	r.replace[end] = ")))"
	return nil
}
