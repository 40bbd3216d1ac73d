package sqlite

import (
	"slices"
	"strconv"
	"strings"

	"github.com/headpond/headpond/pgwire"
)

// Set-returning functions, and column lists after an alias in FROM. SQLite lacks both. It has table-valued functions,
// whose arguments may refer to earlier tables in FROM, and WITH, whose tables accept column lists.

// arrayMakers are set-returning functions that return the elements of an array, and the function that makes this array
// from the same arguments.
var arrayMakers = map[string]string{"generate_subscripts": "pg_subscripts", "regexp_split_to_table": "regexp_split_to_array", "string_to_table": "string_to_array"}

// maxSets bounds the set-returning functions of a statement: each is looked up in its surrounding
// clauses.
const maxSets = 64

// namedColumns edits (SELECT …) AS t(a, b), also with VALUES. i is the opening parenthesis.
func (r *rewriter) namedColumns(i int) {
	end := closing(r.tokens, i)
	if end == len(r.tokens) || !r.at(i+1).isAny("SELECT", "VALUES", "WITH") || !r.at(i-1).isAny("FROM", "JOIN", ",", "LATERAL") {
		return
	}
	alias, names, last := aliasAt(r.tokens, end+1)
	if alias < 0 || len(names) == 0 {
		return
	}
	for k := range names {
		names[k] = r.tokens[alias+2+2*k].text
	}
	t := r.tokens[alias].text
	r.replace[i] = "(WITH " + t + "(" + strings.Join(names, ", ") + ") AS ("
	r.replace[end] = ") SELECT * FROM " + t + ")"
	r.drop(alias+1, last)
}

// aliasAt reads [AS] alias [(a, b)] from token i on. It returns the index of the alias (-1 if there is none), the
// column names, and the last token.
func aliasAt(tokens []token, i int) (alias int, names []string, last int) {
	if i < len(tokens) && tokens[i].is("AS") {
		i++
	}
	if i >= len(tokens) || tokens[i].kind != kindQuoted && (tokens[i].kind != kindIdent || endsItem(tokens[i])) {
		return -1, nil, i
	}
	end := closing(tokens, i+1)
	if i+1 >= len(tokens) || !tokens[i+1].is("(") || end == len(tokens) {
		return i, nil, i
	}
	for k := i + 2; k < end; k += 2 {
		names = append(names, tokens[k].name())
		if tokens[k].kind != kindIdent && tokens[k].kind != kindQuoted || k+1 < end && !tokens[k+1].is(",") {
			return i, nil, i
		}
	}
	return i, names, end
}

// endsItem reports whether a keyword ends an item of FROM.
func endsItem(t token) bool {
	return t.isAny("ON", "USING", "JOIN", "LEFT", "RIGHT", "FULL", "INNER", "CROSS", "NATURAL", "WITH", "WHERE", "GROUP", "HAVING", "ORDER", "LIMIT",
		"OFFSET", "UNION", "EXCEPT", "INTERSECT", "WINDOW", "RETURNING", "FOR", "SET", "FETCH")
}

// clauseOf returns the keyword of the clause that contains token i. With deep it also searches outside the parentheses
// around i.
func (r *rewriter) clauseOf(i int, deep bool) int {
	for i--; i >= 0; i-- {
		switch t := r.tokens[i]; {
		case t.is(")") || t.is("]"):
			i = opening(r.tokens, i)
		case t.is("(") && !deep:
			return -1
		case t.isAny("SELECT", "FROM", "WHERE", "GROUP", "ORDER", "HAVING", "VALUES", "SET", "RETURNING"):
			return i
		}
	}
	return -1
}

// setFunction edits the call of a set-returning function in FROM or in a select list.
func (r *rewriter) setFunction(i int, name string) (last int, err error) {
	if r.nsets++; r.nsets > maxSets {
		return i, sqlError(pgwire.StateProgramLimitExceeded, "more than %d functions that return rows", maxSets)
	}
	end := closing(r.tokens, i+1)
	if end == len(r.tokens) {
		return i, nil
	}
	prev := r.at(r.beforeName(i))
	if clause := r.at(r.clauseOf(i, false)); prev.isAny("FROM", "JOIN", "LATERAL") || prev.is(",") && clause.is("FROM") {
		return r.setInFrom(i, end, name)
	}
	if clause := r.clauseOf(i, true); r.at(clause).is("SELECT") && name != "generate_series" {
		return r.setInList(i, end, name, clause)
	}
	return i, unsupported("%s() here", name).at(r.sql, r.tokens[i].start)
}

// setInFrom edits unnest(a, b) [WITH ORDINALITY] AS t(x, y, n) and generate_series(a, b) AS t(x).
func (r *rewriter) setInFrom(i, end int, name string) (int, error) {
	after, ordinal := end+1, false
	if r.at(after).is("WITH") && r.at(after+1).is("ORDINALITY") {
		r.drop(after, after+1)
		after, ordinal = after+2, true
	}
	alias, names, last := aliasAt(r.tokens, after)
	if alias < 0 {
		last = after - 1
	}
	args := splitItems(r.tokens, i+2, end)
	if arrayMakers[name] != "" {
		args = args[:min(1, len(args))]
	}
	if alias >= 0 && len(names) == 0 && (len(args) == 1 || name == "generate_series") { // with one column the alias is also the column's name
		names = []string{r.tokens[alias].name()}
	}
	for k := len(names); k < len(args); k++ {
		names = append(names, name)
	}
	as := quoteIdent(name)
	if alias >= 0 {
		as = r.tokens[alias].text
	}
	if name == "generate_series" {
		if len(args) < 2 || len(args) > 3 {
			return i, sqlError(pgwire.StateUndefinedFunction, "function generate_series has two or three arguments, not %d", len(args)).at(r.sql, r.tokens[i].start)
		}
		r.series(i, end, len(args), names[0])
	} else if r.at(r.beforeName(i)).is("FROM") || !r.refersToColumns(i+2, end) || arrayMakers[name] != "" {
		r.replace[i] = "(SELECT " + setColumns("", names, len(args), ordinal) + " FROM pg_rows(pg_zip"
		r.replace[end] = ")))"
		if maker := arrayMakers[name]; maker != "" {
			r.replace[i] += "(" + maker
			r.replace[end] += ")"
		}
	} else if err := r.lateral(i, end, as, setColumns(as+".", names, len(args), ordinal)); err != nil {
		return i, err
	}
	if alias >= 0 {
		r.drop(after, last)
	}
	r.replace[end] += " AS " + as
	return i, nil
}

// setColumns returns SQL for the columns of pg_rows(pg_zip(…)), with their names.
func setColumns(of string, names []string, arrays int, ordinal bool) string {
	var list []string
	for k, name := range names {
		switch {
		case k < arrays:
			list = append(list, of+"pg_set_row ->> "+strconv.Itoa(k)+" AS "+quoteIdent(name))
		case k == arrays && ordinal:
			list = append(list, of+"pg_set_n + 1 AS "+quoteIdent(name))
		}
	}
	if ordinal && len(names) <= arrays {
		list = append(list, of+"pg_set_n + 1 AS ordinality")
	}
	return strings.Join(list, ", ")
}

// series replaces generate_series(first, last[, step]) by a recursive table.
func (r *rewriter) series(i, end, args int, name string) {
	r.replace[i] = "(WITH RECURSIVE pg_range(first, last, step) AS (SELECT"
	r.replace[i+1] = " "
	step := ""
	if args < 3 {
		step = ", 1"
	}
	r.replace[end] = step + "), pg_series(n) AS (SELECT first FROM pg_range WHERE step > 0 AND first <= last OR step < 0 AND first >= last" +
		" UNION ALL SELECT n + step FROM pg_series, pg_range WHERE step > 0 AND n + step <= last OR step < 0 AND n + step >= last)" +
		" SELECT n AS " + quoteIdent(name) + " FROM pg_series)"
}

// refersToColumns reports whether the arguments in tokens[lo:hi] name a column.
func (r *rewriter) refersToColumns(lo, hi int) bool {
	return slices.ContainsFunc(r.tokens[lo:hi], func(t token) bool { return t.is(".") })
}

// lateral edits a set-returning function whose arguments are columns of earlier tables in FROM. Only pg_rows itself can
// be used there. Its columns have other names, so the select list can refer to them only by *.
func (r *rewriter) lateral(i, end int, as, columns string) error {
	from := r.clauseOf(i, false)
	star := from - 1
	if from < 2 || !r.at(star).is("*") || !r.at(star-1).is("SELECT") {
		return unsupported("a function of columns in FROM, unless all columns are selected by *").at(r.sql, r.tokens[i].start)
	}
	list := ""
	for k := from + 1; k < r.beforeName(i)+1; k++ {
		switch t := r.tokens[k]; {
		case t.is("JOIN"):
			return unsupported("a function of columns in FROM behind a JOIN").at(r.sql, r.tokens[i].start)
		case t.is("("):
			k = closing(r.tokens, k)
		case t.is(","):
			list += r.tokens[k-1].text + ".*, "
		}
	}
	list += columns
	r.replace[star] = list
	r.replace[i] = "pg_rows(pg_zip"
	r.replace[end] = "))"
	return nil
}

// moved is the argument of a set-returning function in a select list. Its tokens are moved to the end of the FROM
// clause.
type moved struct {
	end       int    // last token of the argument
	at, place int    // token before which it is written, and its index among the arguments there
	call      string // function that is called with it there, "" for none
}

// setInList edits a set-returning function in a select list: it becomes a column of pg_rows, which is joined to the
// FROM clause.
func (r *rewriter) setInList(i, end int, name string, sel int) (int, error) {
	args := splitItems(r.tokens, i+2, end)
	if len(args) == 0 {
		return i, nil
	}
	m := moved{end: end - 1, at: r.endOfFrom(sel), call: arrayMakers[name]}
	if len(args) > 1 && m.call == "" {
		return i, sqlError(pgwire.StateUndefinedFunction, "function %s has one argument here, not %d", name, len(args)).at(r.sql, r.tokens[i].start)
	}
	m.place = r.sets[m.at]
	r.sets[m.at]++
	value := "pg_set.pg_set_row ->> " + strconv.Itoa(m.place)
	r.replace[i], r.replace[i+1] = "", ""
	switch name {
	case "_pg_expandarray":
		r.replace[end] = "json_object('x', " + value + ", 'n', pg_set.pg_set_n + 1)"
	default:
		r.replace[end] = "(" + value + ")"
	}
	r.moves[i+2] = m
	r.started[end] = i
	return i, nil
}

// endOfFrom returns the token before which the FROM clause of the SELECT at token i ends, or could
// be inserted.
func (r *rewriter) endOfFrom(i int) int {
	for i++; i < len(r.tokens); i++ {
		switch t := r.tokens[i]; {
		case t.is("("):
			i = closing(r.tokens, i)
		case t.is(")"), t.is(";"), t.isAny("WHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "OFFSET", "UNION", "EXCEPT", "INTERSECT", "WINDOW"):
			return i
		}
	}
	return len(r.tokens)
}

// join returns the text that setInList adds to the FROM clause before token at. arrays are the texts of the arguments.
func (r *rewriter) join(at int, arrays []string) string {
	join := ", "
	if r.at(r.clauseOf(at, false)).is("SELECT") {
		join = " FROM "
	}
	return join + "pg_rows(pg_zip(" + strings.Join(arrays, ", ") + ")) AS pg_set "
}
