package pgproxy

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/headpond/headpond/pgwire"
)

// In session mode messages go to the server as they are. The texts of statements are looked at for two things. RESET and DISCARD ALL go
// back to what the gateway's login has, and straight on a server to what the client gave at startup: what does that is put right behind the
// statement, in the same write. And what DISCARD ALL does not undo when the client has left is in remains.go.

// inSession judges a message of a client in session mode that has a server connection.
func (m *machine) inSession(msg message) action {
	if n := seenInSession(msg); !msg.whole(n) {
		return action{do: more, n: min(msg.size(), n)}
	}
	m.goBackFirst(msg.typ)
	switch msg.typ {
	case pgwire.TypeQuery:
		if scope := m.resetsBy(msg.body); scope != noReset && m.steady() {
			return m.queryAndRestore(msg, scope)
		}
		m.st.push(op{kind: opQuery})
	case pgwire.TypeFunctionCall:
		m.server.leave = m.server.leave || hintsOfCall(msg.body)&hintRemains != 0
		m.st.push(op{kind: opFunction})
	case pgwire.TypeSync:
		if m.resets != noReset && !m.st.skipping && !m.st.copyIn {
			m.restoreStartup(m.resets)
		}
		m.resets = noReset
		m.st.push(op{kind: opSync})
	case pgwire.TypeParse:
		_, text, _ := bytes.Cut(msg.body, []byte{0})
		m.resets = max(m.resets, m.resetsBy(text))
		m.st.push(op{kind: opParse})
	default:
		m.st.push(op{kind: extendedOps[msg.typ]})
	}
	return action{do: pass}
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

// steady reports whether a Query can be followed by more than the client sends: the client has settings to go back to, and no pipeline
// or COPY of it is open.
func (m *machine) steady() bool {
	return len(m.params) > 0 && !m.st.unsynced && !m.st.skipping && !m.st.copyIn && !m.st.copyOut
}

// queryAndRestore sends a Query with restoreStartup behind it. The client gets one ReadyForQuery, the last. A text that is not there as a
// whole goes on as it is: goBackFirst does the rest.
func (m *machine) queryAndRestore(msg message, scope resetScope) action {
	if len(msg.body) < msg.size() {
		m.st.push(op{kind: opQuery})
		return action{do: pass}
	}
	m.st.push(op{kind: opQuery, silent: true})
	m.toServer = append(pgwire.AppendHeader(m.toServer, pgwire.TypeQuery, msg.size()), msg.body...)
	m.restoreStartup(scope)
	m.st.push(op{kind: opSync})
	m.ask(&pgwire.Sync{})
	return action{do: take}
}

// goBackFirst sends restoreStartup before the client's next request, after a RESET that the text did not show.
func (m *machine) goBackFirst(typ byte) {
	if !m.reset || len(m.params) == 0 || !m.st.empty() || !m.steady() || m.st.tx == pgwire.TxFailed {
		return
	}
	switch typ {
	case pgwire.TypeQuery, pgwire.TypeParse, pgwire.TypeBind, pgwire.TypeFunctionCall:
		m.restoreStartup(sessionReset)
		m.st.push(op{kind: opSync, silent: true})
		m.ask(&pgwire.Sync{})
	}
}

// restoreStartup asks the server, by the extended protocol and without Sync, to give those of the client's startup settings their values
// that have been reset.
func (m *machine) restoreStartup(scope resetScope) {
	m.reset = false
	for _, step := range []struct {
		kind opKind
		msg  pgwire.Message
	}{
		{opInjectedClose, &pgwire.Close{Object: pgwire.ObjectStatement, Name: restoreName}}, // one that has failed left it
		{opInjectedParse, &pgwire.Parse{Name: restoreName, Query: restoreSQL(m.params, scope == localReset)}},
		{opInjectedBind, &pgwire.Bind{Portal: restoreName, Statement: restoreName}},
		{opInjectedExecute, &pgwire.Execute{Portal: restoreName}},
		{opInjectedClose, &pgwire.Close{Object: pgwire.ObjectPortal, Name: restoreName}},
		{opInjectedClose, &pgwire.Close{Object: pgwire.ObjectStatement, Name: restoreName}},
	} {
		m.st.push(op{kind: step.kind, silent: true})
		m.ask(step.msg)
	}
}

// restoreName is that of the statement and portal of restoreStartup.
const restoreName = namePrefix + "restore"

// restoreSQL returns a query without rows that sets the startup settings of a client that nothing has set since they were reset. What is
// set, by the client or the gateway, has the source "session"; custom settings have none, and are empty once they are reset.
func restoreSQL(params []pgwire.Param, local bool) string {
	var b strings.Builder
	sep := "SELECT FROM (VALUES "
	for _, p := range params {
		b.WriteString(sep + "(" + quote(p.Name) + "," + quote(p.Value) + ")")
		sep = ","
	}
	b.WriteString(") AS p (name, value) LEFT JOIN pg_catalog.pg_settings AS s ON pg_catalog.lower(s.name) = pg_catalog.lower(p.name) " +
		"WHERE CASE WHEN coalesce(s.source = 'session', pg_catalog.current_setting(p.name, true) <> '') THEN false " +
		"ELSE pg_catalog.set_config(p.name, p.value, " + strconv.FormatBool(local) + ") IS NULL END")
	return b.String()
}

// noteStartup notes what the client's settings at startup leave behind, in session mode.
func (m *machine) noteStartup() {
	for _, p := range m.params {
		m.server.leave = m.server.leave || strings.Contains(p.Name, ".")
	}
}

// resetScope is for how long a statement goes back to what the session began with.
type resetScope byte

const (
	noReset      resetScope = iota // not at all
	localReset                     // SET LOCAL … TO DEFAULT: until the end of the transaction
	sessionReset                   // RESET, DISCARD, SET … TO DEFAULT
)

// resetsBy notes what a text leaves behind, and returns how it goes back to what the session began with, if the client has something
// to go back to.
func (m *machine) resetsBy(text []byte) resetScope {
	seen := hintsOf(text)
	m.server.leave = m.server.leave || seen&hintRemains != 0
	if seen&hintResets == 0 || len(m.params) == 0 {
		return noReset
	}
	return resets(string(bytes.TrimRight(text, "\x00")))
}

// resets returns the widest scope of the statements in a text.
func resets(text string) (scope resetScope) {
	for text != "" {
		end := statementEnd(text)
		word, rest := identifier(text[:end])
		switch strings.ToLower(word) {
		case "reset", "discard":
			return sessionReset
		case "set":
			if hintsOf([]byte(rest))&hintResets == 0 {
				break
			}
			if next, _ := identifier(rest); !strings.EqualFold(next, "local") {
				return sessionReset
			}
			scope = localReset
		}
		text = text[min(end+1, len(text)):]
	}
	return scope
}
