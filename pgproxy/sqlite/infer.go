package sqlite

import (
	"cmp"
	"maps"
	"strconv"
	"strings"
)

// typer finds the types of expressions from their tokens. SQLite has no static types for
// expressions, but Describe must be answered before a row exists. The rules are PostgreSQL's where
// they are simple. Expressions that they do not cover have the type oidUnspecified, and the caller
// sends text.
type typer struct {
	tokens   []token
	table    func(name string) []schemaField // the columns of a table of the file
	anyTable func(name string) uint32        // a column of any table of the statement, for places outside a SELECT
	params   []uint32                        // types of $1, …
	scopes   *scopes
}

// sub returns the type of the expression in tokens[lo:hi].
func (ty *typer) sub(lo, hi int) uint32 {
	for hi-lo >= 2 && ty.tokens[lo].is("(") && closing(ty.tokens, lo) == hi-1 {
		lo, hi = lo+1, hi-1
	}
	if lo >= hi {
		return oidUnspecified
	}
	if f, ok := ty.scope().opened[lo-1]; ok && ty.tokens[lo].isAny("SELECT", "WITH", "VALUES") {
		if fields, known := ty.frameFields(f); known && len(fields) == 1 {
			return fields[0].oid
		}
		return oidUnspecified
	}
	if oid, found := ty.binary(lo, hi); found {
		return oid
	}
	return ty.primary(lo, hi)
}

// levels are the binary operators, loosest first.
var levels = [][]string{
	{"OR"}, {"AND"},
	{"=", "==", "<>", "!=", "<", ">", "<=", ">=", "IS", "IN", "LIKE", "GLOB", "REGEXP", "MATCH", "BETWEEN", "ISNULL", "NOTNULL"},
	{"<<", ">>", "&", "|"},
	{"+", "-"}, {"*", "/", "%"}, {"||", "->", "->>"},
}

const (
	levelCompare = 2
	levelBits    = 3
	levelText    = 6
)

func (ty *typer) binary(lo, hi int) (oid uint32, found bool) {
	for level, ops := range levels {
		if at := ty.find(lo, hi, ops); at > lo {
			switch {
			case level <= levelCompare:
				return oidBool, true
			case level == levelBits:
				return oidInt8, true
			case level == levelText:
				return ty.textOperator(lo, at), true
			}
			return arithmetic(ty.sub(lo, at), ty.sub(at+1, hi)), true
		}
		if level == 1 && ty.tokens[lo].isAny("NOT", "EXISTS") {
			return oidBool, true
		}
	}
	return 0, false
}

// textOperator returns the type of ||, -> and ->> at token at. It is text, or the element type where the rewriter
// subscripts an array with the operator.
func (ty *typer) textOperator(lo, at int) uint32 {
	if !ty.tokens[at-1].is("pg_set_row") || at+1 >= len(ty.tokens) {
		return oidText
	}
	n, err := strconv.Atoi(ty.tokens[at+1].text)
	a := ty.scope().armAt(lo)
	for i := at; err == nil && a >= 0 && i+1 < ty.scope().arms[a].hi; i++ {
		if !ty.tokens[i].is("pg_zip") {
			continue
		}
		arrays := splitItems(ty.tokens, i+2, closing(ty.tokens, i+1))
		if n < len(arrays) {
			return cmp.Or(elementOf(ty.sub(arrays[n].lo, arrays[n].hi)), oidText)
		}
	}
	return oidText
}

// find returns the last operator of ops outside parentheses and CASE, -1 if there is none.
func (ty *typer) find(lo, hi int, ops []string) int {
	depth, at := 0, -1
	for i := lo; i < hi; i++ {
		t := ty.tokens[i]
		switch {
		case t.is("("):
			i = closing(ty.tokens, i)
		case t.is("CASE"):
			depth++
		case t.is("END") && depth > 0:
			depth--
		case depth == 0 && t.isAny(ops...) && i > lo && endsOperand(ty.tokens[i-1]):
			at = i
		case depth == 0 && t.isAny(ops...) && i > lo && ty.tokens[i-1].is("NOT"):
			at = i
		}
	}
	return at
}

// arithmetic returns the type of a+b. SQLite computes with 64-bit integers and doubles; a result
// that does not fit PostgreSQL's type is refused when it is sent.
func arithmetic(a, b uint32) uint32 {
	switch oid := common(a, b); {
	case a == oidFloat8 || b == oidFloat8:
		return oidFloat8
	case a == oidBool && b == oidBool:
		return oidInt4
	case isInt(a) && isInt(b):
		return oid
	}
	return oidNumeric
}

// maxOperand bounds the operands that dateArithmetic reads, in tokens: nested operands are read once per level.
const maxOperand = 64

// dateArithmetic returns the first + or - of which an operand is a date, or a time with a date; -1 if there is none.
// SQLite would compute with the digits at the beginning of such a text.
func (ty *typer) dateArithmetic() int {
	for i, t := range ty.tokens {
		if i == 0 || !t.isAny("+", "-") || !endsOperand(ty.tokens[i-1]) {
			continue
		}
		lo, hi := i-1, i+1
		if ty.at(lo).is(")") {
			if lo = max(opening(ty.tokens, lo), 0); lo > 0 && ty.at(lo-1).kind == kindIdent && endsOperand(ty.at(lo-1)) {
				lo-- // include the function's name
			}
		}
		for lo > 1 && ty.at(lo-1).is(".") {
			lo -= 2
		}
		for ty.at(hi + 1).is(".") {
			hi += 2
		}
		if ty.at(hi).kind == kindIdent && ty.at(hi+1).is("(") {
			hi++
		}
		if ty.at(hi).is("(") {
			hi = closing(ty.tokens, hi)
		}
		hi = min(hi+1, len(ty.tokens))
		if i-lo <= maxOperand && timeRank[ty.sub(lo, i)] > 0 || hi-i <= maxOperand && timeRank[ty.sub(i+1, hi)] > 0 {
			return i
		}
	}
	return -1
}

func (ty *typer) primary(lo, hi int) uint32 {
	t := ty.tokens[lo]
	switch {
	case t.is("+") && hi > lo+1: // a unary plus does nothing in SQLite, even to texts
		return ty.sub(lo+1, hi)
	case t.is("-") && hi > lo+1:
		return arithmetic(ty.sub(lo+1, hi), oidInt2)
	case t.is("~"):
		return oidInt8
	case t.is("CASE"):
		return ty.caseType(lo, hi)
	case t.is("CAST") && hi-lo > 3:
		return ty.castType(lo, hi)
	case hi-lo > 2 && ty.tokens[lo+1].is("(") && (t.kind == kindIdent || t.kind == kindQuoted):
		return ty.call(lo, hi)
	case hi-lo > 1 && ty.tokens[hi-2].is("COLLATE"):
		return ty.sub(lo, hi-2)
	case hi-lo == 1 || ty.tokens[lo+1].is("."):
		return ty.leaf(hi - 1)
	}
	return oidUnspecified
}

// leaf returns the type of the literal, parameter or column at token i.
func (ty *typer) leaf(i int) uint32 {
	t := ty.tokens[i]
	switch t.kind {
	case kindString:
		return oidText
	case kindBlob:
		return oidBytea
	case kindNumber:
		return numberType(t.text)
	case kindParam:
		if n := paramNumber(t); n > 0 && n <= len(ty.params) {
			return ty.params[n-1]
		}
		return oidUnspecified
	}
	switch {
	case t.is("NULL"):
		return oidUnspecified
	case t.isAny("TRUE", "FALSE"):
		return oidBool
	case t.is("CURRENT_TIMESTAMP"):
		return oidTimestamptz
	case t.is("CURRENT_DATE"):
		return oidDate
	case t.is("CURRENT_TIME"):
		return oidTime
	}
	return ty.column(i)
}

// numberType returns the type of a number; for an integer the smallest that holds it.
func numberType(s string) uint32 {
	n, err := strconv.ParseInt(s, 0, 64)
	switch {
	case err == nil && n == int64(int32(n)):
		return oidInt4
	case err == nil || strings.HasPrefix(strings.ToLower(s), "0x"):
		return oidInt8
	}
	return oidFloat8
}

func (ty *typer) castType(lo, hi int) uint32 {
	depth := 0
	for i := hi - 2; i > lo+1; i-- {
		switch t := ty.tokens[i]; {
		case t.is(")"):
			depth++
		case t.is("("):
			depth--
		case t.is("AS") && depth == 0:
			name, _ := typeAt(ty.tokens, i+1)
			return castOID(name)
		}
	}
	return oidUnspecified
}

// caseType returns the common type of the results of CASE.
func (ty *typer) caseType(lo, hi int) (oid uint32) {
	depth, from := 0, -1
	for i := lo; i < hi; i++ {
		t := ty.tokens[i]
		switch {
		case t.is("("), t.is("CASE"):
			depth++
		case depth == 1 && t.isAny("WHEN", "ELSE", "END") && from >= 0:
			oid = common(oid, ty.sub(from, i))
			from = -1
		}
		if t.is(")") || t.is("END") {
			depth--
		}
		if depth == 1 && t.isAny("THEN", "ELSE") {
			from = i + 1
		}
	}
	return oid
}

// functionTypes are the result types of functions. sameAsArgs marks functions that return the type
// of their arguments.
const sameAsArgs = ^uint32(0)

var functionTypes = func() map[string]uint32 {
	m := map[string]uint32{}
	for oid, names := range map[uint32]string{
		oidInt4: `pg_position cardinality array_length array_upper length char_length character_length octet_length bit_length instr strpos position unicode ascii sign json_array_length pg_backend_pid`,
		oidInt8: `count row_number rank dense_rank ntile changes last_insert_rowid total_changes random unixepoch
			pg_relation_size pg_table_size pg_total_relation_size pg_database_size`,
		oidFloat8: `avg total julianday sqrt exp ln log log2 log10 pow power sin cos tan pi percent_rank cume_dist acos asin atan atan2 radians degrees
			date_part`,
		oidText: `array_to_string pg_trim upper lower substr substring trim ltrim rtrim replace hex printf format quote group_concat string_agg typeof char
			date time datetime strftime concat concat_ws
			sqlite_version version current_database current_schema current_user session_user format_type quote_ident
			current_setting set_config pg_get_userbyid pg_size_pretty pg_regclass pg_regtype to_char`,
		oidJSON:        `json json_array json_object json_group_array json_group_object json_patch json_set json_insert json_replace json_remove json_quote`,
		oidBytea:       `zeroblob randomblob unhex`,
		oidBool:        `glob like regexp bool_and bool_or every pg_table_is_visible pg_is_in_recovery json_valid has_table_privilege has_schema_privilege has_database_privilege`,
		oidNumeric:     `extract`,
		oidTimestamp:   `localtimestamp timezone_of timezone`,
		oidTime:        `localtime`,
		oidTimestamptz: `now transaction_timestamp statement_timestamp clock_timestamp pg_postmaster_start_time to_timestamp`,
		oidUUID:        `gen_random_uuid`,
		sameAsArgs:     `sum min max coalesce ifnull nullif iif abs lag lead first_value last_value nth_value round ceil ceiling floor trunc mod date_trunc`,
	} {
		for _, name := range strings.Fields(names) {
			m[name] = oid
		}
	}
	maps.Copy(m, castFunctions)
	return m
}()

// call returns the type of a function call, including FILTER and OVER.
func (ty *typer) call(lo, hi int) uint32 {
	name := strings.ToLower(ty.tokens[lo].name())
	if oid := ty.arrayCall(name, lo, hi); oid != oidUnspecified {
		return oid
	}
	oid, ok := functionTypes[name]
	if !ok || oid != sameAsArgs {
		return oid
	}
	end := min(closing(ty.tokens, lo+1), hi)
	args := splitItems(ty.tokens, lo+2, end)
	switch name {
	case "round", "ceil", "ceiling", "floor", "trunc":
		return oidFloat8
	case "lag", "lead", "nullif", "sum", "abs", "nth_value":
		args = args[:min(1, len(args))]
	case "iif", "date_trunc":
		args = args[min(1, len(args)):]
	}
	oid = oidUnspecified
	for _, a := range args {
		oid = common(oid, ty.sub(a.lo, a.hi))
	}
	switch {
	case name == "sum" && isInt(oid):
		return oidInt8
	case name == "sum", name == "abs":
		return arithmetic(oid, oidInt2)
	case name == "date_trunc" && oid != oidTimestamp:
		return oidTimestamptz
	}
	return oid
}

// item is one expression of a list: tokens lo to hi, without its alias.
type item struct {
	lo, hi int
	star   bool
}

// splitItems cuts tokens[lo:hi] at the commas outside parentheses.
func splitItems(tokens []token, lo, hi int) []item {
	var items []item
	cases, from := 0, lo
	for i := lo; i <= hi; i++ {
		if i == hi || cases == 0 && tokens[i].is(",") {
			if i > from {
				items = append(items, item{from, dropAlias(tokens, from, i), tokens[i-1].is("*") && (i-1 == from || tokens[i-2].is("."))})
			}
			from = i + 1
			continue
		}
		switch {
		case tokens[i].isAny("(", "["):
			i = min(closing(tokens, i), hi-1)
		case tokens[i].is("CASE"):
			cases++
		case tokens[i].is("END") && cases > 0:
			cases--
		}
	}
	return items
}

// dropAlias returns the end of an item without its alias, or of an aggregate's argument without ORDER BY.
func dropAlias(tokens []token, lo, hi int) int {
	for i := lo; i+1 < hi; i++ {
		if tokens[i].isAny("(", "[") {
			i = closing(tokens, i)
		} else if tokens[i].is("ORDER") && tokens[i+1].is("BY") {
			return i
		}
	}
	last := hi - 1
	if last-1 > lo && tokens[last-1].is("AS") {
		return last - 1
	}
	name := tokens[last].kind == kindQuoted || tokens[last].kind == kindIdent && !tokens[last].isAny("END", "ISNULL", "NOTNULL", "NULL")
	if last > lo && name && endsOperand(tokens[last-1]) && !tokens[last-1].isAny("NOT", "IS") && !endsType(tokens, last) {
		return last
	}
	return hi
}

// endsType reports whether token i is the last word of a type name of several words. Such a word looks like an alias.
func endsType(tokens []token, i int) bool {
	prev := tokens[i-1]
	return tokens[i].is("PRECISION") && prev.is("DOUBLE") || tokens[i].is("VARYING") && prev.is("CHARACTER") || tokens[i].is("ZONE") && prev.is("TIME")
}

// selectItems returns the result expressions of a statement: of its first SELECT, the first row of
// VALUES, or RETURNING. It returns nil if there are none.
func selectItems(tokens []token) []item {
	verb := mainVerb(tokens)
	if verb >= len(tokens) {
		return nil
	}
	switch t := tokens[verb]; {
	case t.is("SELECT"):
		lo := verb + 1
		if lo < len(tokens) && tokens[lo].isAny("DISTINCT", "ALL") {
			lo++
		}
		return splitItems(tokens, lo, endOfList(tokens, lo))
	case t.is("VALUES") && verb+1 < len(tokens) && tokens[verb+1].is("("):
		return splitItems(tokens, verb+2, closing(tokens, verb+1))
	}
	for i := len(tokens) - 1; i > verb; i-- {
		if tokens[i].is("RETURNING") {
			return splitItems(tokens, i+1, len(tokens))
		}
	}
	return nil
}

func endOfList(tokens []token, lo int) int {
	for i := lo; i < len(tokens); i++ {
		switch t := tokens[i]; {
		case t.is("("):
			i = closing(tokens, i)
		case i > lo && t.is("FROM") && tokens[i-1].is("DISTINCT"): // IS DISTINCT FROM
		case t.is(")"), t.isAny("FROM", "WHERE", "GROUP", "HAVING", "WINDOW", "UNION", "INTERSECT", "EXCEPT", "ORDER", "LIMIT", ";"):
			return i
		}
	}
	return len(tokens)
}

// mainVerb returns the index of the statement's main keyword: the first token or, after WITH, the
// first verb outside parentheses.
func mainVerb(tokens []token) int {
	if len(tokens) == 0 || !tokens[0].is("WITH") {
		return 0
	}
	depth := 0
	for i, t := range tokens {
		switch {
		case t.is("("):
			depth++
		case t.is(")"):
			depth--
		case depth == 0 && t.isAny("SELECT", "VALUES", "INSERT", "REPLACE", "UPDATE", "DELETE"):
			return i
		}
	}
	return 0
}
