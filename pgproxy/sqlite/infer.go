package sqlite

import (
	"maps"
	"strconv"
	"strings"
)

// typer finds the types of expressions from their tokens. SQLite has no static
// types for expressions, but a Describe must answer before a row exists. The
// rules are PostgreSQL's where they are plain; what is not covered comes out as
// oidUnspecified, and the caller sends text.
type typer struct {
	tokens []token
	column func(name string) uint32 // type of a column of a table the statement reads
	params []uint32                 // types of $1, …
}

// sub returns the type of the expression in tokens[lo:hi].
func (ty *typer) sub(lo, hi int) uint32 {
	for hi-lo >= 2 && ty.tokens[lo].is("(") && closing(ty.tokens, lo) == hi-1 {
		lo, hi = lo+1, hi-1
	}
	if lo >= hi {
		return oidUnspecified
	}
	switch t := ty.tokens[lo]; {
	case t.isAny("SELECT", "WITH", "VALUES"):
		oid := uint32(oidUnspecified)
		for _, items := range selectArms(ty.tokens[lo:hi]) {
			if len(items) == 1 && !items[0].star {
				oid = common(oid, ty.sub(lo+items[0].lo, lo+items[0].hi))
			}
		}
		return oid
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
				return oidText, true
			}
			return arithmetic(ty.sub(lo, at), ty.sub(at+1, hi)), true
		}
		if level == 1 && ty.tokens[lo].isAny("NOT", "EXISTS") {
			return oidBool, true
		}
	}
	return 0, false
}

// find returns the last operator of ops outside parentheses and CASE, -1 if none.
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

// arithmetic gives the type of a+b. SQLite computes with 64-bit integers and
// doubles: a result that the type of PostgreSQL does not hold is refused when it is sent.
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

func (ty *typer) primary(lo, hi int) uint32 {
	t := ty.tokens[lo]
	switch {
	case t.is("+") && hi > lo+1: // does nothing in SQLite, to texts too
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
		return ty.leaf(ty.tokens[hi-1])
	}
	return oidUnspecified
}

// leaf gives the type of a literal, parameter or column.
func (ty *typer) leaf(t token) uint32 {
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
	return ty.column(t.name())
}

// numberType gives the type of a literal: of an integer the smallest that holds it.
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

// caseType returns the common type of CASE's results.
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

// functionTypes gives the result types of functions; sameAsArgs is not a type.
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

// call gives the type of a function call, with its FILTER and OVER if any.
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
	depth, from := 0, lo
	for i := lo; i <= hi; i++ {
		if i == hi || depth == 0 && tokens[i].is(",") {
			if i > from {
				items = append(items, item{from, dropAlias(tokens, from, i), tokens[i-1].is("*") && (i-1 == from || tokens[i-2].is("."))})
			}
			from = i + 1
			continue
		}
		switch {
		case tokens[i].isAny("(", "[", "CASE"):
			depth++
		case tokens[i].isAny(")", "]"), tokens[i].is("END") && depth > 0:
			depth--
		}
	}
	return items
}

func dropAlias(tokens []token, lo, hi int) int {
	last := hi - 1
	if last-1 > lo && tokens[last-1].is("AS") {
		return last - 1
	}
	name := tokens[last].kind == kindQuoted || tokens[last].kind == kindIdent && !tokens[last].isAny("END", "ISNULL", "NOTNULL", "NULL")
	if last > lo && name && endsOperand(tokens[last-1]) && !tokens[last-1].isAny("NOT", "IS") {
		return last
	}
	return hi
}

// selectItems returns the result expressions of a statement: of its first
// SELECT, first row of VALUES, or RETURNING; nil if it has none.
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

// maxArms bounds the SELECTs and rows that make the type of a result column.
const maxArms = 100

// selectArms returns the result expressions of each SELECT of a UNION and of
// each row of VALUES, which together give a column its type.
func selectArms(tokens []token) [][]item {
	arms := [][]item{selectItems(tokens)}
	verb := mainVerb(tokens)
	if verb >= len(tokens) || !tokens[verb].isAny("SELECT", "VALUES") {
		return arms
	}
	for i := verb; i < len(tokens) && len(arms) < maxArms; i++ {
		switch {
		case tokens[i].is("("):
			i = closing(tokens, i)
		case tokens[i].is("SELECT") && i > verb:
			arms = append(arms, selectItems(tokens[i:]))
			for k := range arms[len(arms)-1] {
				it := &arms[len(arms)-1][k]
				it.lo, it.hi = it.lo+i, it.hi+i
			}
		case tokens[i].is("VALUES"):
			for i+1 < len(tokens) && tokens[i+1].is("(") && len(arms) < maxArms {
				end := closing(tokens, i+1)
				arms = append(arms, splitItems(tokens, i+2, end))
				if i = end; i+1 < len(tokens) && tokens[i+1].is(",") {
					i++
				}
			}
		}
	}
	return arms
}

func endOfList(tokens []token, lo int) int {
	depth := 0
	for i := lo; i < len(tokens); i++ {
		switch t := tokens[i]; {
		case t.is("("):
			depth++
		case t.is(")"):
			depth--
		case depth == 0 && t.isAny("FROM", "WHERE", "GROUP", "HAVING", "WINDOW", "UNION", "INTERSECT", "EXCEPT", "ORDER", "LIMIT", ";"):
			return i
		}
	}
	return len(tokens)
}

// mainVerb returns the index of the keyword that says what a statement does:
// the first one, or after WITH the first verb outside parentheses.
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
