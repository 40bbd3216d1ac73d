package sqlite

import (
	"strconv"
	"strings"
)

// renamed maps functions to their names in SQLite.
var renamed = map[string]string{
	"json_build_object": "json_object", "jsonb_build_object": "json_object", "json_build_array": "json_array", "jsonb_build_array": "json_array",
	"json_agg": "json_group_array", "jsonb_agg": "json_group_array", "json_object_agg": "json_group_object", "jsonb_object_agg": "json_group_object",
	"char_length": "length", "character_length": "length", "strpos": "instr", "btrim": "trim", "chr": "char", "uuid_generate_v4": "gen_random_uuid",
}

// call edits a function call whose name or syntax SQLite lacks. If done is set, the rewriter continues after token
// last.
func (r *rewriter) call(i int) (last int, done bool, err error) {
	if r.at(i-1).is(".") && r.beforeName(i) == i-1 {
		return i, false, nil
	}
	name := strings.ToLower(r.tokens[i].text)
	switch name {
	case "unnest", "generate_series", "generate_subscripts", "_pg_expandarray", "regexp_split_to_table", "string_to_table":
		last, err = r.setFunction(i, name)
		return last, true, err
	case "extract":
		return i, r.extract(i), nil
	case "trim":
		return i, r.trim(i), nil
	case "substring", "overlay", "position":
		return i, r.keywordArguments(i, name), nil
	}
	if to, ok := renamed[name]; ok {
		r.replace[i] = to
		return i, true, nil
	}
	return i, false, nil
}

// inCall returns the first of the keywords in the call at token i, outside of nested parentheses; -1 if there is none.
func (r *rewriter) inCall(i int, words ...string) int {
	end := closing(r.tokens, i+1)
	for k := i + 2; k < end; k++ {
		switch t := r.tokens[k]; {
		case t.is("("):
			k = closing(r.tokens, k)
		case t.isAny(words...):
			return k
		}
	}
	return -1
}

// extract edits EXTRACT(field FROM x).
func (r *rewriter) extract(i int) bool {
	field := r.at(i + 2)
	if !r.at(i+3).is("FROM") || field.kind == kindOp {
		return false
	}
	r.replace[i] = "extract"
	if field.kind == kindIdent {
		r.replace[i+2] = quoteString(strings.ToLower(field.text))
	}
	r.replace[i+3] = ","
	return true
}

// trim edits TRIM([BOTH|LEADING|TRAILING] [characters] FROM x). SQLite has these arguments in the opposite order.
func (r *rewriter) trim(i int) bool {
	from := r.inCall(i, "FROM")
	if from < 0 {
		return false
	}
	side := strings.ToLower(r.at(i + 2).text)
	if r.at(i+2).isAny("BOTH", "LEADING", "TRAILING") {
		r.replace[i+2] = quoteString(side) + ","
	} else {
		r.before[i+2] = "'both', " + r.before[i+2]
	}
	if from == i+3 || from == i+2 {
		r.replace[from] = "' ',"
	} else {
		r.replace[from] = ","
	}
	r.replace[i] = "pg_trim"
	return true
}

// keywordArguments edits SUBSTRING(x FROM 1 FOR 2) and POSITION(x IN y).
func (r *rewriter) keywordArguments(i int, name string) bool {
	edited := false
	for _, word := range []string{"FROM", "FOR", "IN"} {
		if k := r.inCall(i, word); k > 0 && (word == "IN") == (name == "position") {
			r.replace[k] = ","
			edited = true
		}
	}
	if edited && name == "position" {
		r.replace[i] = "pg_position"
	}
	return edited
}

// atTimeZone edits x AT TIME ZONE zone.
func (r *rewriter) atTimeZone(i int) int {
	zone := r.at(i + 3)
	if !r.at(i+1).is("TIME") || !r.at(i+2).is("ZONE") || i == 0 || !endsOperand(r.tokens[i-1]) || zone.kind != kindString && zone.kind != kindParam {
		return i
	}
	text := quoteString(stringValue(zone.text))
	if n := paramNumber(zone); n > 0 {
		text = "?" + strconv.Itoa(n)
		r.out.params, r.out.inOrder = max(r.out.params, n), false
	}
	if r.wrap(i-1, "timezone_of(", i, ", "+text+")", i+3, "") != nil {
		return i
	}
	r.drop(i+1, i+2)
	return i + 3
}

// defaultValue edits DEFAULT used as a value, in a row of VALUES and in SET.
func (r *rewriter) defaultValue(i int) int {
	prev, next := r.at(i-1), r.at(i+1)
	ends := next.isAny(")", ",", "WHERE", "FROM", "RETURNING", ";") || i+1 == len(r.tokens)
	if !ends || !prev.isAny("(", ",", "=") {
		if r.at(0).isAny("CREATE", "ALTER") {
			return r.columnDefault(i)
		}
		return i
	}
	table, columns := r.target()
	if table == "" {
		return i
	}
	column := quoteString(r.at(i - 2).name())
	if !prev.is("=") {
		n := r.placeInRow(i)
		column = strconv.Itoa(n)
		if n < len(columns) {
			column = quoteString(columns[n])
		}
	}
	r.replace[i] = "pg_default(" + quoteString(table) + ", " + column + ")"
	return i
}

// placeInRow counts the values before token i in a row of VALUES. It starts at the DEFAULT of its previous call.
func (r *rewriter) placeInRow(i int) int {
	n := 0
	for k := i - 1; k >= 0 && !r.tokens[k].is("("); k-- {
		switch t := r.tokens[k]; {
		case k == r.counted:
			n, k = n+r.place, 0
		case t.is(")"):
			k = opening(r.tokens, k)
		case t.is(","):
			n++
		}
	}
	r.counted, r.place = i, n
	return n
}

// target returns the table that an INSERT or UPDATE writes to ("" in other statements) and the columns named by an
// INSERT.
func (r *rewriter) target() (table string, columns []string) {
	if r.written == nil {
		r.written = &written{}
		verb := mainVerb(r.tokens)
		name := verb + 1
		switch {
		case r.at(verb).isAny("INSERT", "REPLACE"):
			for name < len(r.tokens) && !r.at(name-1).is("INTO") {
				name++
			}
			_, r.written.columns = insertTarget(r.tokens)
		case !r.at(verb).is("UPDATE"):
			return "", nil
		}
		r.written.table = r.at(name).name()
		if schema := r.written.table; r.at(name + 1).is(".") {
			r.written.table = r.at(name + 2).name()
			if !schemas[strings.ToLower(schema)] && !strings.EqualFold(schema, "main") {
				r.written.table = schema + "." + r.written.table // see ownSchema
			}
		}
	}
	return r.written.table, r.written.columns
}

// written is the result of target.
type written struct {
	table   string
	columns []string
}

// upsertSelect separates SELECT … FROM t from ON CONFLICT, which SQLite would read as a join condition.
func (r *rewriter) upsertSelect(i int) {
	if r.conflict || !r.at(i+1).is("CONFLICT") || !r.at(mainVerb(r.tokens)).is("INSERT") {
		return
	}
	r.conflict = true
	from := r.clauseOf(i, false)
	if r.at(from).is("FROM") {
		r.before[i] = "WHERE true "
	}
}
