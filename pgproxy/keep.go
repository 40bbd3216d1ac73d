package pgproxy

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unique"

	"github.com/headpond/headpond/pgwire"
)

// In transaction mode, the settings that a client makes follow it. After a transaction that may have
// changed settings, the gateway reads them from the server, which is right also after a rollback. They
// become the client's settings: its next server connections get them, unless they have them already.

// errSettingsKept is wrapped by errors about settings that cannot follow their client.
var errSettingsKept = errors.New("settings that cannot follow the client in transaction mode")

// maxSettingBytes bounds the settings of one client that follow it, in bytes: they are sent again to each server
// connection that has others.
const maxSettingBytes = 64 << 10

// due reports whether the transaction is over and may have left state, or more messages of the server than are known, so
// that keep has to ask the server.
func (m *machine) due() bool {
	return m.work != nil && m.mode == Transaction && m.server != nil && !m.refusedReplay &&
		(m.traces != 0 || m.server.flags&leftSettings != 0 || m.st.strays > 0) && m.st.settled()
}

// keep asks the server for the state that the transaction left, if it may have left any: settings,
// which become the client's, and state that pins the client. The client gets its answer first. No
// server reader may run. After an error the session must end: the client has settings that the gateway
// does not know. A client that keeps the server connection has all its settings there afterwards.
func (s *session) keep() error {
	m, srv := &s.machine, s.srv
	if !m.due() {
		return nil
	}
	if err := s.c.Writer.Flush(); err != nil {
		return clientWriteError(err)
	}
	if m.over() {
		s.shield() // release checks whether cancel requests have ended
	}
	srv.collects, srv.notified = true, nil
	err := s.endDoubt()
	if err == nil {
		err = s.askCalls()
	}
	if err == nil {
		err = s.askRemains()
	}
	if err == nil {
		err = s.handOverChannels()
	}
	if err == nil && m.listenUndone {
		err = m.errSilenced()
	}
	if err == nil {
		err = s.handleRemains()
	}
	srv.collects = false
	if err != nil || s.srv == nil {
		return err
	}
	s.cancelMu.Lock()
	s.shielded = false
	s.cancelMu.Unlock()
	return s.tellNotified()
}

// endDoubt finds out whether the server still answers Syncs in the data of a COPY that has failed: what comes before the
// answer to a query does, and is the client's.
func (s *session) endDoubt() error {
	m, srv := &s.machine, s.srv
	if m.st.strays == 0 {
		return nil
	}
	_ = srv.conn.SetDeadline(time.Now().Add(requestTimeout))
	answered := false
	mark := func(*pgwire.DataRow) { answered = true }
	err := srv.query("SELECT 1", mark)
	for n := 0; err == nil && !answered || canceled(err) && n < maxAttempts; n++ { // or ends with the deadline
		if err == nil {
			s.c.Writer.Send(&pgwire.ReadyForQuery{Status: pgwire.TxIdle})
			err = srv.answer(mark)
		} else {
			err = srv.query("SELECT 1", mark)
		}
	}
	if err != nil {
		return s.serverFailed(fmt.Errorf("counting the answers to a COPY that failed: %w", err), false)
	}
	m.st.strays = 0
	return srv.conn.SetDeadline(time.Time{})
}

// handOverChannels hands the client's channels to the listening connection, or ends the listening if
// that is not possible.
func (s *session) handOverChannels() error {
	m := &s.machine
	if !m.channelsOnly {
		s.unsubscribe()
		return nil
	}
	m.channelsOnly = false
	switch parked, err := s.park(); {
	case err != nil:
		return err
	case parked:
		m.unpin()
	case s.srv.flags&leftAnything != 0: // other state has to be undone
		m.undoState(traceChannels)
	default:
		m.pinOrUndo(traceChannels)
	}
	return nil
}

// handleRemains acts on the result of askRemains: it undoes the state that the client left, or lets the
// client keep the server connection. The session may have no server connection afterwards.
func (s *session) handleRemains() error {
	m, srv := &s.machine, s.srv
	srv.unnamed = 0
	switch {
	case srv.flags&leftAnything != 0 && !srv.mustClose:
		if err := srv.wipeLeft(resetTimeout); err != nil {
			s.c.Logger().Debug("server connection discarded", "endpoint", srv.endpoint, "error", err)
			s.discard()
		}
	case m.keepsServer():
		return s.prepareToKeep()
	}
	return nil
}

// askRemains asks the server for the state that the transaction left, and records the answer.
func (s *session) askRemains() error {
	m, srv := &s.machine, s.srv
	if m.traces&(traceUnknown|called) != 0 {
		m.rules.checks.Add(1)
	}
	if nothing, err := s.digestLeaves(); nothing || err != nil {
		return err
	}
	_ = srv.conn.SetDeadline(time.Now().Add(requestTimeout))
	defer func() { _ = srv.conn.SetDeadline(time.Time{}) }()
	learns, key, view := m.digestible(), m.settingsKey, m.reported
	parts, settings := m.stateCheck()
	if m.checked&traceUnknown != 0 {
		s.noteWholeCheck()
	}
	rows, err := s.queryRemains(parts, settings)
	used := traces(0)
	if ordinary(err) && parts&traceSequences != 0 { // perhaps the client's role must not use PL/pgSQL
		if rows, err = s.queryRemains(parts&^traceSequences, settings); err == nil {
			parts, used = parts&^traceSequences, traceSequences
		}
	}
	blind := parts != 0 && ordinary(err)
	if blind && !s.b.unseen.Swap(true) { // log it once: it holds for every client of such a server
		s.c.Logger().Warn("the state that clients leave in their sessions cannot be read: it is undone", "upstream", s.b.cfg.Name, "endpoint", srv.endpoint, "error", err)
	}
	if err == nil && parts != 0 {
		rows, parts = rows[:len(rows)-1], seenIn(rows[len(rows)-1])
	}
	parts |= used
	if blind {
		rows, err = nil, nil
		if settings {
			rows, err = s.queryRemains(0, true)
		}
	}
	if err == nil || ordinary(err) {
		m.handleState(parts, blind)
	}
	switch {
	case err == nil && settings:
		err = m.keepSettings(rows)
		s.writeMachineMessages()
		if learns && err == nil && parts == 0 && m.settingsKey == key && m.reported == view && srv.settings == key {
			err = s.learnDigest()
		}
		return err
	case ordinary(err): // The server is not quite PostgreSQL: leftSettings has the client's settings undone.
		if !s.b.unreadable.Swap(true) {
			s.c.Logger().Warn("clients' settings cannot be read and do not follow them", "upstream", s.b.cfg.Name, "endpoint", srv.endpoint, "error", err)
		}
		if m.keepsServer() { // the settings last until the client gives the server connection up
			srv.mustClose = true
			srv.flags &^= leftSettings
		}
	case err != nil:
		return s.serverFailed(fmt.Errorf("reading the session state that the client left: %w", err), false)
	}
	return nil
}

// ordinary reports whether err is a server's refusal of a statement after which the server connection
// is still good.
func ordinary(err error) bool {
	said, ok := errors.AsType[*pgwire.ErrorResponse](err)
	return ok && !said.Fatal() && !canceled(err)
}

// queryRemains asks the server for kinds of state, and for settings. The last row has the set of kinds.
func (s *session) queryRemains(parts traces, settings bool) (rows []pgwire.Param, err error) {
	m, srv := &s.machine, s.srv
	if parts == 0 && !settings {
		return nil, nil
	}
	canary := m.canary()
	rows, err = srv.settingRows(m.keepSQL(parts, settings, false))
	for n := 0; canceled(err) && n < maxAttempts; n++ {
		rows, err = srv.settingRows(m.keepSQL(parts, settings, true))
	}
	if ordinary(err) {
		if ended := srv.exec("ROLLBACK"); ended != nil {
			err = ended
		}
	}
	if err == nil && parts != 0 && (len(rows) == 0 || rows[len(rows)-1].Name != "") {
		err = errBackendProtocol
	}
	return m.withoutCanary(rows, canary), err
}

// tellNotified sends the client the notifications that came during the check, if the client listens.
func (s *session) tellNotified() error {
	srv := s.srv
	notified := srv.notified
	srv.notified = nil
	switch {
	case len(notified) == 0:
	case srv.pins&traceChannels == 0:
		srv.flags |= leftListen // a function has listened: perhaps on another client's channel
	default:
		return s.tellNotifications(notified)
	}
	return nil
}

// prepareToKeep prepares a server connection that the client keeps. It sets the client's settings again that
// were lost, since RESET restores those of the gateway's login, and has the server forget other
// clients' values of sequences.
func (s *session) prepareToKeep() error {
	m, srv := &s.machine, s.srv
	if m.staleSequences { // in a transaction that waits for no lock, whatever the client has set
		if err := s.execSoon("BEGIN ISOLATION LEVEL READ COMMITTED;DISCARD SEQUENCES;COMMIT"); err != nil {
			return err
		}
		m.staleSequences, m.usesSequences, srv.sequencesOf = false, false, sequenceUse{}
	}
	if srv.settings == m.settingsKey && srv.flags&leftSettings == 0 && srv.view == m.reported {
		return nil
	}
	sql := m.settingsSQL()
	if first := m.encodingSQL(sql); first != "" {
		if err := s.execSoon(first); err != nil {
			return err
		}
	}
	if sql != "" {
		if err := s.execSoon(sql); err != nil {
			return err
		}
	}
	srv.flags &^= leftSettings
	m.settingsApplied()
	return nil
}

// execSoon runs the gateway's own SQL on the client's server connection, and again if it was canceled.
// It deals with errors of the server connection.
func (s *session) execSoon(sql string) error {
	srv := s.srv
	_ = srv.conn.SetDeadline(time.Now().Add(requestTimeout))
	err := srv.exec(sql)
	for n := 0; canceled(err) && n < maxAttempts; n++ {
		err = srv.exec("ROLLBACK;" + sql) // sql may have begun a transaction
	}
	_ = srv.conn.SetDeadline(time.Time{})
	if err != nil {
		return s.serverFailed(fmt.Errorf("keeping the server connection for the client: %w", err), false)
	}
	return nil
}

// canceled reports whether a server has canceled a statement, for example by statement_timeout, or
// refused one in a transaction that failed for that reason.
func canceled(err error) bool {
	said, ok := errors.AsType[*pgwire.ErrorResponse](err)
	return ok && (said.Code == pgwire.StateQueryCanceled || said.Code == pgwire.StateFailedTransaction)
}

// settingRows reads the answer to a Query that returns names and values. It omits NULLs.
func (s *server) settingRows(sql string) (rows []pgwire.Param, err error) {
	return rows, s.query(sql, func(m *pgwire.DataRow) {
		if len(m.Values) == 2 && m.Values[1] != nil {
			rows = append(rows, pgwire.Param{Name: string(m.Values[0]), Value: string(m.Values[1])})
		}
	})
}

// keepSQL returns the query for all settings that the client may have made: the server's settings by
// their source, and by name custom settings and roles, which pg_settings does not have. The last row,
// without a name, has the kinds of state. The query waits for no lock, whatever isolation level the
// client has set. untimed lifts the client's statement_timeout, and follows a query that was canceled.
func (m *machine) keepSQL(parts traces, settings, untimed bool) string {
	var b strings.Builder
	timeout := ""
	if untimed {
		b.WriteString("ROLLBACK;") // of the query before
	}
	b.WriteString("BEGIN ISOLATION LEVEL READ COMMITTED;")
	if untimed {
		b.WriteString("SELECT 'statement_timeout', pg_catalog.current_setting('statement_timeout');SET LOCAL statement_timeout = 0;")
		timeout = ",'statement_timeout'"
	}
	if settings {
		m.settingRowsSQL(&b, timeout)
	}
	if parts&traceSequences != 0 {
		b.WriteString(usedSequencesSQL)
	}
	if name := m.canary(); name != "" {
		b.WriteString("SELECT '" + name + "','' WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_prepared_statements WHERE name OPERATOR(pg_catalog.=) '" + name + "');")
	}
	if parts != 0 {
		b.WriteString("SELECT ''," + stateSQL(parts) + ";")
	}
	b.WriteString("COMMIT")
	return b.String()
}

// canary returns the name of the oldest of the server's statements, if the transaction may have run DEALLOCATE ALL unseen: a
// function may do so. Then this one is gone, and all others but those that were parsed behind it.
func (m *machine) canary() string {
	if m.checked&traceUnknown == 0 {
		return ""
	}
	var oldest *serverStatement
	for e := m.server.stmts.order.Front(); e != nil; e = e.Next() {
		if on := e.Value.(*serverStatement); oldest == nil || on.at < oldest.at {
			oldest = on
		}
	}
	if oldest == nil {
		return ""
	}
	return oldest.name
}

// withoutCanary removes the row about the canary from the rows of keepSQL, if there is one, and gives up all statements then:
// some may still be there.
func (m *machine) withoutCanary(rows []pgwire.Param, canary string) []pgwire.Param {
	if canary == "" {
		return rows
	}
	i := slices.IndexFunc(rows, func(p pgwire.Param) bool { return p.Name == canary })
	if i < 0 {
		return rows
	}
	m.server.stmts.retireAll(nil)
	if len(m.underClientName) > 0 {
		m.saveClientNames()
		clear(m.underClientName)
	}
	return slices.Delete(rows, i, i+1)
}

// settingRowsSQL adds the part of keepSQL for settings, except those in but, a list in which a comma
// precedes each name.
func (m *machine) settingRowsSQL(b *strings.Builder, but string) {
	const equals = " OPERATOR(pg_catalog.=) " // qualified, since the client's search_path may have other operators
	b.WriteString("SELECT name, setting FROM pg_catalog.pg_settings WHERE source" + equals + "'session' AND NOT name" + equals +
		"ANY (ARRAY['transaction_isolation','transaction_read_only','transaction_deferrable'" + but + "]) " +
		"UNION ALL SELECT n, pg_catalog.current_setting(n, true) FROM (VALUES ('session_authorization'),('role')")
	names := m.customNames()
	for _, name := range names {
		b.WriteString(",(" + m.literal(name) + ")")
	}
	b.WriteString(") AS v (n)")
	if len(names) > 0 { // the settings of extensions are among the first, if the client made them
		b.WriteString(" WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_settings AS s WHERE pg_catalog.lower(s.name)" + equals + "pg_catalog.lower(n))")
	}
	b.WriteString(";")
}

// customNames returns the names of the custom settings that the client may have.
func (m *machine) customNames() (names []string) {
	add := func(name string) {
		if strings.Contains(name, ".") && !slices.ContainsFunc(names, func(n string) bool { return strings.EqualFold(n, name) }) {
			names = append(names, name)
		}
	}
	for _, p := range settingsOfKey(m.settingsKey) {
		add(p.Name)
	}
	for _, p := range m.params {
		add(p.Name)
	}
	for _, name := range m.customs {
		add(name)
	}
	return names
}

// keepSettings takes the server's answer for the client's settings. A startup setting that is no longer set has its
// startup value: the client has reset it.
func (m *machine) keepSettings(rows []pgwire.Param) error {
	view, told, srv := m.reported.Value(), m.reported.Value(), m.server
	var list []pgwire.Param
	var set uint16 // of trackedNames
	for _, p := range rows {
		i := tracked(p.Name)
		switch {
		case i >= 0 && view.known[i]:
			set |= 1 << i
			if m.settingsReset {
				view.value[i] = p.Value // startOver takes it for reset if it is that of the gateway's login
			}
			if !isASCII(p.Value) { // a search_path, which servers do not report again when its encoding changes
				view.value[i], told.value[i], srv.params.value[i] = p.Value, p.Value, p.Value
				srv.view = unique.Make(srv.params)
			}
		case p.Name == "role" && p.Value == "none" && (m.settingsReset || !m.startsWithRole()): // otherwise SET ROLE NONE has undone the role of the startup
		case slices.Contains(srv.baseline, p): // an unchanged session_authorization
		case p.Value == "" && m.isBack(p.Name):
		default:
			list = append(list, p)
		}
	}
	hidden := m.unnamedSetting && (m.keepsServer() || m.channelsOnly) // the server connection may stay with the client
	srv.hidden = srv.hidden || hidden
	same := !m.startupUnconfirmed && (!m.unnamedSetting || hidden) // the server connection has exactly these
	m.startupUnconfirmed, m.unnamedSetting, m.kept, m.settingsReset, m.customGiven = false, false, true, false, m.customGiven[:0]
	m.customBack, m.rolledBack, m.unreported = m.customBack[:0], false, false
	for _, p := range m.params {
		i := tracked(p.Name)
		switch {
		case i < 0 || !view.known[i]:
			if !slices.ContainsFunc(list, func(o pgwire.Param) bool { return strings.EqualFold(o.Name, p.Name) }) {
				list, same = append(list, p), false
			}
		default:
			value, ok := m.shared.accepted.get(p)
			switch {
			case !ok:
			case set&(1<<i) == 0:
				view.value[i] = value
			case view.value[i] != value: // set on every server connection, even if the gateway's login has the same value: otherwise it would count as reset
				list = append(list, pgwire.Param{Name: trackedNames[i], Value: view.value[i]})
			}
		}
	}
	if err := checkKept(list); err != nil {
		return err
	}
	slices.SortFunc(list, func(a, b pgwire.Param) int {
		return cmp.Or(cmp.Compare(settingOrder(a.Name), settingOrder(b.Name)), cmp.Compare(a.Name, b.Name))
	})
	was, key := m.reported, m.settingsKey
	m.tellChanged(told, view)
	m.reported, m.settingsKey = unique.Make(view), keyOf(list)
	m.replan()
	if m.checked&traceUnknown != 0 && m.prepared && (m.reported != was || m.settingsKey != key) {
		srv.flags |= leftPrepare // the settings when plans were made may have differed from those of the statements' plans
	}
	m.checked = 0
	if same {
		srv.settings = m.settingsKey
		srv.flags &^= leftSettings
	}
	return nil
}

// tellChanged tells the client of its settings, which it was told other values of: a function or DO may have reset them.
func (m *machine) tellChanged(told, view trackedParams) {
	for i, name := range trackedNames {
		if view.known[i] && view.value[i] != told.value[i] {
			m.addToClient(&pgwire.ParameterStatus{Name: name, Value: view.value[i]})
		}
	}
}

// isBack reports whether a custom setting that is empty now has returned to that of the client's startup: RESET looks like SET to
// nothing on the server. So it does if the client had another value before, or if nothing of the transaction has been rolled back.
func (m *machine) isBack(name string) bool {
	same := func(other string) bool { return strings.EqualFold(other, name) }
	if !strings.Contains(name, ".") || slices.ContainsFunc(m.customGiven, same) {
		return false
	}
	back := slices.ContainsFunc(m.customBack, func(b string) bool { return b == everything || same(b) })
	value, _ := settingIn(m.settingsKey, name)
	return (m.settingsReset || back) && value != "" || back && !m.rolledBack
}

// startsWithRole reports whether the client's startup settings have a role.
func (m *machine) startsWithRole() bool {
	return slices.ContainsFunc(m.params, func(p pgwire.Param) bool { return strings.EqualFold(p.Name, "role") })
}

// settingOrder is the order in which settings are set: after a change of role others may be forbidden, and a change of
// the session's user resets the role.
func settingOrder(name string) int {
	return 1 + slices.Index([]string{"session_authorization", "role"}, name)
}

// checkKept refuses settings that are too many, too long, or cannot be passed on.
func checkKept(list []pgwire.Param) error {
	size := 0
	for _, p := range list {
		size += len(p.Name) + len(p.Value)
		if strings.Contains(p.Name, "=") {
			return fmt.Errorf("%w: the name %q", errSettingsKept, p.Name)
		}
	}
	if len(list) > maxSettings || size > maxSettingBytes {
		return fmt.Errorf("%w: %d settings of %d bytes, the limits are %d and %d", errSettingsKept, len(list), size, maxSettings, maxSettingBytes)
	}
	return nil
}
