package pgproxy

import "strings"

// The parts of judge for statements that define something, and for the bodies of functions, in SQL or PL/pgSQL.

// defines returns the traces of definitions for the first word of a statement. DROP only removes
// objects, so the catalog stays right.
func (j *textJudge) defines(name word) (left traces) {
	switch {
	case j.is(name, "create"):
		if left = traceDefines; j.createsPlain() {
			left, j.creates = 0, !j.createsAs() || j.catalog != nil && j.catalog.types // columns may have types of the catalog
		}
	case j.is(name, "alter"):
		if next, _ := identifier(string(j.text[j.at:min(len(j.text), j.at+maxSetName)])); !isOneOf([]byte(next), harmlessAlters...) {
			left = traceDefines
		}
	case j.is(name, "import"):
		left = traceDefines
	case j.is(name, "commit"):
		if next, _ := identifier(string(j.text[j.at:min(len(j.text), j.at+maxSetName)])); !isWord([]byte(next), "prepared") {
			return 0
		}
		return traceDefines
	case j.is(name, "drop") || j.is(name, "comment") || j.is(name, "grant") || j.is(name, "revoke") || j.is(name, "security") ||
		j.is(name, "refresh") || j.is(name, "reindex"):
	default:
		return 0
	}
	return left | j.onDDL()
}

// createsPlain reports whether CREATE makes an object that hides calls only if its own text has them,
// see hiddenTraces. Programs create such tables often.
func (j *textJudge) createsPlain() bool {
	rest := string(j.text[j.at:min(len(j.text), j.at+maxSetName)])
	for range 3 {
		var next string
		next, rest = identifier(rest)
		switch word := []byte(next); {
		case isOneOf(word, harmlessCreates...):
			return true
		case !isOneOf(word, "temp", "temporary", "local", "global", "unlogged", "unique"):
			return false
		}
	}
	return false
}

// createsAs reports whether a query follows CREATE TABLE. The query runs at once; its calls do not
// hide behind the table.
func (j *textJudge) createsAs() bool {
	rest := string(j.text[j.at:min(len(j.text), j.at+maxSetName)])
	rest, _, _ = strings.Cut(rest, "(")
	for next := ""; rest != ""; { //nolint:wastedassign // it declares next
		if next, rest = identifier(rest); next == "" || strings.EqualFold(next, "as") {
			return next != ""
		}
	}
	return false
}

// harmlessCreates are the words after CREATE for which createsPlain holds.
var harmlessCreates = []string{"table", "index", "sequence", "role", "user", "group", "database", "tablespace", "publication", "subscription"}

// hiddenTraces returns the traces of a text that creates tables, after all of it has been read: the calls in
// the text hide behind the names of the tables from now on.
func (j *textJudge) hiddenTraces() traces {
	if j.creates && (j.left&(traceUnknown|traceReads|evident|stated) != 0 || j.configures) {
		return traceDefines
	}
	return 0
}

// harmlessAlters are the words after ALTER with which the statement changes nothing that the catalog
// knows.
var harmlessAlters = []string{"role", "user", "group", "system", "sequence", "database", "tablespace", "subscription", "publication"}

// definesUnread is defines for a text that is too long to be judged; begins is its beginning. The tags
// of the answers may come only after the text has committed.
func (m *machine) definesUnread(begins []byte) traces {
	if !m.shared.knowledge.on {
		return 0
	}
	word, _ := identifier(string(begins[:min(len(begins), maxSetName)]))
	if isOneOf([]byte(word), "insert", "update", "delete", "merge", "select", "with", "values", "copy") {
		return definesSomewhere(begins)
	}
	return traceDefines
}

// tagDefines is defines for the tag of an answer, since the text of the statement may have been too
// long to be read.
func (m *machine) tagDefines(tag []byte) bool {
	first, rest, _ := strings.Cut(strings.TrimRight(string(tag), "\x00"), " ")
	what, _, _ := strings.Cut(rest, " ")
	switch first {
	case "ALTER":
		return !isOneOf([]byte(what), harmlessAlters...)
	case "CREATE":
		return m.unread || !isOneOf([]byte(what), harmlessCreates...)
	case "DO":
		return m.unread
	case "IMPORT", "COMMIT": // PREPARED
		return true
	}
	return false
}

// define records that a statement that may define something is about to run, or has run.
func (m *machine) define() {
	if k := m.shared.knowledge; k.on && !m.defines && !m.server.standby() {
		m.defines = true
		k.defining()
		m.doubtCalls()
	}
}

// endDefinition records that the transaction with such statements is over.
func (m *machine) endDefinition() {
	if m.work != nil && m.defines {
		m.defines = false
		m.shared.knowledge.defined()
	}
}

// loseDefinition is endDefinition for a lost server connection: the server may still be running the
// statement.
func (m *machine) loseDefinition() {
	if m.work != nil && m.defines {
		m.defines = false
		m.shared.knowledge.lost()
	}
}

// concluded records that no transaction is open. If the transaction was judged by a catalog that is
// out of date now, it may have left any state.
func (m *machine) concluded() {
	if m.st.empty() {
		m.endDefinition()
		m.unread = false
	}
	m.outdate()
}

// outdate records that the transaction may have left any state if it was judged by a catalog that is
// out of date now.
func (m *machine) outdate() {
	if m.mode == Transaction && m.epoch != m.shared.knowledge.epoch.Load() {
		m.traces |= traceUnknown
	}
}

// definesSomewhere is defines for a text, perhaps only its beginning, that is not read as SQL.
func definesSomewhere(text []byte) traces {
	for i := 0; i < len(text); {
		if !inWord[text[i]] {
			i++
			continue
		}
		from := i
		for i < len(text) && inWord[text[i]] {
			i++
		}
		if isOneOf(text[from:i], "create", "alter") {
			return traceDefines
		}
	}
	return 0
}

// onDDL returns the traces of event triggers.
func (j *textJudge) onDDL() traces {
	j.ddl = true
	if j.catalog == nil {
		return 0
	}
	return j.catalog.ddl
}

// begun reports whether a statement follows a word in the body of a function.
func (j *textJudge) begun(name word) bool {
	for _, w := range []string{"begin", "then", "else", "loop", "atomic"} {
		if j.is(name, w) {
			return true
		}
	}
	return false
}

// inBody returns the traces of a word in the body of a function. Unlike for a client's statements,
// there are no answers whose tags show SET, RESET and DEALLOCATE.
func (j *textJudge) inBody(name, qualifier word) traces {
	switch {
	case string(j.key(name)) == "pg_settings": // UPDATE of this view changes settings
		return traceUnknown
	case qualifier != word{}:
	case j.is(name, "set") || j.is(name, "reset") || j.is(name, "discard") || j.is(name, "deallocate"):
		if j.first || (j.before == word{}) { // not the SET of UPDATE
			return traceUnknown
		}
	}
	return 0
}

// changesLocally reports whether SET in the body of a function changes nothing beyond the transaction.
func (j *textJudge) changesLocally(name word) bool {
	next, _ := identifier(string(j.text[j.at:min(len(j.text), j.at+maxSetName)]))
	return j.is(name, "set") && isOneOf([]byte(next), "local", "transaction", "constraints")
}

// evident returns the traces that the body of a function leaves by its text, without those of which the text gives only
// the possibility, such as EXECUTE, an unknown function, and CREATE, which search_path may make temporary.
func (j *textJudge) evident() traces {
	left := j.left & (traceLocks | traceCursors | traceStatements | traceChannels | stated)
	if j.left&traceLasts != 0 {
		left |= traceObjects
	}
	if j.changes {
		left |= traceUnknown
	}
	return left
}
