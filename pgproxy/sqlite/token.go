package sqlite

import (
	"strings"

	"github.com/headpond/headpond/pgwire"
)

// kind is the kind of a token.
type kind byte

const (
	kindIdent  kind = iota // plain identifier or keyword
	kindQuoted             // "x", `x` or [x]
	kindString             // 'x', E'x' or $tag$x$tag$
	kindBlob               // x'00'
	kindNumber
	kindParam // $1, ?1, ?, :a, @a
	kindOp    // everything else, one operator or punctuation mark
)

// token is one lexical element of a statement: sql[start:end].
type token struct {
	kind       kind
	start, end int
	text       string
	span       int // distance to the matching parenthesis or bracket, in tokens; 0 if there is none
}

// is reports whether t is the keyword or operator s (in upper case).
func (t token) is(s string) bool {
	return (t.kind == kindIdent || t.kind == kindOp) && strings.EqualFold(t.text, s)
}

// isAny reports whether t is one of the keywords or operators.
func (t token) isAny(list ...string) bool {
	for _, s := range list {
		if t.is(s) {
			return true
		}
	}
	return false
}

// name returns the identifier t stands for, without quotes.
func (t token) name() string {
	if t.kind != kindQuoted || len(t.text) < 2 {
		return t.text
	}
	q := t.text[len(t.text)-1:]
	return strings.ReplaceAll(t.text[1:len(t.text)-1], q+q, q)
}

// Operators of more than one byte, longest first.
var operators = [...]string{"!~~*", "->>", "!~*", "!~~", "~~*", "#>>", "::", "||", "<=", ">=", "<>", "!=", "==", "<<", ">>", "->", "~*", "!~", "~~"}

// tokenize splits sql into tokens and drops blanks and comments. It never fails: an unterminated
// token reaches to the end of sql, and SQLite then reports the error.
func tokenize(sql string) []token {
	tokens := make([]token, 0, min(len(sql)/4+4, maxTokensAhead))
	var open []int // open parentheses and brackets
	for i := 0; i < len(sql) && len(tokens) <= maxTokens; {
		if n := skipBlank(sql[i:]); n > 0 {
			i += n
			continue
		}
		k, n := scan(sql[i:])
		at := len(tokens)
		if sql[i] == '[' && at > 0 && subscribes(tokens[at-1], i) {
			k, n = kindOp, 1
		}
		tokens = append(tokens, token{kind: k, start: i, end: i + n, text: sql[i : i+n]})
		switch {
		case k != kindOp:
		case sql[i] == '(' || sql[i] == '[':
			open = append(open, at)
		case (sql[i] == ')' || sql[i] == ']') && len(open) > 0:
			from := open[len(open)-1]
			open = open[:len(open)-1]
			if tokens[from].is("(") == (sql[i] == ')') {
				tokens[from].span, tokens[at].span = at-from, from-at
			}
		}
		i += n
	}
	return tokens
}

// subscribes reports whether the bracket at byte i, after t, begins a subscript or belongs to ARRAY. A bracket that
// begins a name in SQLite's notation follows a blank or a comma.
func subscribes(t token, i int) bool {
	return t.is("ARRAY") || t.end == i && (t.kind == kindIdent || t.kind == kindQuoted || t.kind == kindParam || t.is(")") || t.is("]"))
}

// maxTokens bounds the tokens of a client's text. Each takes one or two hundred bytes while the statement is prepared.
// Longer statements are lists of values, which can be sent as parameters.
const maxTokens = 1 << 21

// maxTokensAhead bounds the tokens for which room is allocated in advance: a statement with a large
// literal is long and has few tokens.
const maxTokensAhead = 256

// skipBlank returns the length of the blank or comment at the beginning of s.
func skipBlank(s string) int {
	switch {
	case s[0] == ' ' || s[0] >= '\t' && s[0] <= '\r':
		return 1
	case strings.HasPrefix(s, "--"):
		if n := strings.IndexByte(s, '\n'); n >= 0 {
			return n + 1
		}
		return len(s)
	case strings.HasPrefix(s, "/*"):
		return commentLen(s)
	}
	return 0
}

// commentLen returns the length of the comment at the beginning of s. Comments nest as in
// PostgreSQL, unlike in SQLite.
func commentLen(s string) int {
	depth := 0
	for i := 0; i+1 < len(s); i++ {
		switch s[i : i+2] {
		case "/*":
			depth++
			i++
		case "*/":
			i++
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
	return len(s)
}

// scan returns the kind and length of the token at the beginning of s.
func scan(s string) (kind, int) {
	c := s[0]
	switch {
	case c == '\'':
		return kindString, quotedLen(s, '\'')
	case c == '"' || c == '`':
		return kindQuoted, quotedLen(s, c)
	case c == '[' && isName(s[1:]):
		return kindQuoted, strings.IndexByte(s, ']') + 1
	case (c == 'e' || c == 'E') && len(s) > 1 && s[1] == '\'':
		return kindString, 1 + escapedLen(s[1:])
	case (c == 'x' || c == 'X') && len(s) > 1 && s[1] == '\'':
		return kindBlob, 1 + quotedLen(s[1:], '\'')
	case c == '$':
		return scanDollar(s)
	case c == '?' || (c == ':' || c == '@') && len(s) > 1 && isIdentStart(s[1]):
		return kindParam, 1 + wordLen(s[1:])
	case c >= '0' && c <= '9' || c == '.' && len(s) > 1 && s[1] >= '0' && s[1] <= '9':
		return kindNumber, numberLen(s)
	case isIdentStart(c):
		return kindIdent, identLen(s)
	}
	for _, op := range operators {
		if strings.HasPrefix(s, op) {
			return kindOp, len(op)
		}
	}
	return kindOp, 1
}

// isName distinguishes [name] in SQLite's notation from a subscript: it begins with a letter and is
// closed.
func isName(s string) bool {
	return s != "" && isIdentStart(s[0]) && strings.IndexByte(s, ']') > 0
}

func scanDollar(s string) (kind, int) {
	n := 1 + wordLen(s[1:])
	if n > 1 && s[1] >= '0' && s[1] <= '9' {
		return kindParam, n
	}
	if n < len(s) && s[n] == '$' && !strings.Contains(s[1:n], "$") {
		tag := s[:n+1]
		if end := strings.Index(s[n+1:], tag); end >= 0 {
			return kindString, n + 1 + end + len(tag)
		}
		return kindString, len(s)
	}
	if n == 1 {
		return kindOp, 1
	}
	return kindParam, n
}

// quotedLen returns the length of a token quoted with q, in which q is doubled.
func quotedLen(s string, q byte) int {
	for i := 1; i < len(s); i++ {
		if s[i] != q {
			continue
		}
		if i+1 == len(s) || s[i+1] != q {
			return i + 1
		}
		i++
	}
	return len(s)
}

// escapedLen is quotedLen for an E'…' string, in which a backslash escapes.
func escapedLen(s string) int {
	for i := 1; i < len(s); i++ {
		switch {
		case s[i] == '\\':
			i++
		case s[i] == '\'' && i+1 < len(s) && s[i+1] == '\'':
			i++
		case s[i] == '\'':
			return i + 1
		}
	}
	return len(s)
}

func isIdentStart(c byte) bool {
	return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80
}

func wordLen(s string) int {
	n := 0
	for n < len(s) && (isIdentStart(s[n]) || s[n] >= '0' && s[n] <= '9') {
		n++
	}
	return n
}

// identLen returns the length of an identifier, which may contain $ after its first byte.
func identLen(s string) int {
	n := wordLen(s)
	for n < len(s) && s[n] == '$' {
		n += 1 + wordLen(s[n+1:])
	}
	return n
}

func numberLen(s string) int {
	n := 0
	for n < len(s) {
		c := s[n]
		sign := (c == '+' || c == '-') && n > 0 && (s[n-1] == 'e' || s[n-1] == 'E') && !strings.HasPrefix(s, "0x")
		if !sign && c != '.' && wordLen(s[n:n+1]) == 0 {
			break
		}
		n++
	}
	return n
}

// splitStatements splits sql at the semicolons between statements, not at those in the body of
// CREATE TRIGGER. It leaves out empty statements. More than maxTokens tokens are an error.
func splitStatements(sql string) ([]string, error) {
	var out []string
	tokens := tokenize(sql)
	if len(tokens) > maxTokens {
		return nil, sqlError(pgwire.StateProgramLimitExceeded, "more than %d words in a message", maxTokens).hint("Give values as parameters, or send fewer statements at once.")
	}
	first, depth := 0, 0
	for i, t := range tokens {
		if isTrigger(tokens[first:]) {
			switch {
			case t.is("BEGIN"), t.is("CASE"):
				depth++
			case t.is("END") && depth > 0:
				depth--
			}
		}
		if t.is(";") && depth == 0 {
			if i > first {
				out = append(out, sql[tokens[first].start:t.start])
			}
			first = i + 1
		}
	}
	if first < len(tokens) {
		out = append(out, sql[tokens[first].start:])
	}
	return out, nil
}

func isTrigger(tokens []token) bool {
	if len(tokens) < 3 || !tokens[0].is("CREATE") {
		return false
	}
	return tokens[1].is("TRIGGER") || tokens[1].isAny("TEMP", "TEMPORARY") && tokens[2].is("TRIGGER")
}

// closing returns the index of the parenthesis that closes the one at open, len(tokens) if there is
// none.
func closing(tokens []token, open int) int {
	if open >= len(tokens) || tokens[open].span <= 0 {
		return len(tokens)
	}
	return min(open+tokens[open].span, len(tokens))
}

// opening returns the index of the parenthesis that the one at end closes, -1 if there is none.
func opening(tokens []token, end int) int {
	if tokens[end].span >= 0 {
		return -1
	}
	return max(end+tokens[end].span, -1)
}
