package sqlite

import (
	"cmp"
	"strings"
)

// Names of result columns. PostgreSQL names a column without an alias after the column, function or type in its
// expression, and queries around a subquery use these names. SQLite's name is the whole expression.

// nameItems adds aliases to the columns of the SELECT at token i. The statement's own SELECT is left out: Describe
// names its columns.
func (r *rewriter) nameItems(i int) {
	if !r.stored && i == mainVerb(r.tokens) {
		return
	}
	lo := i + 1
	if r.at(lo).isAny("DISTINCT", "ALL") {
		lo++
	}
	end := endOfList(r.tokens, lo)
	for _, it := range splitItems(r.tokens, lo, end) {
		if it.star || it.hi < end && !r.tokens[it.hi].is(",") {
			continue
		}
		name := expressionName(r.tokens, it.lo, it.hi)
		if name != "" && !ownFunctions[name] && castFunctions[name] == 0 {
			r.after[it.hi-1] = " AS " + quoteIdent(name)
		}
	}
}

// ownFunctions are functions that only the rewriter calls, in addition to castFunctions. Where their result needs a
// name, the rewriter has added it.
var ownFunctions = words("pg_array pg_default pg_elements pg_item pg_list pg_position pg_regclass pg_regnamespace pg_regproc pg_regrole pg_regtype pg_trim timezone_of")

// resultNames returns a name for each select item of a statement. It is "" for columns that keep SQLite's name because
// they have an alias or are plain columns.
func resultNames(tokens []token) []string {
	items := selectItems(tokens)
	names := make([]string, len(items))
	for k, it := range items {
		if !it.star && (it.hi == len(tokens) || !aliased(tokens, it.hi)) && !plainColumn(tokens[it.lo:it.hi]) {
			names[k] = cmp.Or(expressionName(tokens, it.lo, it.hi), "?column?")
		}
	}
	return names
}

// repeatedName returns the name of a column that a star stands for. When a subquery has several columns of one name,
// SQLite numbers the later ones (a, a:1) and PostgreSQL does not. origin is the table column it comes from, earlier are
// the columns before it. Source: sqlite3ColumnsFromExprList of SQLite
func repeatedName(name, origin string, earlier []column) string {
	colon := strings.LastIndexByte(name, ':')
	if colon < 0 || name == origin || strings.Trim(name[colon+1:], "0123456789") != "" {
		return name
	}
	for i := range earlier {
		if strings.EqualFold(earlier[i].Name, name[:colon]) {
			return earlier[i].Name
		}
	}
	return name
}

// itemName returns the name of a select item, including one from its alias.
func itemName(tokens []token, it item) string {
	switch {
	case it.hi < len(tokens) && tokens[it.hi].is("AS") && it.hi+1 < len(tokens):
		return nameOf(tokens[it.hi+1])
	case it.hi < len(tokens) && aliased(tokens, it.hi):
		return nameOf(tokens[it.hi])
	}
	name, _ := figure(tokens, it.lo, it.hi)
	return cmp.Or(name, "?column?")
}

// aliased reports whether an alias begins at token i, the first token after an item.
func aliased(tokens []token, i int) bool {
	return tokens[i].is("AS") || (tokens[i].kind == kindIdent || tokens[i].kind == kindQuoted) && !endsItem(tokens[i]) && !tokens[i].is("FROM")
}

// plainColumn reports whether an item is just a column.
func plainColumn(item []token) bool {
	for i, t := range item {
		if i%2 == 1 && !t.is(".") || i%2 == 0 && t.kind != kindIdent && t.kind != kindQuoted {
			return false
		}
	}
	return !(len(item) == 1 && item[0].kind == kindIdent && valueWords[strings.ToUpper(item[0].text)])
}

// valueWords are words that look like a column and are values.
var valueWords = words(`TRUE FALSE NULL CURRENT_DATE CURRENT_TIME CURRENT_TIMESTAMP LOCALTIME LOCALTIMESTAMP
	CURRENT_USER SESSION_USER CURRENT_ROLE CURRENT_SCHEMA CURRENT_CATALOG`)

// expressionName returns PostgreSQL's name for the result of the expression in tokens[lo:hi], "" for ?column?
// (FigureColname in its parse_target.c).
func expressionName(tokens []token, lo, hi int) string {
	if lo+1 == hi || lo+3 == hi && tokens[lo+1].is(".") {
		if plainColumn(tokens[lo:hi]) {
			return "" // SQLite gives it the same name
		}
	}
	name, _ := figure(tokens, lo, hi)
	return name
}

// figure is expressionName. sure is false if the name comes from a type only; a cast around the expression then
// replaces it.
func figure(tokens []token, lo, hi int) (name string, sure bool) {
	if lo >= hi || hi > len(tokens) {
		return "", false
	}
	name, sure, next := figurePrimary(tokens, lo, hi)
	for next < hi {
		switch t := tokens[next]; {
		case t.is("::"):
			typ, last := typeAt(tokens, next+1)
			if typ == "" {
				return "", false
			}
			if !sure {
				name = castName(typ)
			}
			next = last + 1
		case t.is("["):
			next = closing(tokens, next) + 1
		case t.is(".") && next+1 < hi && next > lo && tokens[next-1].is(")"): // (x).field
			name, sure, next = nameOf(tokens[next+1]), true, next+2
		case t.is("COLLATE"):
			for next += 2; next+1 < hi && tokens[next].is("."); next += 2 {
			}
		case t.is("AT") && next+4 <= hi && tokens[next+1].is("TIME") && tokens[next+2].is("ZONE"):
			name, sure, next = "timezone", true, next+4
		default: // an operator follows
			return "", false
		}
	}
	return name, sure
}

// figurePrimary is figure for the first operand of the expression at lo. next is the token after
// that operand.
func figurePrimary(tokens []token, lo, hi int) (name string, sure bool, next int) {
	t, end := tokens[lo], hi
	opens := lo+1 < hi && tokens[lo+1].isAny("(", "[")
	if opens {
		end = closing(tokens, lo+1)
	}
	switch {
	case t.is("("):
		end = closing(tokens, lo)
		name, sure = figureInside(tokens, lo+1, min(end, hi))
	case t.kind == kindQuoted:
		return figureNamed(tokens, lo, hi)
	case t.kind != kindIdent:
		return "", false, lo + 1
	case t.is("CASE"):
		return figureCase(tokens, lo, hi)
	case t.is("CAST") && opens:
		as := end - 1
		for ; as > lo+1 && !tokens[as].is("AS"); as-- {
			if tokens[as].is(")") {
				as = opening(tokens, as)
			}
		}
		if as <= lo+1 {
			return "", false, end + 1
		}
		if name, sure = figure(tokens, lo+2, as); !sure {
			typ, _ := typeAt(tokens, as+1)
			name = castName(typ)
		}
	case t.isAny("EXISTS", "ARRAY", "ROW") && opens:
		name, sure = strings.ToLower(t.text), true
	case reserved[strings.ToUpper(t.text)] || t.isAny("NULL", "TRUE", "FALSE"):
		return "", false, lo + 1
	default:
		if typ, last := typeAt(tokens, lo); typ != "" && last+1 < hi && tokens[last+1].kind == kindString {
			return castName(typ), false, last + 2
		}
		return figureNamed(tokens, lo, hi)
	}
	return name, sure, end + 1
}

// figureInside is figure for parentheses. A subquery has the name of its column.
func figureInside(tokens []token, lo, hi int) (name string, sure bool) {
	if !tokens[min(lo, len(tokens)-1)].isAny("SELECT", "WITH", "VALUES") {
		return figure(tokens, lo, hi)
	}
	query := tokens[lo:hi]
	items := selectItems(query)
	if len(items) == 0 || items[0].star {
		return "", false
	}
	if query[mainVerb(query)].is("VALUES") {
		return "column1", true
	}
	return itemName(query, items[0]), true
}

// figureCase is figure for the CASE at token lo. It has the name of the expression after ELSE.
func figureCase(tokens []token, lo, hi int) (name string, sure bool, next int) {
	depth, otherwise := 0, -1
	for i := lo; i < hi; i++ {
		switch t := tokens[i]; {
		case t.isAny("(", "["):
			i = closing(tokens, i)
		case t.is("CASE"):
			depth++
		case t.is("ELSE") && depth == 1:
			otherwise = i
		case t.is("END"):
			if depth--; depth > 0 {
				continue
			}
			if otherwise > 0 {
				name, sure = figure(tokens, otherwise+1, i)
			}
			if !sure {
				name = "case"
			}
			return name, sure, i + 1
		}
	}
	return "", false, hi
}

// calledAs are functions that PostgreSQL's grammar renames.
var calledAs = map[string]string{"trim": "btrim"}

// figureNamed is figure for the column or function call at token lo.
func figureNamed(tokens []token, lo, hi int) (name string, sure bool, next int) {
	i := lo
	for i+2 < hi && tokens[i+1].is(".") && tokens[i+2].kind != kindOp {
		i += 2
	}
	name, next = nameOf(tokens[i]), i+1
	if next >= hi || !tokens[next].is("(") {
		return name, true, next
	}
	end := closing(tokens, next)
	if name == "trim" && next+1 < hi {
		switch side := tokens[next+1]; {
		case side.is("LEADING"):
			name = "ltrim"
		case side.is("TRAILING"):
			name = "rtrim"
		}
	}
	if to := calledAs[name]; to != "" && tokens[i].kind == kindIdent {
		name = to
	}
	for next = end + 1; next < hi && tokens[next].isAny("FILTER", "OVER", "WITHIN"); {
		for next++; next < hi && tokens[next].isAny("GROUP"); next++ {
		}
		if next < hi && tokens[next].is("(") {
			next = closing(tokens, next)
		}
		next++
	}
	return name, true, next
}

// nameOf returns a name as PostgreSQL reads it.
func nameOf(t token) string {
	if t.kind == kindIdent {
		return strings.ToLower(t.text)
	}
	return t.name()
}

// castName returns the name of a type in PostgreSQL's catalog, which names the result of a cast.
func castName(typ string) string {
	typ = strings.ToLower(strings.TrimRight(typ, "[]"))
	if strings.HasPrefix(typ, "reg") {
		return typ
	}
	if oid := castOID(typ); oid != oidFloat8 && oid != oidUnspecified && oid != oidText {
		return strings.TrimPrefix(castFunction(oid), "pg_")
	}
	switch typ {
	case "real", "float4":
		return "float4"
	case "float", "double", "float8":
		return "float8"
	}
	return typ
}
