package pgproxy

import (
	"bytes"
	"crypto/rand"
	"slices"
	"strings"
	"unique"

	"github.com/headpond/headpond/pgwire"
)

// A server reads the text of a statement when it parses it, under the settings of that moment: the encoding, the
// backslashes in strings, and literals such as dates. Another search_path makes it read the literals again, from the
// strings that it has. So a statement that is parsed again, after its client has changed such settings, is parsed under
// those of before: the gateway sets them in front of the Parse, and the client's own behind it.

// readNames are the settings under which a text is read, those of strings first. Servers report all of them.
var readNames = [...]string{"client_encoding", "standard_conforming_strings", "DateStyle", "IntervalStyle", "TimeZone"}

// ofStrings is how many of readNames are about strings, which are read once.
const ofStrings = 2

// reading has a value for each of readNames.
type reading [len(readNames)]string

// inPlan returns what replan has put into a plan: the reading, and the search_path.
func inPlan(plan string) (r reading, path string) {
	for _, name := range trackedNames {
		if !planned(name) {
			continue
		}
		value, rest, _ := strings.Cut(plan, "\x00")
		if i := slices.Index(readNames[:], name); i >= 0 {
			r[i] = value
		} else {
			path = value
		}
		plan = rest
	}
	if set, ok := settingIn(plan, "search_path"); ok {
		path = set
	}
	return r, path
}

// present stands for the settings of a plan, where a reading is wanted.
var present unique.Handle[reading]

// readAs returns the reading of a text that was parsed, or last bound, under the settings of a plan, and with a reading
// if that is not present. again means that its literals are read again under the present settings.
func (m *machine) readAs(plan unique.Handle[string], read unique.Handle[reading], again bool) unique.Handle[reading] {
	if plan == m.plan && !again {
		return read
	}
	was, path := inPlan(plan.Value())
	if read != present {
		was = read.Value()
	}
	now, nowPath := inPlan(m.plan.Value())
	if path != nowPath || again {
		copy(was[ofStrings:], now[ofStrings:])
	}
	if was == now || slices.Contains(was[:], "") || !isASCII(strings.Join(was[:], "")) {
		return present
	}
	return unique.Make(was)
}

// moments tell which statements of a client a server would read again when they are used: those of another moment than now.
type moments struct {
	now, last uint32
	before    uint32 // now, if the open transaction, which has made the client's temporary schema, is undone
}

// readAgain notes that the server reads the literals of all its statements again when they are used. They are parsed again:
// a client may use one behind a SET that is not answered, and the server would read the literals of all its clients under that.
func (m *machine) readAgain() {
	m.moments.last += 2
	m.moments.now, m.moments.before = m.moments.last, m.moments.last-1
	m.server.stmts.retireLiterals()
}

// madeTemps notes that the server has completed a statement that makes a temporary table. The client's first one makes its
// temporary schema, which changes what a search_path stands for.
func (m *machine) madeTemps() {
	if !m.tempsOpen && !m.tempSchema {
		m.moments.last++
		m.moments.before, m.moments.now = m.moments.now, m.moments.last
	}
	m.tempsOpen = true
}

// completedTemps calls madeTemps if a message is the end of the answer to such a statement, and endTemps if it is that to COMMIT,
// behind which the same request may fail, or another transaction may begin.
func (m *machine) completedTemps(o *op, msg message) {
	commits := msg.typ == pgwire.TypeCommandComplete && string(msg.body) == "COMMIT\x00"
	if o != nil && o.temps && !m.refusedReplay && (commits || msg.typ == pgwire.TypeReadyForQuery || msg.typ == pgwire.TypeCommandComplete && o.kind == opExecute) {
		m.madeTemps()
	}
	if commits {
		m.endTemps(false)
	}
}

// endTemps notes that the transaction is over, or undone.
func (m *machine) endTemps(undone bool) {
	if undone && m.server.left.temps != nobody { // perhaps its temporary schema is gone again
		m.server.stmts.retireRead()
	}
	if !m.tempsOpen {
		return
	}
	m.tempsOpen = false
	if undone {
		m.server.stmts.retireLiterals()
	}
	switch {
	case m.tempSchema:
	case undone:
		m.moments.now = m.moments.before
	default:
		m.tempSchema = true
	}
}

// hasLiterals reports whether the text in the body of a Parse has strings that are read there, or other characters than those of
// ASCII. Those of SET, COMMIT PREPARED and other utility statements are read when they are executed, unless the settings of strings
// matter: and behind a query for the reading, servers would refuse those that must not run in a transaction.
func hasLiterals(body []byte) bool {
	text, _, _ := bytes.Cut(body, []byte{0})
	later := !analyzed(text) && !bytes.ContainsRune(text, '\\')
	for i, c := range text {
		switch {
		case c >= 0x80, c == '\'' && !later:
			return true
		case c == '$' && !later && i+1 < len(text) && (text[i+1] < '0' || text[i+1] > '9'):
			return true
		}
	}
	return false
}

// analyzed reports whether servers read the literals of a statement when they parse it.
func analyzed(text []byte) bool {
	text = text[spaceLength(text, ';'):]
	n := 0
	for n < len(text) && inIdentifier(text[n]) {
		n++
	}
	if isWord(text[:n], "create") {
		return createsAs(text[n:])
	}
	return n == 0 || isOneOf(text[:n], "select", "insert", "update", "delete", "merge", "values", "with", "table", "declare", "explain", "call")
}

// createsAs reports whether the text behind CREATE may be that of CREATE TABLE AS or CREATE MATERIALIZED VIEW.
func createsAs(text []byte) bool {
	for {
		text = text[spaceLength(text, 0):]
		switch {
		case firstWord(text, "table"), firstWord(text, "materialized"):
			text = bytes.ToLower(text)
			return bytes.Contains(text, []byte("as")) && (bytes.Contains(text, []byte("select")) || bytes.Contains(text, []byte("values")))
		case firstWord(text, "temp"), firstWord(text, "temporary"), firstWord(text, "unlogged"), firstWord(text, "local"), firstWord(text, "global"):
			for len(text) > 0 && inIdentifier(text[0]) {
				text = text[1:]
			}
		default:
			return false
		}
	}
}

// mayChange notes that a message may change settings, or does not, before it is pushed, and that servers read literals again
// behind it. synced means that its answer ends with ReadyForQuery, before which the server reports them.
func (m *machine) mayChange(may, again, synced bool) {
	known := m.knowsSettings()
	m.readsAgain = may && again || m.readsAgain && !known
	m.settingsOpen = may || !known
	m.settingsUnsynced = !synced && (may || m.settingsUnsynced)
}

// noteBind is mayChange for a Bind. It returns op.ends.
func (m *machine) noteBind(name []byte, st *statement, left traces) (ends bool) {
	does, steady := m.unnamed.effect, m.unnamed.steady
	switch {
	case st != nil:
		does, steady = st.effect, st.steady
	case len(name) > 0: // SQL has prepared it
		does = effectChanges
	}
	changes := does == effectRereads || does == effectChanges || does == effectUndoes && m.reports != 0
	m.mayChange(changes || left&traceUnknown != 0, m.tempsBound || does == effectRereads, false)
	return steady
}

// knowsSettings reports whether the settings with which the server will read the client's next message are known: nothing
// before it may change them that is not answered and synced. Once they are known, a later message that is not answered does not
// make them unknown again, but for mayChange.
func (m *machine) knowsSettings() bool {
	m.settingsOpen = m.settingsOpen && !m.st.canExecuteOwn()
	return !m.settingsOpen
}

// effect is what a statement may do to the settings under which texts are read, if it calls no unknown function.
type effect byte

const (
	effectChanges effect = iota // it may change them
	effectNone
	effectUndoes  // it may undo changes
	effectRereads // servers read literals again behind it, and it may change settings
)

// effectOf returns the effect of a text. calm is changesNoSetting, and found what settingsIn finds in it.
func effectOf(text []byte, calm bool, found textSettings) effect {
	switch {
	case found.path || firstWord(text, "discard"):
		return effectRereads
	case found.reads:
		return effectChanges
	case calm, firstWord(text, "set"), firstWord(text, "savepoint"), firstWord(text, "release"):
		return effectNone
	case firstWord(text, "commit"), firstWord(text, "end"), firstWord(text, "rollback"):
		return effectUndoes
	}
	return effectChanges
}

// unreportedNames are settings, besides readNames, under which texts are read. Servers do not report them.
var unreportedNames = []string{"array_nulls", "backslash_quote", "lc_monetary", "timezone_abbreviations", "transform_null_equals", "xmloption"}

// noteRead notes that a text may change a setting.
func (t *textSettings) noteRead(name string) {
	if name == "" {
		return
	}
	is := func(other string) bool { return strings.EqualFold(name, other) }
	t.unreported = t.unreported || slices.ContainsFunc(unreportedNames, is)
	t.path = t.path || is("search_path") || is(everything)
	t.reads = t.reads || t.path || t.unreported || slices.ContainsFunc(readNames[:], is) || is("names") || is("time")
}

// changesNoSetting reports whether a text certainly changes no settings, if it calls no unknown function. The words that end a
// transaction are not among those with which it may begin: they undo SET.
func changesNoSetting(text []byte) bool {
	text = text[spaceLength(text, ';'):]
	n := 0
	for n < len(text) && inIdentifier(text[n]) {
		n++
	}
	return isOneOf(text[:n], "select", "insert", "update", "delete", "merge", "values", "with", "begin", "start")
}

// privacy returns whose statement of a text is to be used, nobody's for the one that clients share. If the settings may be others
// than those of the plan, a server that plans its statements again, as after DDL, reads the literals under those, for all who use
// the statement.
func (m *machine) privacy(text *sharedText) uint64 {
	if m.unreported || text.literals && !m.knowsSettings() {
		return m.client
	}
	return 0
}

// readingOf returns the reading for another Parse of a client's statement.
func (m *machine) readingOf(st *statement) unique.Handle[reading] {
	if st.loose || !st.literals {
		return present
	}
	again := st.moment != m.moments.now || !analyzed([]byte(st.body)) || !m.knowsSettings() && m.readsAgain
	return m.readAs(st.plan, st.read, again)
}

// chooseText gives a client's statement the text that is to be on the server for its next use.
func (m *machine) chooseText(st *statement) {
	if st.plan != m.plan || st.moment != m.moments.now || st.of != m.privacy(st.sharedText) {
		m.move(st, m.readingOf(st))
	}
}

// move gives a client's statement the text of its present settings, after they have changed, or for a Parse before which the
// reading cannot be set.
func (m *machine) move(st *statement, read unique.Handle[reading]) {
	old := st.sharedText
	st.sharedText = m.shared.texts.get(m.plan, read, m.privacy(old), []byte(old.body))
	m.shared.texts.put(old)
	st.moment = m.moments.now
}

// canSet reports whether the reading can be set in front of a Parse. In a failed transaction both get the error that the client
// expects, and the reading stays.
func (m *machine) canSet() bool {
	return !m.st.copyIn && !m.refusedReplay
}

// explicitly returns the settings of the plan for a reading of a text that is present, if the server may have others by now.
func (m *machine) explicitly(read unique.Handle[reading], text []byte) unique.Handle[reading] {
	if read != present || m.knowsSettings() || m.readsAgain || !m.canSet() || !analyzed(text) {
		return read
	}
	now, _ := inPlan(m.plan.Value())
	if slices.Contains(now[:], "") || !isASCII(strings.Join(now[:], "")) {
		return present
	}
	return unique.Make(now)
}

// beginReading sets a reading in front of a Parse, and endReading sets the client's behind it. They do nothing if it is present.
// If the client's is not known, the server keeps it meanwhile, in custom settings for the transaction.
func (m *machine) beginReading(read unique.Handle[reading], own bool) {
	if read == present {
		return
	}
	now, _ := inPlan(m.plan.Value())
	known, to := m.knowsSettings(), read.Value()
	var calls []string
	for i, name := range readNames {
		if !known {
			calls = append(calls, setConfig("headpond."+name, "pg_catalog.current_setting("+quote(name)+")"))
		}
		if !known || now[i] != to[i] {
			calls = append(calls, setConfig(name, quote(to[i])))
		}
	}
	m.setReading(calls, own)
}

// With commits endReading ends the transaction, which has the same effect; see needsCommit.
func (m *machine) endReading(read unique.Handle[reading], own, commits bool) {
	if read == present {
		return
	}
	if commits {
		m.inject("COMMIT", own)
		return
	}
	now, _ := inPlan(m.plan.Value())
	known, was := m.knowsSettings(), read.Value()
	var calls []string
	for i, name := range readNames {
		switch {
		case !known:
			calls = append(calls, setConfig(name, "pg_catalog.current_setting("+quote("headpond."+name)+")"))
		case now[i] != was[i]:
			calls = append(calls, setConfig(name, quote(now[i])))
		}
	}
	m.setReading(calls, own)
}

// needsCommit reports whether a transaction that only the reading has begun must be over before a statement that runs alone. It
// is called before the reading is set.
func (m *machine) needsCommit(alone bool, read unique.Handle[reading]) bool {
	return alone && read != present && m.st.tx == pgwire.TxIdle && m.st.canExecuteOwn()
}

// runsAlone reports whether a text may be that of a statement that fails in a transaction which has begun before it: utility statements such as
// VACUUM must not run in one, and from PostgreSQL 18 on a procedure cannot end that of a pipeline.
func runsAlone(body []byte) bool { return firstWord(body, "call") || !analyzed(body) }

// readsLater reports whether a statement that runs alone would be parsed again behind a reading whose transaction cannot be ended there,
// because messages before it are not answered.
func (m *machine) readsLater(name []byte) bool {
	if m.canJudgeAgain() || m.st.canExecuteOwn() {
		return false
	}
	if len(name) == 0 {
		u := &m.unnamed
		return u.id != 0 && u.id != m.server.unnamed && u.text != nil && runsAlone(u.text) && m.unnamedRead() != present
	}
	st := m.stmts[string(statementKey(name))]
	if st == nil || !st.alone {
		return false
	}
	m.chooseText(st)
	on := m.server.stmts.find(st.sharedText)
	return (on == nil || !st.served(on)) && m.readOf(st) != present
}

// readOf returns the reading for a Parse of a client's statement, for which chooseText has chosen the text.
func (m *machine) readOf(st *statement) unique.Handle[reading] {
	if st.loose || !st.literals {
		return st.read
	}
	return m.explicitly(st.read, []byte(st.body))
}

// setConfig returns SQL, which is not true, that changes a setting for the transaction.
func setConfig(name, value string) string {
	return "pg_catalog.set_config(" + quote(name) + "," + value + ",true) IS NULL"
}

// setReading has the server change settings, by calls of setConfig. With own it does so in a request of the gateway's own.
func (m *machine) setReading(calls []string, own bool) {
	m.inject("SELECT WHERE "+strings.Join(calls, " OR "), own)
}

// inject has the server execute a statement that uses neither the unnamed statement nor the unnamed portal, and returns no rows.
func (m *machine) inject(sql string, own bool) {
	name := namePrefix + rand.Text() // an error leaves the statement, until it is closed as a stale one
	for _, step := range []struct {
		op  op
		msg pgwire.Message
	}{
		{op{kind: opInjectedParse, name: name}, &pgwire.Parse{Name: name, Query: sql}},
		{op{kind: opInjectedBind}, &pgwire.Bind{Portal: name, Statement: name}},
		{op{kind: opInjectedExecute}, &pgwire.Execute{Portal: name}},
		{op{kind: opInjectedClose}, &pgwire.Close{Object: pgwire.ObjectPortal, Name: name}},
		{op{kind: opInjectedClose, name: name}, &pgwire.Close{Object: pgwire.ObjectStatement, Name: name}},
	} {
		if own || m.st.push(step.op) {
			m.ask(step.msg)
		}
	}
}
