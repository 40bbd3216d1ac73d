package pgproxy

import (
	"bytes"
	"cmp"
	"slices"
	"strings"
	"unique"

	"github.com/headpond/headpond/pgwire"
)

// In session mode messages go to the server unchanged. The texts of statements are checked for two things. RESET and
// DISCARD ALL restore the settings of the gateway's login, but on a direct connection the client's startup settings:
// the gateway sets these again before the client's next request outside a transaction, in separate transactions. And
// remains.go has the effects that DISCARD ALL does not undo after the client.

// inSession judges a message of a client in session mode that has a server connection.
func (m *machine) inSession(msg message) action {
	if n := seenInSession(msg); !msg.whole(n) {
		return action{do: more, n: min(msg.size(), n)}
	}
	if m.resets && m.requests(msg.typ) && !m.caughtUp() {
		return action{do: wait}
	}
	if m.requests(msg.typ) {
		m.goBackFirst()
	}
	switch msg.typ {
	case pgwire.TypeQuery:
		m.unread = m.unread || msg.size() > maxPeek
		m.noteText(msg.body)
		m.st.push(op{kind: opQuery})
	case pgwire.TypeFunctionCall:
		m.server.doomed = m.server.doomed || hintsOfCall(msg.body)&hintRemains != 0
		m.st.push(op{kind: opFunction})
	case pgwire.TypeParse:
		_, text, _ := bytes.Cut(msg.body, []byte{0})
		m.noteText(text)
		m.st.push(op{kind: opParse})
	case pgwire.TypeSync:
		m.st.push(op{kind: opSync})
	default:
		m.st.push(op{kind: extendedOps[msg.typ]})
	}
	return action{do: pass}
}

// requests reports whether a message begins a request: no pipeline of the client is open, and the server will not skip it.
func (m *machine) requests(typ byte) bool {
	switch typ {
	case pgwire.TypeQuery, pgwire.TypeParse, pgwire.TypeBind, pgwire.TypeFunctionCall:
		return !m.st.unsynced && !m.st.skipping
	}
	return false
}

// seenInSession returns how much of a message is looked at in session mode, in bytes.
func seenInSession(msg message) int {
	switch msg.typ {
	case pgwire.TypeQuery, pgwire.TypeParse:
		return maxPeek
	case pgwire.TypeFunctionCall:
		return oidSize
	}
	return 0
}

// goBackFirst sends restoreStartup before the client's next request, if RESET was answered since the last time and no transaction is open.
func (m *machine) goBackFirst() {
	if !m.st.empty() || m.st.copyIn || m.st.copyOut {
		return
	}
	m.resets = false
	if !m.reset || m.st.tx != pgwire.TxIdle {
		return
	}
	if m.reset = false; len(m.params) > 0 {
		m.restoreStartup()
	}
}

// restoreStartup asks the server to give those of the client's startup settings their values that have been reset: each
// in a separate transaction, so that one that can no longer be set does not affect the others. The client does not see
// them.
func (m *machine) restoreStartup() {
	params := slices.Clone(m.params)
	slices.SortStableFunc(params, func(a, b pgwire.Param) int { return cmp.Compare(restoreOrder(a.Name), restoreOrder(b.Name)) })
	for _, p := range params {
		if !isASCII(p.Value) {
			m.restoreStep("SELECT WHERE pg_catalog.set_config('client_encoding'," + quote(m.startupEncoding()) + ",true) IS NULL")
		}
		m.restoreStep(restoreSQL(p))
		m.restoreSent(opSync, &pgwire.Sync{})
	}
	m.restoreSent(opInjectedClose, &pgwire.Close{Object: pgwire.ObjectStatement, Name: restoreName}) // one that has failed left it
	m.restoreSent(opSync, &pgwire.Sync{})
}

// restoreStep has a statement executed that returns no rows.
func (m *machine) restoreStep(sql string) {
	m.restoreSent(opInjectedClose, &pgwire.Close{Object: pgwire.ObjectStatement, Name: restoreName})
	m.restoreSent(opInjectedParse, &pgwire.Parse{Name: restoreName, Query: sql})
	m.restoreSent(opInjectedBind, &pgwire.Bind{Portal: restoreName, Statement: restoreName})
	m.restoreSent(opInjectedExecute, &pgwire.Execute{Portal: restoreName})
	m.restoreSent(opInjectedClose, &pgwire.Close{Object: pgwire.ObjectPortal, Name: restoreName})
}

func (m *machine) restoreSent(kind opKind, msg pgwire.Message) {
	m.st.push(op{kind: kind, silent: true})
	m.ask(msg)
}

// restored reports to the client the settings that differ from those reported before: some could not be set again, or
// were set behind RESET.
func (m *machine) restored() {
	if o := m.st.first(); o != nil && o.silent {
		return // there is more to come
	}
	view := m.reported.Value()
	for i, name := range trackedNames {
		if value := m.server.params.value[i]; m.server.params.known[i] && view.known[i] && view.value[i] != value {
			view.value[i] = value
			m.say(&pgwire.ParameterStatus{Name: name, Value: value})
		}
	}
	m.reported = unique.Make(view)
}

// restoreName is the name of the statement and portal of restoreStartup.
const restoreName = namePrefix + "restore"

// restoreOrder is the order in which settings are set: a role may not be allowed to set others.
func restoreOrder(name string) int {
	if strings.EqualFold(name, "role") {
		return 1
	}
	return 0
}

// startupEncoding is the client's encoding at startup, in which the values of its settings are.
func (m *machine) startupEncoding() string {
	for _, params := range [][]pgwire.Param{m.params, m.server.baseline} {
		for _, p := range params {
			if strings.EqualFold(p.Name, "client_encoding") {
				return p.Value
			}
		}
	}
	return "UTF8"
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return false
		}
	}
	return true
}

// restoreSQL returns a query without rows that sets a startup setting of a client if nothing has set it since it was reset. What is
// set, by the client or the gateway, has the source "session". Others are not in pg_settings: custom ones are empty once they are reset, and
// the role is none.
func restoreSQL(p pgwire.Param) string {
	name, unset := quote(p.Name), "''"
	if strings.EqualFold(p.Name, "role") {
		unset = "'none'"
	}
	return "SELECT WHERE CASE WHEN coalesce((SELECT source = 'session' FROM pg_catalog.pg_settings WHERE pg_catalog.lower(name) = pg_catalog.lower(" + name +
		")), pg_catalog.current_setting(" + name + ", true) <> " + unset + ") THEN false ELSE pg_catalog.set_config(" + name + "," + quote(p.Value) + ",false) IS NULL END"
}

// noteStartup records the lasting effects of the client's startup settings, in session mode.
func (m *machine) noteStartup() {
	for _, p := range m.params {
		m.server.doomed = m.server.doomed || strings.Contains(p.Name, ".")
	}
}

// noteText records the lasting effects of a text, and whether it resets startup settings, if the client has some.
func (m *machine) noteText(text []byte) {
	seen := hintsOf(text)
	if k := &m.shared.knowledge; k.on && seen&hintDefines != 0 && k.now.Load().judge(text)&traceDefines != 0 {
		m.define() // for those in transaction mode
	}
	m.server.doomed = m.server.doomed || seen&hintRemains != 0
	if seen&hintResets == 0 || len(m.params) == 0 {
		return
	}
	back, byDefault := resets(string(bytes.TrimRight(text, "\x00")))
	m.resets, m.defaults = m.resets || back, m.defaults || byDefault
}

// resets reports whether a text has statements that reset settings to the session's start, and whether SET … TO DEFAULT
// is among them: its tag is that of any SET. SET LOCAL … TO DEFAULT ends with its transaction.
func resets(text string) (back, byDefault bool) {
	for text != "" {
		end := statementEnd(text)
		word, rest := identifier(text[:end])
		switch strings.ToLower(word) {
		case "reset", "discard":
			back = true
		case "set":
			if next, _ := identifier(rest); hintsOf([]byte(rest))&hintResets != 0 && !strings.EqualFold(next, "local") {
				back, byDefault = true, true
			}
		}
		text = text[min(end+1, len(text)):]
	}
	return back, byDefault
}
