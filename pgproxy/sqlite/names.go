package sqlite

import "strings"

// PostgreSQL names the columns of a query by the functions and the columns behind casts that make them, and what is around
// the query may use these names; SQLite has the whole expressions for names.

// nameItems names the columns of the SELECT at token i, unless it is the statement's own: those get their names when they are described.
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
		if name := expressionName(r.tokens, it.lo, it.hi); name != "" {
			r.after[it.hi-1] = " AS " + quoteIdent(name)
		}
	}
}

// expressionName returns the name that PostgreSQL gives to the result of a call or cast in tokens[lo:hi], "" for other expressions.
func expressionName(tokens []token, lo, hi int) string {
	cast := lo
	for ; cast < hi && !tokens[cast].is("::"); cast++ {
		if tokens[cast].isAny("(", "[") {
			cast = closing(tokens, cast)
		}
	}
	for k := cast; k < hi; k++ { // nothing but casts may follow
		if !tokens[k].is("::") {
			return ""
		}
		_, k = typeAt(tokens, k+1)
	}
	end := min(cast, hi)
	switch name := tokens[lo]; {
	case end == lo, name.kind != kindIdent && name.kind != kindQuoted:
	case end-lo > 2 && tokens[lo+1].is("(") && name.kind == kindIdent && !reserved[strings.ToUpper(name.text)]:
		after := closing(tokens, lo+1) + 1
		if after > end || after < end && !tokens[after].isAny("FILTER", "OVER", "WITHIN") || name.isAny("CAST", "ROW") {
			return ""
		}
		return strings.ToLower(name.text)
	case end < hi && (end == lo+1 || end == lo+3 && tokens[lo+1].is(".")):
		if tokens[end-1].kind == kindQuoted {
			return tokens[end-1].name()
		}
		return strings.ToLower(tokens[end-1].text)
	}
	return ""
}
