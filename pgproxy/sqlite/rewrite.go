package sqlite

import (
	"cmp"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/headpond/headpond/pgwire"
	"zombiezen.com/go/sqlite"
)

// rewritten is a statement in SQLite's dialect.
type rewritten struct {
	sql     string
	locking bool           // contained FOR UPDATE or FOR SHARE
	catalog bool           // reads pg_catalog or information_schema
	params  int            // highest $n
	inOrder bool           // $1, $2, … occur once each, in this order
	plain   string         // sql with ? for every parameter if that is cheaper, see manyParams; else ""
	casts   map[int]uint32 // parameter number → type of its cast, in which it is bound
	marks   []mark
}

// mark maps a position in the rewritten text to one in the client's text.
type mark struct{ out, src int }

// position maps a byte offset in the rewritten text to one in the client's text.
func (r *rewritten) position(out int) int {
	i := sort.Search(len(r.marks), func(i int) bool { return r.marks[i].out > out })
	if i == 0 {
		return 0
	}
	return r.marks[i-1].src
}

// rewriter collects the edits to a statement: text before and after tokens, and replaced tokens.
type rewriter struct {
	sql      string
	tokens   []token
	before   map[int]string // text before token i
	after    map[int]string // text after token i
	replace  map[int]string
	started  map[int]int   // last token of a cast → first token of its operand
	noLock   int           // a FOR before this token does not begin a locking clause
	sets     map[int]int   // end of a FROM clause → number of set-returning functions in its select list
	moves    map[int]moved // first token → moved tokens
	nsets    int           // number of set-returning functions
	written  *written
	counted  int // token of a DEFAULT; place is the number of values before it
	place    int
	conflict bool     // the first ON CONFLICT has been seen
	params   []uint32 // types Parse declared
	stored   bool     // the text is stored in the file's schema
	out      rewritten
}

// rewrite translates one statement from PostgreSQL's dialect to SQLite's: $n, E'…' and $$ strings,
// casts, pg_catalog names, regular expression operators. The contents of strings, quoted names and
// comments do not change, nor does SQLite's own syntax. params are the types that the client
// declared for its parameters.
func rewrite(sql string, params ...uint32) (*rewritten, error) {
	r := &rewriter{sql: sql, params: params, tokens: tokenize(sql), before: map[int]string{}, after: map[int]string{}, replace: map[int]string{}, started: map[int]int{}, sets: map[int]int{}, moves: map[int]moved{}}
	r.out.casts = map[int]uint32{}
	r.out.catalog = r.readsCatalog()
	r.stored = r.at(0).isAny("CREATE", "ALTER")
	for i := 0; i < len(r.tokens); i++ {
		if _, done := r.replace[i]; done { // edited with the construct before it
			continue
		}
		next, err := r.rewriteAt(i)
		if err != nil {
			return nil, err
		}
		i = next
	}
	r.assemble()
	return &r.out, nil
}

// readsCatalog reports whether the statement names one of PostgreSQL's catalogs.
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

// drop removes tokens i to j inclusive.
func (r *rewriter) drop(i, j int) {
	for ; i <= j; i++ {
		r.replace[i] = ""
	}
}

// rewriteAt edits the construct that begins at token i and returns the last token it used.
func (r *rewriter) rewriteAt(i int) (int, error) {
	t := r.tokens[i]
	switch t.kind {
	case kindParam:
		return i, r.param(i)
	case kindString:
		if t.text[0] != '\'' {
			s := stringValue(t.text)
			r.replace[i] = quoteString(s)
			return i, checkText([]byte(s))
		}
	case kindOp:
		return r.operator(i)
	case kindNumber:
		r.number(i)
	case kindQuoted:
		return r.qualified(i), nil
	case kindIdent:
		return r.word(i)
	}
	return i, nil
}

// maxParams is the largest 16-bit count in the protocol.
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
	switch t.text {
	case "::":
		return r.doubleColon(i)
	case "[":
		return i, r.subscript(i)
	case ".":
		return r.fieldOf(i), nil
	case "(":
		r.namedColumns(i)
	}
	if to, ok := matchOperators[t.text]; ok && i > 0 && endsOperand(r.tokens[i-1]) {
		r.match(i, i, to)
	}
	return i, nil
}

// match replaces tokens i to j by a match with an operator of SQLite. SQLite has one REGEXP; the
// pattern of a case-insensitive match gets a prefix.
func (r *rewriter) match(i, j int, to string) {
	r.drop(i, j)
	if strings.HasSuffix(to, "IREGEXP") {
		to = strings.Replace(to, "IREGEXP", "REGEXP", 1) + " '(?i)' ||"
	}
	r.replace[j] = " " + to + " "
}

// endsOperand reports whether t can be the end of an operand, so that a binary operator can follow.
func endsOperand(t token) bool {
	return t.kind != kindOp && !(t.kind == kindIdent && reserved[strings.ToUpper(t.text)]) || t.is(")") || t.is("]")
}

// reserved are keywords that cannot be a type, or a name before an operator or parenthesis.
var reserved = words(`ALL AND AS BETWEEN BY CASE COLLATE CROSS DELETE DISTINCT ELSE ESCAPE EXCEPT EXISTS FROM GLOB
		GROUP HAVING IN INNER INSERT INTERSECT INTO IS JOIN LEFT LIKE ILIKE LIMIT NOT OFFSET ON OR ORDER OUTER REGEXP RETURNING RIGHT
		SELECT SET THEN UNION UPDATE USING VALUES WHEN WHERE WITH FILTER OVER PARTITION DEFAULT CHECK`)

// words returns the set of the words in text.
func words(text string) map[string]bool {
	m := map[string]bool{}
	for _, s := range strings.Fields(text) {
		m[s] = true
	}
	return m
}

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
	if i == 0 || name == "" || !endsOperand(r.tokens[i-1]) || r.tokens[i-1].is("]") && r.tokens[i-1].span == 0 {
		return i, sqlError(pgwire.StateSyntaxError, `syntax error at or near "::"`).at(r.sql, r.tokens[i].start)
	}
	start := r.operandStart(i - 1)
	r.started[last] = start
	r.drop(i, last)
	if start == i-1 && r.boundAs(start, name) {
		return last, nil
	}
	if len(r.before[start]) > maxCasts {
		return i, tooManyCasts(r, i)
	}
	open, end := r.castCode(name)
	r.before[start] = open + r.before[start]
	r.replace[last] = end
	return last, nil
}

// maxCasts bounds the text inserted before an expression for its casts, in bytes: about 1,000
// casts, the depth at which SQLite refuses an expression.
const maxCasts = 5000

func tooManyCasts(r *rewriter, i int) error {
	return sqlError(pgwire.StateProgramLimitExceeded, "too many casts of one expression").at(r.sql, r.tokens[i].start)
}

// castCode returns the text before and after the operand of a cast. In SQL that is stored in the
// file a cast is SQLite's own, because other programs run it, too.
func (r *rewriter) castCode(name string) (open, end string) {
	if strings.HasSuffix(name, "[]") {
		return "pg_array(", ", " + strconv.Itoa(int(castOID(name))) + ")"
	}
	switch name = strings.ToLower(name); name {
	case "regclass", "regtype", "regnamespace", "regrole", "regproc":
		return "pg_" + name + "(", ")"
	case "blob": // SQLite's own cast to blob
		return "CAST(", " AS BLOB)"
	}
	if !r.stored {
		return cmp.Or(castFunction(castOID(name)), castFunction(oidText)) + "(", ")"
	}
	return "CAST(", " AS " + castAffinity(name) + ")"
}

// boundAs reports whether token i is a parameter that is bound in this type, so that its cast can
// be dropped.
func (r *rewriter) boundAs(i int, name string) bool {
	n, to := paramNumber(r.tokens[i]), castOID(name)
	if n < 1 {
		return false
	}
	bound := r.out.casts[n]
	if n <= len(r.params) && r.params[n-1] != oidUnknown {
		bound = cmp.Or(r.params[n-1], bound)
	}
	if strings.HasPrefix(strings.ToLower(name), "reg") {
		r.out.casts[n] = cmp.Or(bound, oidText)
		return false
	}
	switch {
	case castFunction(to) == "":
		return false
	case bound == oidUnspecified, bound == to, isInt(bound) && isInt(to) && bound != oidBool && to != oidBool && numberRank[bound] <= numberRank[to]:
		r.out.casts[n] = cmp.Or(r.out.casts[n], to)
		return true
	}
	return false
}

// number replaces a literal with more digits than a double or a 64-bit integer holds by a cast of its text.
func (r *rewriter) number(i int) {
	s := r.tokens[i].text
	if len(s) <= sqliteDigits || r.stored {
		return
	}
	signed := r.at(i-1).is("-") && !endsOperand(r.at(i-2))
	if signed {
		s = "-" + s
	}
	if v, ok := numericValue(s); ok && v.typ == sqlite.TypeText {
		if signed { // otherwise SQLite would read a double
			r.drop(i-1, i-1)
		}
		r.replace[i] = castFunction(oidNumeric) + "(" + quoteString(s) + ")"
	}
}

// typeAt reads a type name from token i on. It returns the name without schema and length, and its
// last token; "" if there is no type name.
func typeAt(tokens []token, i int) (name string, last int) {
	if i+2 < len(tokens) && tokens[i+1].is(".") && (tokens[i].kind == kindIdent || tokens[i].kind == kindQuoted) {
		i += 2
	}
	if i >= len(tokens) || tokens[i].kind != kindQuoted && (tokens[i].kind != kindIdent || reserved[strings.ToUpper(tokens[i].text)]) {
		return "", i
	}
	if tokens[i].is("ARRAY") {
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
		name = strings.TrimSuffix(name, "[]") + "[]"
	}
	return name, last
}

// assemble writes the edited statement and its position marks.
func (r *rewriter) assemble() {
	w := assembler{r: r, arrays: map[int][]string{}}
	w.write(0, len(r.tokens)-1)
	w.b.WriteString(unnested(r.sql[w.at:]))
	w.join(len(r.tokens))
	r.out.sql = w.b.String()
	if r.out.inOrder && r.out.params > manyParams {
		r.out.plain = plainParams(r.out.sql)
	}
}

// assembler writes tokens and the gaps between them.
type assembler struct {
	r           *rewriter
	b           strings.Builder
	at          int              // end of the last token written
	lastChanged bool             // the last token was edited
	arrays      map[int][]string // moved texts, by the token before which they are written
}

// write writes tokens i to last inclusive.
func (w *assembler) write(i, last int) {
	r := w.r
	for ; i <= last; i++ {
		w.join(i)
		if m, ok := r.moves[i]; ok {
			delete(r.moves, i)
			w.move(i, m)
			i = m.end
			continue
		}
		t := r.tokens[i]
		w.b.WriteString(unnested(r.sql[w.at:t.start]))
		text, changed := r.replace[i]
		if !changed {
			text = t.text
		}
		// An edited token must be separated from its neighbours. The "_" of information_schema_x is
		// the exception.
		edited := changed && text != "_" || r.before[i] != ""
		if w.at == t.start && i > 0 && (edited || w.lastChanged) {
			w.b.WriteByte(' ')
		}
		w.b.WriteString(r.before[i])
		r.out.marks = append(r.out.marks, mark{w.b.Len(), t.start})
		w.b.WriteString(text)
		w.b.WriteString(r.after[i])
		w.at, w.lastChanged = t.end, edited || r.after[i] != ""
	}
}

// move writes moved tokens to their new place.
func (w *assembler) move(i int, m moved) {
	here, marks := w.b.String(), len(w.r.out.marks)
	w.b.Reset()
	w.write(i, m.end)
	w.arrays[m.at] = append(w.arrays[m.at], m.call+"("+w.b.String()+")")
	w.b.Reset()
	w.b.WriteString(here)
	w.r.out.marks, w.lastChanged = w.r.out.marks[:marks], true
}

// join writes the texts that were moved before token i.
func (w *assembler) join(i int) {
	if arrays := w.arrays[i]; arrays != nil {
		w.b.WriteString(w.r.join(i, arrays))
		delete(w.arrays, i)
	}
}

// manyParams is the number of parameters from which plain ? are used: SQLite searches a list for
// each numbered parameter, and the driver asks for the name of each.
const manyParams = 500

// plainParams replaces every ?1 by ?.
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

// unnested returns the blanks and comments between two tokens, with nested comments replaced:
// SQLite would end those earlier.
func unnested(gap string) string {
	if strings.Count(gap, "/*") < 2 {
		return gap
	}
	return " "
}

// stringValue decodes a string token in any of the three notations.
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
