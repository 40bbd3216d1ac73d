package pgproxy

import (
	"bytes"
	"iter"
	"maps"
	"slices"
	"unicode/utf8"

	"github.com/headpond/headpond/pgwire"
)

// On servers, statements that clients prepare by the protocol have names of the gateway's. SQL can see that: EXECUTE
// does not find them, PREPARE does not conflict with them, and pg_prepared_statements lists those of all clients.
// Before such SQL the gateway prepares the client's statements under the client's names, in the same write, and
// closes those of other clients. It closes what the client's names leave on the server before the next client's first
// message.

const (
	// maxExposed bounds the texts that are sent for one statement of SQL, in bytes. A larger statement is neither
	// found nor listed.
	maxExposed = 1 << 20
	// maxListed bounds how many statements are prepared for a list: the server answers each separately.
	maxListed = 1000
	// maxStanding bounds the statements under a client's names that are closed one by one. DEALLOCATE ALL removes
	// more.
	maxStanding = 100
	// maxNamed bounds the names that are kept for a text that executes statements by SQL.
	maxNamed = 1000
	// maxExecuted bounds what is read after the words EXECUTE and PREPARE to find a name, in bytes: space, comments,
	// and the name.
	maxExecuted = 256
)

// expose prepares the server for SQL that lists prepared statements: it closes those of other clients, and prepares
// the client's own under their names. It prepares none in a pipeline, nor in a transaction: see listInBlock.
func (m *machine) expose() {
	if m.mode != Transaction || m.server == nil || m.st.skipping || m.st.copyIn {
		return
	}
	m.closeGatewayStatements(nil)
	if !m.mayExpose() || m.st.tx != pgwire.TxIdle {
		return
	}
	for _, name := range m.unlisted() {
		m.exposeNamed(name, true)
	}
}

// firstOf returns the first n names in order. There may be many more, so it does not sort all of them.
func firstOf(names iter.Seq[string], n int) []string {
	var first []string
	full := false // first had n names in order, and has later ones after them
	last := ""    // the n-th of them
	for name := range names {
		if full && name >= last {
			continue
		}
		if first = append(first, name); len(first) == 2*n {
			slices.Sort(first)
			first, full, last = first[:n], true, first[n-1]
		}
	}
	slices.Sort(first)
	return first[:min(len(first), n)]
}

// closeGatewayStatements closes the statements that the gateway has prepared on the server, except for those of the
// texts in but.
func (m *machine) closeGatewayStatements(but map[*sharedText]bool) {
	stmts := &m.server.stmts
	stmts.retireAll(but)
	if len(stmts.stale) == 0 {
		return
	}
	if !m.st.canExecuteOwn() { // in a pipeline
		for name := stmts.nextStale(); name != ""; name = stmts.nextStale() {
			m.closeOnServer(name)
		}
		return
	}
	if m.st.push(op{kind: opOwn}) {
		for name := stmts.nextStale(); name != ""; name = stmts.nextStale() {
			m.ask(&pgwire.Close{Object: pgwire.ObjectStatement, Name: name})
		}
		m.ask(&pgwire.Sync{})
	}
}

// closeOthersStatements closes other clients' statements on the server, before a text of unknown effect.
func (m *machine) closeOthersStatements() {
	if m.mode != Transaction || m.server == nil || m.st.skipping || m.st.copyIn {
		return
	}
	own := make(map[*sharedText]bool, len(m.stmts))
	for _, st := range m.stmts {
		own[st.sharedText] = true
	}
	m.closeGatewayStatements(own)
}

// executedIn returns the names of statements that a text executes or prepares by SQL, if the client's may have to be
// prepared under them first. left is judge's result for the text.
func (m *machine) executedIn(left traces, text []byte) []string {
	if !m.mayExecute(left) {
		return nil
	}
	return executed(withoutNul(text))
}

// executedBound is executedIn for the client's statement of a name, for a Bind. The result must not be changed.
func (m *machine) executedBound(left traces, name []byte) []string {
	if len(name) == 0 {
		return m.executedIn(left, m.unnamed.text)
	}
	if st := m.stmts[string(statementKey(name))]; st != nil {
		return m.executedByText(left, st.sharedText)
	}
	return nil
}

// executedByText is executedIn for a text that is kept. The result must not be changed.
func (m *machine) executedByText(left traces, text *sharedText) []string {
	if !m.mayExecute(left) {
		return nil
	}
	return text.executes
}

// mayExecute reports whether a text may execute the client's statements by SQL, and whether these can be prepared on
// the server now, or after the answers to earlier messages. left is judge's result for the text.
func (m *machine) mayExecute(left traces) bool {
	return left&(traceUnknown|traceStatements) != 0 && (len(m.stmts) > 0 && m.mayExpose() || len(m.stmts)+len(m.pending) > 0 && m.st.canExecuteOwnLater())
}

// exposing are the traces of texts that may execute or list prepared statements.
const exposing = traceUnknown | traceStatements | traceLists

// exposesLater reports whether a text has to wait for the answers to earlier messages, because it lists prepared
// statements, or executes those of names by SQL. left is judge's result for the text.
func (m *machine) exposesLater(left traces, names []string) bool {
	return m.st.canExecuteOwnLater() && (left&traceLists != 0 || slices.ContainsFunc(names, func(name string) bool {
		return m.needsExposing(name) || m.stmts[name] == nil && slices.Contains(m.pending, name) // a Close that the server may have skipped
	}))
}

// needsExposing reports whether exposeNamed would prepare a statement.
func (m *machine) needsExposing(name string) bool {
	st := m.stmts[name]
	if st == nil || m.doubtful[name] || len(st.body) > maxExposed {
		return false
	}
	if old, stands := m.underClientName[name]; stands && old == st {
		return false
	}
	return len(name) < maxName || utf8.ValidString(name) // else the name ends in half a character, which the server would refuse
}

// exposeNames prepares the client's statements of some names under these names.
func (m *machine) exposeNames(names []string) {
	if len(names) == 0 {
		return
	}
	left, now := traces(0), m.shared.knowledge.now.Load()
	for _, name := range names {
		if st := m.stmts[name]; st != nil {
			left |= st.tracesOf(now)
		}
	}
	m.guardLists(left)
	for _, name := range names {
		if m.stmts[name] != nil {
			m.exposeNamed(name, false)
		}
	}
}

// guardLists prepares the server for a text that may list prepared statements. left is judge's result for the text.
func (m *machine) guardLists(left traces) {
	switch {
	case left&traceLists != 0:
		m.expose()
	case left&traceUnread != 0:
		m.closeOthersStatements()
	}
}

// mayExpose reports whether the server would execute a request of the gateway's now.
func (m *machine) mayExpose() bool {
	return m.mode == Transaction && m.server != nil && m.st.canExecuteOwn() && !m.partial && m.st.tx != pgwire.TxFailed
}

// exposeNamed prepares a statement under the client's name. If the server refuses it, the SQL that executes it gets
// the server's error, see notExposed. listed means that the statement is only for a list.
func (m *machine) exposeNamed(name string, listed bool) {
	st := m.stmts[name]
	_, stands := m.underClientName[name]
	if !m.needsExposing(name) || !m.st.push(op{kind: opOwn, name: name, local: listed, existedBefore: stands}) {
		return
	}
	if stands { // otherwise SQL has prepared what has this name
		m.ask(&pgwire.Close{Object: pgwire.ObjectStatement, Name: name})
	}
	m.setUnderClientName(name, st)
	read := present
	if m.canSet() {
		read = m.readingOf(st)
	}
	m.beginReading(read, true)
	m.sendParse(name, st.body)
	m.endReading(read, true, false)
	m.ask(&pgwire.Sync{})
}

// exposeInPipeline is exposeNamed for a statement that is about to be bound behind a Bind that no Sync has followed: an error is the
// client's. It returns false, and has done nothing, in other places.
func (m *machine) exposeInPipeline(name string) bool {
	if m.mode != Transaction || m.st.canExecuteOwn() || m.st.skipping || m.st.copyIn || !m.needsExposing(name) {
		return false
	}
	m.closeStandIn(name)
	m.st.push(op{kind: opInjectedParse, name: name, local: true})
	m.setUnderClientName(name, m.stmts[name])
	m.sendParse(name, m.stmts[name].body)
	return true
}

// notExposed notes the server's error about a statement that exposeNamed sent.
func (m *machine) notExposed(o *op, body []byte) {
	if o.existedBefore {
		m.setUnderClientName(o.name, nil) // closing it may have failed
	} else {
		delete(m.underClientName, o.name)
	}
	said := new(pgwire.ErrorResponse)
	if !o.local && said.Decode(body) == nil {
		m.unexposed = said
	}
}

// inPlaceOfUnexposed returns the error of a statement that could not be exposed, in place of the error of the SQL
// that executes it, if that is what failed; otherwise nil. b is the beginning of that error's body.
func (m *machine) inPlaceOfUnexposed(b []byte) *pgwire.ErrorResponse {
	if m.unexposed == nil || !bytes.Contains(b, []byte("\x00C26000\x00")) && !bytes.Contains(b, []byte("\x00C25P02\x00")) {
		return nil
	}
	return m.unexposed
}

// saveClientNames notes in the server connection's state which of the client's names have statements there.
func (m *machine) saveClientNames() {
	if len(m.underClientName) > maxStanding {
		m.server.flags |= leftPrepare
	}
	m.server.underClientName = m.server.underClientName[:0]
	if m.server.flags&leftPrepare == 0 {
		m.server.underClientName = slices.AppendSeq(m.server.underClientName, maps.Keys(m.underClientName))
		slices.Sort(m.server.underClientName)
	}
}

// closeClientNames closes the statements under the previous client's names, before the first message of a lease.
func (m *machine) closeClientNames() {
	if !m.st.push(op{kind: opOwn}) {
		return
	}
	for _, name := range m.server.underClientName {
		m.ask(&pgwire.Close{Object: pgwire.ObjectStatement, Name: name})
	}
	m.ask(&pgwire.Sync{})
	m.server.underClientName = nil
	clear(m.underClientName)
}

// executedBy returns the names after the words EXECUTE and PREPARE in the body of a Parse. It reads as much as judge
// does, and returns the first maxNamed names in order.
func executedBy(body []byte) []string {
	text := withoutNul(body)
	names := executed(text[:min(len(text), maxJudged)])
	return slices.Clone(names[:min(len(names), maxNamed)])
}

// executed returns the names after the words EXECUTE and PREPARE in a text, sorted, each once. It ignores words in
// comments and strings, except in strings that DO runs. It reads the text once, and allocates only for such names: it
// is called for texts of many clients that have none.
func executed(text []byte) (names []string) {
	names = executedIn(nil, text, false)
	slices.Sort(names)
	return slices.Compact(names)
}

// executedIn adds the names in a text to names. raw means that words in comments and strings count.
func executedIn(names []string, text []byte, raw bool) []string {
	first, do := true, false // the next word begins a statement; the statement is DO
	for i := 0; i < len(text); {
		switch c := text[i]; {
		case inWord[c] && c != '$':
			from := i
			for i < len(text) && inWord[text[i]] {
				i++
			}
			word := text[from:i]
			if isOneOf(word, "execute", "prepare") {
				if name, _ := identifier(string(text[i:min(len(text), i+maxExecuted)])); name != "" {
					names = append(names, statementName(name))
				}
			}
			if first {
				first, do = false, isWord(word, "do")
			}
		case !raw && (c == '\'' || c == '"' || c == '$'):
			n, certain := quotedAt(text, i)
			switch {
			case !certain:
				return executedIn(names, text[i:], true)
			case do && n > 1:
				names = executedIn(names, text[i:i+n], true)
			}
			i += n
		case !raw:
			if c == ';' {
				first, do = true, false
			}
			i += max(1, spaceLength(text[i:], ' '))
		default:
			i++
		}
	}
	return names
}

// quotedAt returns the length of the quoted string or name at a place of a text; 1 for any other dollar sign. certain
// is false if a backslash may or may not hide the end.
func quotedAt(text []byte, at int) (n int, certain bool) {
	switch rest := text[at:]; rest[0] {
	case '$':
		return dollarQuotedEnd(rest), true
	case '"':
		return quotedEnd(rest, false), true
	default:
		escapes := at > 0 && text[at-1]|0x20 == 'e' && (at == 1 || !inWord[text[at-2]])
		n = quotedEnd(rest, escapes)
		for i := 1; i < n; i++ {
			if rest[i] == '\\' && (escapes && rest[i-1] >= 0x80 || !escapes && i == n-2) { // the first case: in some encodings, the backslash is half of a character
				return n, false
			}
		}
		return n, true
	}
}
