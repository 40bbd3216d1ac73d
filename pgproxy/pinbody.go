package pgproxy

import "strings"

// The parts of judge for statements that define something, and for the bodies of functions, in SQL or PL/pgSQL.

// defines returns what the first word of a statement says about definitions. DROP takes them away: what was known is not wrong after it.
func (j *textJudge) defines(name word) (left traces) {
	switch {
	case j.is(name, "create"):
		if left = traceDefines; j.createsPlain() {
			left, j.creates = 0, !j.createsAs() || j.catalog != nil && j.catalog.types // columns may be of those
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

// createsPlain reports whether CREATE is followed by what hides nothing unless its own text calls something or names something that does: see
// hides. Programs make tables again and again.
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

// createsAs reports whether CREATE TABLE is followed by a query: what that calls is not hidden behind the table.
func (j *textJudge) createsAs() bool {
	rest := string(j.text[j.at:min(len(j.text), j.at+maxSetName)])
	rest, _, _ = strings.Cut(rest, "(")
	for next := ""; rest != ""; {
		if next, rest = identifier(rest); next == "" || strings.EqualFold(next, "as") {
			return next != ""
		}
	}
	return false
}

// harmlessCreates are what CREATE is followed by then.
var harmlessCreates = []string{"table", "index", "sequence", "role", "user", "group", "database", "tablespace", "publication", "subscription"}

// hides returns what a text says that creates tables, once it has been read: what they call is hidden behind their names from now on.
func (j *textJudge) hides() traces {
	if j.creates && (j.left&(traceUnknown|traceAsks|evident|stated) != 0 || j.configures) {
		return traceDefines
	}
	return 0
}

// harmlessAlters are what ALTER is followed by where it changes nothing of what is known.
var harmlessAlters = []string{"role", "user", "group", "system", "sequence", "database", "tablespace", "subscription", "publication"}

// definesUnread is defines for a text that is too long to be judged, by what there is of it: the tags of the answers may come after its commit.
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

// tagDefines is defines for the tag of an answer: the text of the statement was perhaps too long to be seen.
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

// define notes that a statement that may define something is about to run, or has run.
func (m *machine) define() {
	if k := &m.shared.knowledge; k.on && !m.defines && !m.server.standby() {
		m.defines = true
		k.defining()
	}
}

// endDefinition notes that all such statements are over.
func (m *machine) endDefinition() {
	if m.work != nil && m.defines {
		m.defines = false
		m.shared.knowledge.defined()
	}
}

// loseDefinition is endDefinition where the server connection is lost: the server may not have noticed, and run on.
func (m *machine) loseDefinition() {
	if m.work != nil && m.defines {
		m.defines = false
		m.shared.knowledge.lost()
	}
}

// concluded notes that no transaction is open any more. One that was judged by what is out of date now may have left anything.
func (m *machine) concluded() {
	if m.st.empty() {
		m.endDefinition()
		m.unread = false
	}
	m.outdate()
}

// outdate notes that the transaction may have left anything if it was judged by what is out of date now.
func (m *machine) outdate() {
	if m.mode == Transaction && m.epoch != m.shared.knowledge.epoch.Load() {
		m.traces |= traceUnknown
	}
}

// definesSomewhere is defines for a text that is not read as SQL, as much as is there.
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

// onDDL returns what event triggers leave.
func (j *textJudge) onDDL() traces {
	j.ddl = true
	if j.catalog == nil {
		return 0
	}
	return j.catalog.ddl
}

// begun reports whether a word in the body of a function is followed by a statement.
func (j *textJudge) begun(name word) bool {
	for _, w := range []string{"begin", "then", "else", "loop", "atomic"} {
		if j.is(name, w) {
			return true
		}
	}
	return false
}

// inBody returns what a word says in the body of a function, where no tag of an answer tells of SET and RESET.
func (j *textJudge) inBody(name, qualifier word) traces {
	switch {
	case string(j.key(name)) == "pg_settings": // UPDATE sets
		return traceUnknown
	case qualifier != word{}:
	case j.is(name, "set") || j.is(name, "reset") || j.is(name, "discard"):
		if j.first || (j.before == word{}) { // not that of UPDATE
			return traceUnknown
		}
	}
	return 0
}
