package pgproxy

import (
	"bytes"
	"strings"
)

// Statements that define something, by what it may call. Most DDL, such as CREATE TABLE and ADD COLUMN, makes no statement call
// a function, or shows the call in its own text. Triggers, rules, policies, operators, casts, views and the functions behind them hide calls:
// until the catalogs have been read again, no text tells that INSERT runs a new trigger. Such statements have traceHides, and so
// have those of which the text does not tell.

// defined returns the traces of CREATE or ALTER, which precedes the rest of the text.
func (j *textJudge) defined(creates bool) traces {
	rest := j.text[j.at:]
	kind, temporary := objectKind(rest)
	switch {
	case !creates && isOneOf(kind, harmlessAlters...):
		return 0
	case creates && isWord(kind, "index"):
		j.changing, j.indexes = true, true
		return 0
	case creates && isOneOf(kind, harmlessCreates...):
		as := j.createsAs()
		j.creates = j.creates || !as || j.catalog != nil && j.catalog.types // columns may have types of the catalog
		j.changing = j.changing || !temporary && !as
		return 0
	case !hidesByText(kind, temporary || !creates),
		isWord(kind, "type") && bytes.IndexByte(rest, '=') >= 0, // the functions of a base type or a range
		!creates && mentions(rest, "trigger", "rule", "row"):    // that a table enables, and row level security
		return traceDefines | traceHides
	}
	j.changing = j.changing || !temporary
	return traceDefines
}

// objectKind returns the word after CREATE or ALTER for the kind of the object, and whether that is temporary. rest is the text
// behind CREATE or ALTER.
func objectKind(rest []byte) (kind []byte, temporary bool) {
	text := string(rest[:min(len(rest), maxSetName)])
	for {
		next, after := identifier(text)
		switch kind = []byte(next); {
		case isOneOf(kind, "temp", "temporary"):
			temporary = true
		case !isOneOf(kind, "or", "replace", "local", "global", "unlogged", "unique", "recursive"):
			return kind, temporary
		}
		text = after
	}
}

// hidesByText reports whether objects of a kind hide only calls that the text of CREATE or ALTER has. That of a view may have calls
// without parentheses. Temporary objects are their own client's, which keeps its server connection.
func hidesByText(kind []byte, temporary bool) bool {
	return isOneOf(kind, "table", "index", "type", "domain", "schema", "foreign", "server", "statistics", "collation", "text", "default", "large") ||
		isOneOf(kind, harmlessCreates...) || isOneOf(kind, harmlessAlters...) || temporary && isOneOf(kind, "view", "materialized")
}

// hiddenTraces returns the traces of a text that defines tables and the like, after all of it has been read: the calls in the
// text hide behind the names of the tables from now on. Where every statement may call something, the catalog may lack the types of
// columns, or the triggers of a partitioned table.
func (j *textJudge) hiddenTraces() traces {
	calls := j.left&(traceUnknown|traceReads|evident|stated) != 0 || j.configures || j.catalog.ofEveryStatement() != 0
	switch {
	case calls && j.changing:
		return traceDefines | traceHides
	case calls && j.creates:
		return traceDefines
	}
	return 0
}

// definesUnread returns the traces of definitions for a text that is too long to be judged; begins is its beginning. The tags
// of the answers may come only after the text has committed.
func definesUnread(begins []byte) traces {
	word, _ := identifier(string(begins[:min(len(begins), maxSetName)]))
	if isOneOf([]byte(word), "insert", "update", "delete", "merge", "select", "with", "values", "copy") {
		return definesSomewhere(begins) &^ traceHides // probably data
	}
	if isOneOf([]byte(word), "begin", "start", "set") {
		return definesSomewhere(begins)
	}
	return traceDefines | traceHides
}

// definesSomewhere is definesUnread for a text that is not read as SQL.
func definesSomewhere(text []byte) (left traces) {
	for at, name := range words(text) {
		if isOneOf(name, "create", "alter") {
			left |= traceDefines
			if !hidesByText(objectKind(text[at+len(name):])) {
				left |= traceHides
			}
		}
	}
	if left != 0 && mentions(text, "default", "check", "generated", "trigger", "rule", "row") {
		left |= traceHides
	}
	return left
}

// tagDefines is definesUnread for the tag of an answer, since the text of the statement may have been too
// long to be read.
func (m *machine) tagDefines(tag []byte) traces {
	first, rest, _ := strings.Cut(strings.TrimRight(string(tag), "\x00"), " ")
	what, _, _ := strings.Cut(rest, " ")
	kind, left, unread := []byte(what), traceDefines, m.unread || m.hidesLater
	if unread || !hidesByText(kind, true) {
		left |= traceHides
	}
	switch {
	case first == "ALTER" && !isOneOf(kind, harmlessAlters...), first == "CREATE" && (unread || !isOneOf(kind, harmlessCreates...)),
		first == "DO" && unread, first == "IMPORT":
		return left
	case first == "COMMIT": // PREPARED
		return traceDefines
	}
	return 0
}

// words iterates over the words of a text, and their positions.
func words(text []byte) func(yield func(at int, word []byte) bool) {
	return func(yield func(at int, word []byte) bool) {
		for i := 0; i < len(text); {
			if !inWord[text[i]] {
				i++
				continue
			}
			from := i
			for i < len(text) && inWord[text[i]] {
				i++
			}
			if !yield(from, text[from:i]) {
				return
			}
		}
	}
}

// mentions reports whether a text has one of some words.
func mentions(text []byte, list ...string) bool {
	for _, word := range words(text) {
		if isOneOf(word, list...) {
			return true
		}
	}
	return false
}
