package pgproxy

import (
	"bytes"
	"cmp"
	"errors"
	"slices"
	"strings"
	"unique"

	"github.com/headpond/headpond/pgwire"
)

// In session mode messages go to the server unchanged. The texts of statements are examined for two things. First,
// RESET and DISCARD ALL restore the settings of the gateway's login, but on a direct connection they restore the
// client's startup settings: the gateway sets these again before the client's next request outside a transaction, in
// separate transactions. The request waits for the answers, because the server may cancel that. Second, DISCARD ALL, which runs after the client, does not undo all effects: see remains.go.

// inSession judges a message of a client in session mode that has a server connection.
func (m *machine) inSession(msg message) (action, error) {
	if n := seenInSession(msg); !msg.hasBody(n) {
		return action{do: more, n: min(msg.size(), n)}, nil
	}
	if m.requests(msg.typ) {
		if m.resets && !m.canJudgeAgain() {
			return action{do: wait}, nil
		}
		if waits, err := m.restoreStartupFirst(); waits || err != nil {
			return action{do: wait}, err
		}
	}
	switch msg.typ {
	case pgwire.TypeQuery:
		m.unread = m.unread || msg.size() > maxPeek
		if m.noteText(msg.body)&hintDefines != 0 {
			m.vacates(msg.body)
		}
		m.st.push(op{kind: opQuery})
	case pgwire.TypeFunctionCall:
		m.server.mustClose = m.server.mustClose || hintsOfCall(msg.body)&hintRemains != 0
		m.st.push(op{kind: opFunction})
	case pgwire.TypeParse:
		name, text, _ := bytes.Cut(msg.body, []byte{0})
		m.alone = ""
		if m.noteText(text)&hintDefines != 0 && len(name) == 0 {
			m.alone = databaseAlone(text)
		}
		m.hidesLater = m.hidesLater || m.hides || msg.size() > maxPeek
		m.st.push(op{kind: opParse})
	case pgwire.TypeSync:
		m.vacatesSynced()
		m.st.push(op{kind: opSync})
	default:
		if m.alone != "" && !ofUnnamed(msg) {
			m.alone = ""
		}
		m.st.push(op{kind: extendedOps[msg.typ]})
	}
	return action{do: pass}, nil
}

// ofUnnamed reports whether a Bind, or another message behind it, is about the unnamed statement or its portal.
func ofUnnamed(msg message) bool {
	switch msg.typ {
	case pgwire.TypeBind:
		_, name, _, err := pgwire.BindNames(msg.body)
		return err == nil && len(name) == 0
	case pgwire.TypeDescribe:
		return firstByte(msg.body) == pgwire.ObjectPortal
	}
	return true
}

// requests reports whether a message begins a request: no pipeline of the client is open, and the server will not skip it.
func (m *machine) requests(typ byte) bool {
	return typ != pgwire.TypeSync && !m.st.unsynced && !m.st.skipping
}

// seenInSession returns how much of a message is examined in session mode, in bytes.
func seenInSession(msg message) int {
	switch msg.typ {
	case pgwire.TypeQuery, pgwire.TypeParse:
		return maxPeek
	case pgwire.TypeFunctionCall:
		return oidSize
	}
	return 0
}

// restoreStartupFirst calls restoreStartup before the client's next request, if RESET has been answered since the last
// time and no transaction is open. waits means that the request has to wait for the answers. An error is the end of a
// client whose server has canceled this too often.
func (m *machine) restoreStartupFirst() (waits bool, err error) {
	if o := m.st.first(); o != nil && o.silent {
		return true, nil
	}
	if !m.st.empty() || m.st.copyIn || m.st.copyOut {
		return false, nil
	}
	m.resets = false
	if !m.reset && !m.restoresAgain || m.st.tx != pgwire.TxIdle {
		return false, nil
	}
	if !m.restoresAgain {
		m.restores = 0
	} else if m.restores++; m.restores > maxAttempts {
		return false, errNotRestored
	}
	if m.reset, m.restoresAgain = false, false; len(m.params) == 0 {
		return false, nil
	}
	m.restoreStartup()
	return true, nil
}

// errNotRestored ends a session in which the server cancels the statements that set the startup settings again.
var errNotRestored = errors.New("the client's startup settings cannot be set again: the server cancels each try (statement_timeout?)")

// restoreStartup asks the server to set again those of the client's startup settings that have been reset. Each has a
// separate transaction, so that a setting that is no longer possible does not affect the others. The client does not
// see the answers.
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
	m.restoreSent(opInjectedClose, &pgwire.Close{Object: pgwire.ObjectStatement, Name: restoreName}) // a failed step leaves it behind
	m.restoreSent(opSync, &pgwire.Sync{})
}

// restoreStep executes a statement that returns no rows.
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

// restored reports to the client the settings that differ from those reported before: some could not be set again,
// and some were set after RESET.
func (m *machine) restored() {
	if o := m.st.first(); o != nil && o.silent {
		return // more steps follow
	}
	view := m.reported.Value()
	for i, name := range trackedNames {
		if value := m.server.params.value[i]; m.server.params.known[i] && view.known[i] && view.value[i] != value {
			view.value[i] = value
			m.addToClient(&pgwire.ParameterStatus{Name: name, Value: value})
		}
	}
	m.reported = unique.Make(view)
}

// restoreName is the name of restoreStartup's statement and portal.
const restoreName = namePrefix + "restore"

// restoreOrder returns a setting's place in the order of setting: after a change of role others may be forbidden.
func restoreOrder(name string) int {
	if strings.EqualFold(name, "role") {
		return 1
	}
	return 0
}

// startupEncoding returns the client's encoding at startup, in which the values of its startup settings are.
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

// restoreSQL returns a query without rows that sets a startup setting of the client, unless something has set it
// since it was reset. What the client or the gateway sets has the source "session" in pg_settings. Settings that are
// not in pg_settings are custom ones, which are empty after a reset, and the role, which is none.
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
		m.server.mustClose = m.server.mustClose || strings.Contains(p.Name, ".")
	}
}

// noteText records the lasting effects of a text, and returns its hints. If the client has startup settings, it also records
// whether the text resets them.
func (m *machine) noteText(text []byte) hints {
	seen := hintsOf(text)
	if k := m.shared.knowledge; k.on && seen&hintDefines != 0 {
		m.define(k.now.Load().judge(text)) // for the clients in transaction mode
	}
	m.server.mustClose = m.server.mustClose || seen&hintRemains != 0
	if seen&hintResets == 0 || len(m.params) == 0 {
		return seen
	}
	back, byDefault := resets(string(bytes.TrimRight(text, "\x00")))
	m.resets, m.defaults = m.resets || back, m.defaults || byDefault
	return seen
}

// resets reports whether a text has statements that reset settings to those of the session's start, and whether SET …
// TO DEFAULT is among them, which has the same tag as any SET. SET LOCAL … TO DEFAULT does not count: it ends with
// its transaction.
func resets(text string) (back, byDefault bool) {
	for text != "" {
		end := statementEnd(text)
		word, rest := identifier(text[:end])
		switch strings.ToLower(word) {
		case "reset", "discard":
			back = true
		case "set":
			if setsDefault(rest) {
				back, byDefault = true, true
			}
		}
		text = text[min(end+1, len(text)):]
	}
	return back, byDefault
}
