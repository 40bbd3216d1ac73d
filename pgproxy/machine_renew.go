package pgproxy

import (
	"slices"
	"strings"

	"github.com/headpond/headpond/pgwire"
)

// progress says how much of a client's has reached the server in a lease, as long as another server connection could
// take its place.
type progress byte

const (
	underWay  progress = iota // more than BEGIN, or nobody needs to know
	notBegun                  // nothing
	onlyBegun                 // a BEGIN, whose text is work.opened
)

// maxOpened bounds the text of BEGIN that is kept, in bytes: with all its options it takes some 80.
const maxOpened = 128

// noteProgress records that a message has been judged.
func (m *machine) noteProgress(msg message, act action) {
	switch act.do {
	case more, wait, adapt, renew, place:
		return
	}
	if m.progress == notBegun && act.do == pass && msg.typ == pgwire.TypeQuery && isBegin(msg.body) {
		m.progress, m.opened = onlyBegun, append(m.opened[:0], withoutNul(msg.body)...)
		return
	}
	m.progress = underWay
}

// isBegin reports whether a Query's text is a single statement that begins a transaction block.
func isBegin(body []byte) bool {
	text := withoutNul(body)
	if len(text) > maxOpened || !firstWord(text, "begin") && !firstWord(text, "start") {
		return false
	}
	for i := spaceLength(text, ','); i < len(text); i += spaceLength(text[i:], ',') {
		if text[i] == ';' {
			return spaceLength(text[i:], ';') == len(text)-i
		}
		if !inIdentifier(text[i]) {
			return false
		}
		for i < len(text) && inIdentifier(text[i]) {
			i++
		}
	}
	return true
}

// renewable reports whether another server connection could take the place of the leased one. If nothing of the client's
// has reached that, requests of the gateway's own for it (forgetFirst) do not matter.
func (m *machine) renewable() bool {
	switch {
	case m.keepsServer():
		return false
	case m.progress == notBegun:
		return m.st.tx == pgwire.TxIdle
	}
	return m.progress == onlyBegun && m.st.closed() && m.st.tx == pgwire.TxActive
}

// beforeShowing returns renew, or wait, if a statement would show what other clients have left in the server connection,
// and another connection can take its place; and adapt if restoreNames has to precede the statement. Otherwise it
// returns pass. It does nothing else. parameters is the beginning of the body of Bind, if that is what is judged.
func (m *machine) beforeShowing(text, parameters []byte) verb {
	if m.progress == underWay && m.customsMade == "" || m.st.skipping {
		return pass
	}
	s := shownBy(text)
	if m.progress != underWay && len(s.names) > 0 {
		own := settingsIn(text).customs
		s.names = slices.DeleteFunc(s.names, func(name string) bool { return slices.Contains(own, name) })
	}
	if m.progress != underWay && m.seesOthers(s, parameters) {
		switch {
		case m.progress == onlyBegun && !m.canJudgeAgain():
			return wait
		case m.renewable():
			return renew
		}
	}
	if m.replay && len(m.lostNames(s)) > 0 {
		return adapt
	}
	return pass
}

// bindShows is beforeShowing for Bind of a prepared statement, which leaves some traces. It also returns the statement's
// text, nil if that shows nothing.
func (m *machine) bindShows(left traces, name, body []byte) (text []byte, before verb) {
	if left&traceShows == 0 {
		return nil, pass
	}
	text = m.textOf(name)
	return text, m.beforeShowing(text, body)
}

// declineReplacement records that the lease keeps its server connection, whatever its statements show.
func (m *machine) declineReplacement() { m.progress = underWay }

// lostNames returns the custom settings of a text that the client has set once, but has no value for, and that this
// server connection has never had: a direct connection has them, with an empty value.
func (m *machine) lostNames(s shown) (lost []string) {
	if m.customsMade == "" || m.customsMade == allNames || !m.st.closed() || m.st.tx != pgwire.TxIdle {
		return nil
	}
	for _, name := range s.names {
		if _, set := settingIn(m.settingsKey, name); !set && m.hasMade(name) && m.server.left.find(name) == nobody && isASCII(name) {
			lost = append(lost, name)
		}
	}
	return lost
}

// restoreNames makes the server know the lostNames of a text, before the statement.
func (m *machine) restoreNames(text []byte) {
	if m.customsMade == "" || len(text) == 0 {
		return
	}
	lost := m.lostNames(shownBy(text))
	if len(lost) == 0 {
		return
	}
	if _, ok := m.change(op{kind: opOwn, silent: true}, false); !ok {
		return
	}
	m.server.unnamed = 0
	var sql strings.Builder
	sep := "SELECT "
	for _, name := range lost {
		sql.WriteString(sep + "pg_catalog.set_config(" + quote(name) + ",'',true)")
		sep = ","
		m.server.left.add(name, m.client)
	}
	m.ask(&pgwire.Query{SQL: sql.String()})
}

// textOf returns the text of one of the client's prepared statements, nil if it is not known.
func (m *machine) textOf(name []byte) []byte {
	if len(name) == 0 {
		return m.unnamed.text
	}
	if st := m.stmts[string(statementKey(name))]; st != nil {
		return []byte(st.body)
	}
	return nil
}

// tempBuffers is the setting that cannot be changed on a server connection with temporary tables.
const tempBuffers = "temp_buffers"

// buffersStuck reports whether the client has a value of temp_buffers that a server connection would refuse. Servers
// refuse no reset.
func (m *machine) buffersStuck(srv *serverState) bool {
	if srv.left.temps == nobody {
		return false
	}
	own, set := settingIn(m.settingsKey, tempBuffers)
	has, applied := settingIn(srv.settings, tempBuffers)
	return set && !(applied && own == has)
}
