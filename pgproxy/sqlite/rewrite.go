package sqlite

import (
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/headpond/headpond/pgwire"
)

// rewritten is a statement in SQLite's dialect.
type rewritten struct {
	sql     string
	locking bool           // had FOR UPDATE or FOR SHARE
	catalog bool           // reads pg_catalog or information_schema
	params  int            // highest $n
	inOrder bool           // $1, $2, … occur once each, in this order
	plain   string         // sql with ? for each, if that is better; else ""
	casts   map[int]uint32 // types of parameters that are cast, by number
	marks   []mark
}

// mark ties a place in the rewritten text to its place in the client's.
type mark struct{ out, src int }

// position maps a byte offset of the rewritten text to one of the client's.
func (r *rewritten) position(out int) int {
	i := sort.Search(len(r.marks), func(i int) bool { return r.marks[i].out > out })
	if i == 0 {
		return 0
	}
	return r.marks[i-1].src
}

// rewriter holds the edits to a statement: text before tokens, and tokens replaced.
type rewriter struct {
	sql     string
	tokens  []token
	before  map[int]string // text in front of token i
	replace map[int]string
	started map[int]int // last token of a cast → first token of its operand
	noLock  int         // no FOR before this token begins a locking clause
	out     rewritten
}

// rewrite turns one statement of PostgreSQL's dialect into SQLite's: $n, E”
// and $$ strings, casts, pg_catalog names, regular expression operators. Texts
// in strings, quoted names and comments are left alone, and what is SQLite's
// already comes back unchanged.
func rewrite(sql string) (*rewritten, error) {
	r := &rewriter{sql: sql, tokens: tokenize(sql), before: map[int]string{}, replace: map[int]string{}, started: map[int]int{}}
	r.out.casts = map[int]uint32{}
	r.out.catalog = r.readsCatalog()
	for i := 0; i < len(r.tokens); i++ {
		next, err := r.rewriteAt(i)
		if err != nil {
			return nil, err
		}
		i = next
	}
	r.assemble()
	return &r.out, nil
}

// readsCatalog reports whether a name of PostgreSQL's catalogs occurs.
func (r *rewriter) readsCatalog() bool {
	for _, t := range r.tokens {
		if t.kind != kindIdent && t.kind != kindQuoted {
			continue
		}
		name := strings.ToLower(t.name())
		if strings.HasPrefix(name, "pg_") || strings.HasPrefix(name, "information_schema") {
			return true
		}
	}
	return false
}

func (r *rewriter) at(i int) token {
	if i < 0 || i >= len(r.tokens) {
		return token{kind: kindOp}
	}
	return r.tokens[i]
}

// drop removes the tokens from i to j, both included.
func (r *rewriter) drop(i, j int) {
	for ; i <= j; i++ {
		r.replace[i] = ""
	}
}

// rewriteAt edits what begins at token i and returns the last token it used.
func (r *rewriter) rewriteAt(i int) (int, error) {
	t := r.tokens[i]
	switch t.kind {
	case kindParam:
		return i, r.param(i)
	case kindString:
		if t.text[0] != '\'' {
			r.replace[i] = quoteString(stringValue(t.text))
		}
	case kindOp:
		return r.operator(i)
	case kindQuoted:
		return r.schema(i, t.name()), nil
	case kindIdent:
		return r.word(i)
	}
	return i, nil
}

// maxParams is what the protocol's 16-bit count can carry.
const maxParams = 65535

func (r *rewriter) param(i int) error {
	t := r.tokens[i]
	n, err := strconv.Atoi(t.text[1:])
	if t.text[0] != '$' && t.text[0] != '?' || err != nil {
		return sqlError(pgwire.StateSyntaxError, "parameter %q is not written as $1, $2, …", t.text).at(r.sql, t.start)
	}
	if n < 1 || n > maxParams {
		return sqlError(pgwire.StateUndefinedParameter, "there is no parameter %s", t.text).at(r.sql, t.start)
	}
	r.out.inOrder = n == r.out.params+1 && (n == 1 || r.out.inOrder)
	r.out.params = max(r.out.params, n)
	r.replace[i] = "?" + t.text[1:]
	return nil
}

// matchOperators maps PostgreSQL's matching operators.
var matchOperators = map[string]string{
	"~": "REGEXP", "!~": "NOT REGEXP", "~*": "IREGEXP", "!~*": "NOT IREGEXP",
	"~~": "LIKE", "!~~": "NOT LIKE", "~~*": "LIKE", "!~~*": "NOT LIKE",
}

func (r *rewriter) operator(i int) (int, error) {
	t := r.tokens[i]
	if t.text == "::" {
		return r.doubleColon(i)
	}
	if to, ok := matchOperators[t.text]; ok && i > 0 && endsOperand(r.tokens[i-1]) {
		r.match(i, i, to)
	}
	return i, nil
}

// match writes a matching operator in place of tokens i to j. SQLite has one
// REGEXP; for the case-insensitive one the pattern gets a prefix.
func (r *rewriter) match(i, j int, to string) {
	r.drop(i, j)
	if strings.HasSuffix(to, "IREGEXP") {
		to = strings.Replace(to, "IREGEXP", "REGEXP", 1) + " '(?i)' ||"
	}
	r.replace[j] = " " + to + " "
}

// endsOperand reports whether a binary operator can follow t.
func endsOperand(t token) bool {
	return t.kind != kindOp && !(t.kind == kindIdent && reserved[strings.ToUpper(t.text)]) || t.is(")") || t.is("]")
}

// reserved are keywords that cannot be a type, nor a name before an operator or parenthesis.
var reserved = func() map[string]bool {
	m := map[string]bool{}
	for _, s := range strings.Fields(`ALL AND AS BETWEEN BY CASE COLLATE CROSS DELETE DISTINCT ELSE ESCAPE EXCEPT EXISTS FROM GLOB
		GROUP HAVING IN INNER INSERT INTERSECT INTO IS JOIN LEFT LIKE ILIKE LIMIT NOT OFFSET ON OR ORDER OUTER REGEXP RETURNING RIGHT
		SELECT SET THEN UNION UPDATE USING VALUES WHEN WHERE WITH FILTER OVER PARTITION DEFAULT CHECK`) {
		m[s] = true
	}
	return m
}()

// operandStart returns the first token of the operand that ends at token end.
func (r *rewriter) operandStart(end int) int {
	if s, ok := r.started[end]; ok {
		return s
	}
	i := end
	if r.at(i).is(")") {
		if i = opening(r.tokens, i); i < 0 {
			return 0
		}
		if p := r.at(i - 1); (p.kind == kindIdent && !reserved[strings.ToUpper(p.text)]) || p.kind == kindQuoted {
			i--
		} else {
			return i
		}
	}
	for i >= 2 && r.at(i-1).is(".") {
		i -= 2
	}
	return i
}

func (r *rewriter) doubleColon(i int) (int, error) {
	name, last := typeAt(r.tokens, i+1)
	if i == 0 || name == "" || !endsOperand(r.tokens[i-1]) {
		return i, sqlError(pgwire.StateSyntaxError, `syntax error at or near "::"`).at(r.sql, r.tokens[i].start)
	}
	start := r.operandStart(i - 1)
	if n := paramNumber(r.tokens[start]); n > 0 && start == i-1 && r.out.casts[n] == 0 {
		r.out.casts[n] = castOID(name)
	}
	open, end := castCode(name)
	if len(r.before[start]) > maxCasts {
		return i, sqlError(pgwire.StateProgramLimitExceeded, "too many casts of one expression").at(r.sql, r.tokens[i].start)
	}
	r.before[start] = open + r.before[start]
	r.drop(i, last)
	r.replace[last] = end
	r.started[last] = start
	return last, nil
}

// maxCasts bounds what the casts of one expression put before it, in bytes:
// about 1,000 of them, the depth of an expression at which SQLite gives up.
const maxCasts = 5000

// castCode returns the text before and after the operand of a cast.
func castCode(name string) (open, end string) {
	switch name = strings.ToLower(name); name {
	case "regclass", "regtype", "regnamespace", "regrole", "regproc":
		return "pg_" + name + "(", ")"
	case "bool", "boolean":
		return "pg_bool(", ")"
	case "bytea":
		return "pg_bytea(", ")"
	}
	return "CAST(", " AS " + castAffinity(name) + ")"
}

// typeAt reads a type name from token i on and returns it without
// qualification and length, and its last token; "" if there is none.
func typeAt(tokens []token, i int) (name string, last int) {
	if i+2 < len(tokens) && tokens[i+1].is(".") {
		i += 2
	}
	if i >= len(tokens) || tokens[i].kind != kindQuoted && (tokens[i].kind != kindIdent || reserved[strings.ToUpper(tokens[i].text)]) {
		return "", i
	}
	name, last = tokens[i].name(), i
	next := func(words ...string) bool {
		for k, w := range words {
			if last+1+k >= len(tokens) || !tokens[last+1+k].is(w) {
				return false
			}
		}
		last += len(words)
		return true
	}
	if strings.EqualFold(name, "double") {
		next("PRECISION")
	} else if strings.EqualFold(name, "character") {
		next("VARYING")
	}
	if last+1 < len(tokens) && tokens[last+1].is("(") {
		end := closing(tokens, last+1)
		if end == len(tokens) || slices.ContainsFunc(tokens[last:end], func(t token) bool { return t.kind == kindString }) {
			return "", i
		}
		last = end
	}
	if next("WITH", "TIME", "ZONE") {
		name += "tz"
	} else {
		next("WITHOUT", "TIME", "ZONE")
	}
	for next("[", "]") {
		name = "text"
	}
	return name, last
}

// assemble writes the edited statement and the map back to its source.
func (r *rewriter) assemble() {
	var b strings.Builder
	at, lastChanged := 0, false
	for i, t := range r.tokens {
		b.WriteString(unnested(r.sql[at:t.start]))
		text, changed := r.replace[i]
		if !changed {
			text = t.text
		}
		// An edited token must not grow together with its neighbour; only the
		// "_" of information_schema_x is to.
		edited := changed && text != "_" || r.before[i] != ""
		if at == t.start && i > 0 && (edited || lastChanged) {
			b.WriteByte(' ')
		}
		b.WriteString(r.before[i])
		r.out.marks = append(r.out.marks, mark{b.Len(), t.start})
		b.WriteString(text)
		at, lastChanged = t.end, edited
	}
	b.WriteString(unnested(r.sql[at:]))
	r.out.sql = b.String()
	if r.out.inOrder && r.out.params > manyParams {
		r.out.plain = plainParams(r.out.sql)
	}
}

// manyParams is from when on a parameter's number costs more than it is worth:
// SQLite keeps numbers in a list, and the driver asks for each one's name.
const manyParams = 500

// plainParams turns every ?1 into ?.
func plainParams(sql string) string {
	var b strings.Builder
	at := 0
	for _, t := range tokenize(sql) {
		if t.kind == kindParam {
			b.WriteString(sql[at : t.start+1])
			at = t.end
		}
	}
	b.WriteString(sql[at:])
	return b.String()
}

// unnested returns the blanks and comments between two tokens without comments
// that SQLite might see end elsewhere.
func unnested(gap string) string {
	if strings.Count(gap, "/*") < 2 {
		return gap
	}
	return " "
}

// stringValue decodes a string token of any of the three notations.
func stringValue(text string) string {
	switch text[0] {
	case '$':
		n := strings.IndexByte(text[1:], '$') + 2
		return text[n:max(n, len(text)-n)]
	case '\'':
		return strings.ReplaceAll(strings.TrimSuffix(text[1:], "'"), "''", "'")
	}
	return unescape(strings.TrimSuffix(text[2:], "'"))
}

func quoteString(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

func quoteIdent(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }
