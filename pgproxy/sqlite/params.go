package sqlite

import (
	"strconv"
	"strings"
)

func paramNumber(t token) int {
	if t.kind != kindParam {
		return 0
	}
	n, _ := strconv.Atoi(t.text[1:])
	return n
}

// paramList is a list in parentheses that is being read.
type paramList struct {
	open, index int  // token of the parenthesis; number of the element
	in          bool // x IN (…)
	row         bool // a row of VALUES
}

// inferParams sets the unspecified types in ty.params ($1 first) from the context of each
// parameter: a cast, the other operand, the column it is stored in, the operand its list is
// compared with. insertColumns are the types of the columns that an INSERT fills.
func (ty *typer) inferParams(insertColumns []uint32) {
	lists, rowEnd := []paramList{{}}, -1
	for i, t := range ty.tokens {
		top := &lists[len(lists)-1]
		switch {
		case t.is("("):
			prev := ty.at(i - 1)
			row := prev.is("VALUES") || prev.is(",") && rowEnd == i-2
			lists = append(lists, paramList{open: i, in: prev.is("IN"), row: row})
		case t.is(")") && len(lists) > 1:
			if top.row {
				rowEnd = i
			}
			lists = lists[:len(lists)-1]
		case t.is(","):
			top.index++
		case t.kind == kindParam:
			ty.inferParam(i, *top, insertColumns)
		}
	}
}

func (ty *typer) inferParam(i int, l paramList, insertColumns []uint32) {
	n := paramNumber(ty.tokens[i])
	if n < 1 || n > len(ty.params) || ty.params[n-1] != oidUnspecified {
		return
	}
	oid := ty.beside(i)
	alone := ty.at(i-1).isAny("(", ",") && ty.at(i+1).isAny(")", ",")
	switch {
	case oid != oidUnspecified || !alone:
	case l.in:
		oid = ty.operandBefore(l.open - 2)
	case l.row && l.index < len(insertColumns):
		oid = insertColumns[l.index]
	}
	ty.params[n-1] = oid
}

func (ty *typer) at(i int) token {
	if i < 0 || i >= len(ty.tokens) {
		return token{kind: kindOp}
	}
	return ty.tokens[i]
}

// beside infers the type of the parameter at token i from the tokens around it.
func (ty *typer) beside(i int) uint32 {
	prev, next := ty.at(i-1), ty.at(i+1)
	switch {
	case prev.is("(") && ty.at(i-2).is("CAST") && next.is("AS"):
		name, _ := typeAt(ty.tokens, i+2)
		return castOID(name)
	case prev.is("(") && next.is(")") && castFunctions[strings.ToLower(ty.at(i-2).text)] != oidUnspecified:
		return castFunctions[strings.ToLower(ty.at(i-2).text)]
	case prev.is("(") && ty.at(i-2).is("pg_elements"): // x IN (SELECT value FROM json_each(pg_elements($1)))
		return arrayOf(ty.operandBefore(i - 10))
	case prev.is("(") && ty.at(i-2).is("pg_array") && next.is(","):
		oid, _ := strconv.Atoi(ty.at(i + 2).text)
		return uint32(oid)
	case prev.isAny("LIMIT", "OFFSET"):
		return oidInt8
	case prev.isAny("LIKE", "GLOB", "REGEXP", "MATCH", "||", "->", "->>", "ESCAPE"), next.isAny("||", "LIKE", "GLOB", "REGEXP"):
		return oidText
	case prev.isAny(comparisons...) && i > 1:
		return ty.operandBefore(i - 2)
	case prev.is("BETWEEN"):
		return ty.operandBefore(i - 2)
	case prev.is("AND") && ty.at(i-3).is("BETWEEN"):
		return ty.operandBefore(i - 4)
	case next.isAny(comparisons...):
		return ty.operandAfter(i + 2)
	case next.isAny("+", "-", "*", "/", "%"):
		return number(ty.operandAfter(i + 2))
	case prev.isAny("+", "-", "*", "/", "%") && i > 1:
		return number(ty.operandBefore(i - 2))
	}
	return oidUnspecified
}

var comparisons = []string{"=", "==", "<>", "!=", "<", ">", "<=", ">=", "IS", "NOT"}

// number returns oid if it is numeric: an operand of + has a numeric type.
func number(oid uint32) uint32 {
	if numberRank[oid] == 0 || oid == oidBool {
		return oidUnspecified
	}
	return oid
}

// operandBefore returns the type of the operand that ends at token end.
func (ty *typer) operandBefore(end int) uint32 {
	for end > 0 && ty.at(end).isAny("NOT", "IS") {
		end--
	}
	r := rewriter{tokens: ty.tokens}
	if end < 0 {
		return oidUnspecified
	}
	return ty.sub(r.operandStart(end), end+1)
}

// operandAfter returns the type of the operand that begins at token i.
func (ty *typer) operandAfter(i int) uint32 {
	if i >= len(ty.tokens) {
		return oidUnspecified
	}
	end := i
	for ty.at(end+1).is(".") && end+2 < len(ty.tokens) {
		end += 2
	}
	if ty.at(end+1).is("(") || ty.at(end).is("(") {
		if !ty.at(end).is("(") {
			end++
		}
		end = closing(ty.tokens, end)
	}
	return ty.sub(i, min(end+1, len(ty.tokens)))
}

// insertTarget returns the table of an INSERT and its column names (nil for all).
func insertTarget(tokens []token) (table string, columns []string) {
	i := mainVerb(tokens)
	if i >= len(tokens) || !tokens[i].isAny("INSERT", "REPLACE") {
		return "", nil
	}
	for i < len(tokens) && !tokens[i].is("INTO") {
		i++
	}
	i++
	if i+2 < len(tokens) && tokens[i+1].is(".") {
		i += 2
	}
	if i >= len(tokens) {
		return "", nil
	}
	table = tokens[i].name()
	if i+2 < len(tokens) && tokens[i+1].is("AS") {
		i += 2
	}
	if i+1 < len(tokens) && tokens[i+1].is("(") {
		for _, it := range splitItems(tokens, i+2, closing(tokens, i+1)) {
			columns = append(columns, tokens[it.lo].name())
		}
	}
	return table, columns
}
