package pgproxy

import "strings"

// The parts of judge for statements that define something, and for the bodies of functions, in SQL or PL/pgSQL.

// defines returns the traces of definitions for the first word of a statement. DROP only removes
// objects, so the catalog stays right.
func (j *textJudge) defines(name word) (left traces) {
	switch {
	case j.is(name, "create"):
		left = j.defined(true)
	case j.is(name, "alter"):
		left = j.defined(false)
	case j.is(name, "import"):
		left = traceDefines | traceHides
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

// harmlessCreates are the words after CREATE for objects that hide calls only if the text has them, see hiddenTraces.
// Programs create such tables often.
var harmlessCreates = []string{"table", "index", "sequence", "role", "user", "group", "database", "tablespace", "publication", "subscription"}

// harmlessAlters are the words after ALTER with which the statement changes nothing that the catalog
// knows.
var harmlessAlters = []string{"role", "user", "group", "system", "sequence", "database", "tablespace", "subscription", "publication"}

// define records that a statement that may define something is about to run, or has run. left is judge's result for it.
func (m *machine) define(left traces) {
	k := m.shared.knowledge
	if !k.on || left&traceDefines == 0 || m.server.standby() {
		return
	}
	if !m.defines {
		m.defines = true
		k.defining()
		m.doubtCalls()
	}
	if left&traceHides != 0 && !m.hides {
		m.hides = true
		k.beginHiding()
	}
}

// endDefinition records that the transaction with such statements is over.
func (m *machine) endDefinition() {
	if m.work != nil && m.defines {
		k := m.shared.knowledge
		if !m.hides && m.mode == Transaction && k.adds && m.epoch != k.epoch.Load() { // it was judged before DDL that hides calls, perhaps of the same tables
			m.hides = true
			k.beginHiding()
		}
		k.defined(m.hides)
		m.defines, m.hides = false, false
	}
}

// loseDefinition is endDefinition for a lost server connection: the server may still be running the
// statement.
func (m *machine) loseDefinition() {
	if m.work != nil && m.defines {
		m.shared.knowledge.lost(m.hides)
		m.defines, m.hides = false, false
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
