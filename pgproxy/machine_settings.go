package pgproxy

import (
	"encoding/hex"
	"slices"
	"strings"
	"unique"

	"github.com/headpond/headpond/pgwire"
)

// inSync reports whether the server connection has the client's settings. It is cheap.
func (m *machine) inSync() bool {
	srv := m.server
	return srv.settings == m.settingsKey && srv.flags == 0 && srv.view == m.reported
}

// applied records that the server has executed syncSQL.
func (m *machine) applied() {
	srv := m.server
	if srv.flags&leftPrepare != 0 {
		srv.stmts.clear()
		srv.underClientName = nil
	}
	srv.flags = 0
	m.settingsApplied()
}

// settingsApplied records that the server has executed settingsSQL.
func (m *machine) settingsApplied() {
	srv := m.server
	srv.settings, srv.unnamed = m.settingsKey, 0
	m.applySettingsFirst = false
	m.noteOwnSettings()
	m.noteNamesOfSettings()
	view := m.reported.Value()
	for i, known := range srv.params.known {
		if known {
			view.value[i] = srv.params.value[i] // the server may spell the value its own way
		}
	}
	if respelled := unique.Make(view); respelled != m.reported {
		m.reported = respelled
		m.replan()
	}
	m.settingsAccepted()
}

// syncSQL returns the SQL that removes another client's state from the server connection and applies the client's
// settings, "" if nothing is to be done.
func (m *machine) syncSQL() string {
	srv := m.server
	var sql strings.Builder
	for _, d := range []struct {
		when bool
		sql  string
	}{
		{srv.flags&leftCursor != 0, "CLOSE ALL;"},
		{srv.flags&leftListen != 0, "UNLISTEN *;"},
		{srv.flags&leftPrepare != 0, "DEALLOCATE ALL;"},
	} {
		if d.when {
			sql.WriteString(d.sql)
		}
	}
	return sql.String() + m.settingsSQL()
}

// settingsSQL returns the SQL that gives the server connection the client's settings, "" if it has them.
func (m *machine) settingsSQL() string {
	srv := m.server
	reset := m.startupUnconfirmed || srv.settings != m.settingsKey || srv.flags&leftSettings != 0
	var sql strings.Builder
	if reset {
		sql.WriteString("SET SESSION AUTHORIZATION DEFAULT;RESET ALL;")
	}
	sep := "SELECT "
	set := func(name, value string) {
		sql.WriteString(sep + "pg_catalog.set_config(" + m.literal(name) + "," + m.literal(value) + ",false)")
		sep = ","
	}
	view := m.reported.Value()
	for i, name := range trackedNames {
		if srv.params.known[i] && view.known[i] && (reset || srv.params.value[i] != view.value[i]) {
			set(name, view.value[i])
		}
	}
	if reset {
		for _, p := range settingsOfKey(m.settingsKey) {
			set(p.Name, p.Value)
		}
	}
	return sql.String()
}

// encodingSQL returns the SQL that must run before sql so that the server reads sql in the client's encoding; "" if
// that makes no difference.
func (m *machine) encodingSQL(sql string) string {
	i, view := tracked("client_encoding"), m.reported.Value()
	if !view.known[i] || m.server.params.value[i] == view.value[i] ||
		!strings.ContainsFunc(sql, func(r rune) bool { return r > 0x7f }) {
		return ""
	}
	return "SELECT pg_catalog.set_config('client_encoding'," + quote(view.value[i]) + ",false)"
}

// quote returns a string literal that means s under either value of standard_conforming_strings.
func quote(s string) string {
	s = strings.ReplaceAll(s, "'", "''")
	if strings.Contains(s, `\`) {
		return "E'" + strings.ReplaceAll(s, `\`, `\\`) + "'"
	}
	return "'" + s + "'"
}

// halfBackslashes are the client encodings in which the second byte of a character may be that of a backslash.
var halfBackslashes = []string{"BIG5", "GB18030", "GBK", "JOHAB", "SHIFT_JIS_2004", "SJIS", "UHC"}

func hasHalfBackslashes(encoding string) bool {
	return slices.Contains(halfBackslashes, strings.ToUpper(encoding))
}

// withoutHalfBackslashes returns a text of the same length in which no second byte of a character is that of a backslash.
func withoutHalfBackslashes(text, encoding string) string {
	b := []byte(text)
	for i := 0; i < len(b); i++ {
		kana := b[i] >= 0xa1 && b[i] <= 0xdf && strings.HasPrefix(strings.ToUpper(encoding), "S") // one byte in both of Shift JIS
		if b[i] < 0x80 || kana || i+1 == len(b) {
			continue
		}
		if i++; b[i] == '\\' {
			b[i] = 0x80
		}
	}
	return string(b)
}

// literal is quote for a string in the client's encoding.
func (m *machine) literal(s string) string {
	encoding := m.reported.Value().value[tracked("client_encoding")]
	if !strings.Contains(s, `\`) || isASCII(s) || !hasHalfBackslashes(encoding) {
		return quote(s)
	}
	return "pg_catalog.convert_from(pg_catalog.decode('" + hex.EncodeToString([]byte(s)) + "','hex')," + quote(encoding) + ")"
}

// takeSettings computes the client's settings from a server's baseline and the startup parameters. unknown means that
// no server has accepted one of these yet: the settings are certain only after a server has been asked.
func (m *machine) takeSettings(baseline []pgwire.Param) (unknown bool) {
	var view trackedParams
	var extra []pgwire.Param
	for _, p := range baseline {
		view.set(p.Name, p.Value)
	}
	for _, p := range m.params {
		value, ok := m.shared.accepted.get(p)
		unknown = unknown || !ok
		if !ok {
			value = p.Value
		}
		if i := tracked(p.Name); i >= 0 && view.known[i] {
			view.value[i] = value
		} else {
			extra = append(extra, p)
		}
	}
	m.reported = unique.Make(view)
	m.settingsKey = keyOf(extra)
	m.replan()
	return unknown
}

// settingsAccepted records that a server has accepted the client's settings, and remembers the server's form of their
// values.
func (m *machine) settingsAccepted() {
	if !m.startupUnconfirmed {
		return
	}
	m.startupUnconfirmed = false
	view := m.reported.Value()
	for _, p := range m.params {
		value := p.Value
		if i := tracked(p.Name); i >= 0 && view.known[i] {
			value = view.value[i]
		}
		m.shared.accepted.set(p, value)
	}
}

// replan notes the settings under which the client's statements are prepared. Literals of some types are read when a
// statement is prepared, so that clients share statements only under equal settings.
func (m *machine) replan() {
	var b strings.Builder
	view := m.reported.Value()
	for i, name := range trackedNames {
		if planned(name) {
			b.WriteString(view.value[i])
			b.WriteByte(0)
		}
	}
	b.WriteString(m.settingsKey)
	m.plan = unique.Make(b.String())
}

// planned reports whether a tracked parameter can change the meaning of a text.
func planned(name string) bool {
	switch name {
	case "client_encoding", "DateStyle", "IntervalStyle", "TimeZone", "standard_conforming_strings", "search_path":
		return true
	}
	return false
}

// keyOf joins settings to one string. Names and values have no zeros, and names have no equals sign.
func keyOf(params []pgwire.Param) string {
	var b strings.Builder
	for _, p := range params {
		b.WriteString(p.Name)
		b.WriteByte('=')
		b.WriteString(p.Value)
		b.WriteByte(0)
	}
	return b.String()
}

// settingsOfKey is the reverse of keyOf.
func settingsOfKey(key string) (params []pgwire.Param) {
	for setting := range strings.SplitSeq(strings.TrimSuffix(key, "\x00"), "\x00") {
		if name, value, ok := strings.Cut(setting, "="); ok {
			params = append(params, pgwire.Param{Name: name, Value: value})
		}
	}
	return params
}

// startOver ends a transaction in which RESET or DISCARD ALL may have restored the server connection's first
// settings. In transaction mode these become the client's; in session mode restoreStartup sets the client's again.
// The client gets the reports of these settings after those of the others.
func (m *machine) startOver() {
	reset, reports := m.reset, m.reports
	m.reset, m.reports = reset && m.mode == Session, 0 // see restoreStartupFirst
	if !reset || reports == 0 {
		return
	}
	var own trackedParams
	for _, p := range m.server.baseline {
		own.set(p.Name, p.Value)
	}
	was, key := m.reported.Value(), m.settingsKey
	m.startupUnconfirmed = m.takeSettings(m.server.baseline)
	m.settingsKey = key // keepSettings reads the other settings
	view := m.reported.Value()
	for i, name := range trackedNames {
		switch {
		case reports&(1<<i) == 0 || was.value[i] != own.value[i]:
			view.value[i], view.known[i] = was.value[i], was.known[i]
		case view.value[i] != was.value[i]:
			m.addToClient(&pgwire.ParameterStatus{Name: name, Value: view.value[i]})
		}
	}
	m.reported = unique.Make(view)
	m.replan()
}

// parameter records a server's report of a parameter.
func (s *serverState) parameter(p pgwire.Param) {
	if s.params.set(p.Name, p.Value) >= 0 {
		s.view = unique.Make(s.params)
	} else if p.Name == hotStandby {
		s.report(p)
	}
}

// report records a changed in_hot_standby: the server is no longer a standby. New clients see the change.
func (s *serverState) report(p pgwire.Param) {
	i := slices.IndexFunc(s.baseline, func(b pgwire.Param) bool { return b.Name == p.Name })
	if i < 0 || s.newest == nil {
		return
	}
	s.baseline = slices.Clone(s.baseline)
	s.baseline[i] = p
	s.newest.set(s.baseline)
	s.newest.doubt(s.endpoint)
}
