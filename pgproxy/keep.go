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

// In transaction mode the settings that a client makes follow it. Once a transaction that may have changed some is
// over, the gateway reads the settings, which is right whatever was rolled back, and takes them for the client's. They
// are set on the server connections that the client gets next, unless these have them already.

// errSettingsKept is wrapped by errors about settings that cannot follow their client.
var errSettingsKept = errors.New("settings that cannot follow the client in transaction mode")

// maxSettingBytes bounds the settings of one client that follow it, in bytes: they are sent again to each server
// connection that has others.
const maxSettingBytes = 64 << 10

// keepDue reports whether the transaction is over and has changed settings.
func (m *machine) keepDue() bool {
	return m.work != nil && m.mode == Transaction && m.server != nil && m.server.flags&leftSettings != 0 && m.st.free()
}

// keep reads the settings that the client has made, if it may have made some. The client gets its answers first. No
// server reader runs. An error is the end of the session: the client has settings that the gateway does not know.
func (s *session) keep() error {
	m, srv := &s.machine, s.srv
	if !m.keepDue() {
		return nil
	}
	if err := s.c.Writer.Flush(); err != nil {
		return clientWriteError(err)
	}
	s.endCancels() // release looks whether they have ended
	_ = srv.conn.SetDeadline(time.Now().Add(syncTimeout))
	rows, err := srv.settingRows(m.keepSQL(false))
	for canceled(err) { // until the deadline
		rows, err = srv.settingRows(m.keepSQL(true))
	}
	if said, ok := errors.AsType[*pgwire.ErrorResponse](err); ok && !said.Fatal() && !canceled(err) {
		// A server that is not quite PostgreSQL: the client's settings are undone, as leftSettings asks for.
		if !s.b.unreadable.Swap(true) { // once, because every client of such a server would log it
			s.c.Logger().Warn("clients' settings cannot be read and do not follow them", "upstream", s.b.cfg.Name, "endpoint", srv.endpoint, "error", err)
		}
		if err = srv.exec("ROLLBACK"); err == nil {
			srv.unnamed = 0
			_ = srv.conn.SetDeadline(time.Time{})
			return nil
		}
	}
	_ = srv.conn.SetDeadline(time.Time{})
	if err != nil {
		return s.serverFailed(fmt.Errorf("reading the client's settings: %w", err), false)
	}
	srv.unnamed = 0
	return m.keepSettings(rows)
}

// canceled reports whether a server has canceled a statement, as its statement_timeout has it, or refused one in a transaction in which it had.
func canceled(err error) bool {
	said, ok := errors.AsType[*pgwire.ErrorResponse](err)
	return ok && (said.Code == pgwire.StateQueryCanceled || said.Code == pgwire.StateFailedTransaction)
}

// settingRows reads the answer to a Query that returns names and values. NULLs are left out.
func (s *server) settingRows(sql string) (rows []pgwire.Param, err error) {
	return rows, s.query(sql, func(m *pgwire.DataRow) {
		if len(m.Values) == 2 && m.Values[1] != nil {
			rows = append(rows, pgwire.Param{Name: string(m.Values[0]), Value: string(m.Values[1])})
		}
	})
}

// keepSQL returns the query for all settings that the client may have made: settings of the server by their source, and
// by name custom ones and roles, which pg_settings does not have. It waits for nothing, whatever isolation level the
// client has set. With untimed it ignores the client's statement_timeout, for a repetition after a canceled query.
func (m *machine) keepSQL(untimed bool) string {
	var b strings.Builder
	timeout := ""
	if untimed {
		b.WriteString("ROLLBACK;") // of the one before
	}
	b.WriteString("BEGIN ISOLATION LEVEL READ COMMITTED;")
	if untimed {
		b.WriteString("SELECT 'statement_timeout', pg_catalog.current_setting('statement_timeout');SET LOCAL statement_timeout = 0;")
		timeout = ",'statement_timeout'"
	}
	const equals = " OPERATOR(pg_catalog.=) " // which the client's search_path does not replace
	b.WriteString("SELECT name, setting FROM pg_catalog.pg_settings WHERE source" + equals + "'session' AND NOT name" + equals +
		"ANY (ARRAY['transaction_isolation','transaction_read_only','transaction_deferrable'" + timeout + "]) " +
		"UNION ALL SELECT n, pg_catalog.current_setting(n, true) FROM (VALUES ('session_authorization'),('role')")
	names := m.customNames()
	for _, name := range names {
		b.WriteString(",(" + quote(name) + ")")
	}
	b.WriteString(") AS v (n)")
	if len(names) > 0 { // an extension's settings are among the first, if they are the client's
		b.WriteString(" WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_settings AS s WHERE pg_catalog.lower(s.name)" + equals + "pg_catalog.lower(n))")
	}
	b.WriteString(";COMMIT")
	return b.String()
}

// customNames returns the names of custom settings that the client may have.
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
	view, srv := m.reported.Value(), m.server
	var list []pgwire.Param
	var set uint16 // of trackedNames
	for _, p := range rows {
		i := tracked(p.Name)
		switch {
		case i >= 0 && view.known[i]:
			set |= 1 << i
		case p.Name == "role" && p.Value == "none":
		case slices.Contains(srv.baseline, p): // session_authorization, which is unchanged
		default:
			list = append(list, p)
		}
	}
	same := !m.unsure && !m.unnamedSetting // the server connection has just these
	m.unsure, m.unnamedSetting, m.kept = false, false, true
	for _, p := range m.params {
		i := tracked(p.Name)
		switch {
		case i < 0 || !view.known[i]:
			if !slices.ContainsFunc(list, func(o pgwire.Param) bool { return strings.EqualFold(o.Name, p.Name) }) {
				list, same = append(list, p), false
			}
		case set&(1<<i) == 0:
			if value, ok := m.shared.accepted.get(p); ok {
				view.value[i] = value
			}
		}
	}
	if err := checkKept(list, view.value[tracked("client_encoding")]); err != nil {
		return err
	}
	slices.SortFunc(list, func(a, b pgwire.Param) int {
		return cmp.Or(cmp.Compare(lateness(a.Name), lateness(b.Name)), cmp.Compare(a.Name, b.Name))
	})
	m.reported, m.settingsKey = unique.Make(view), keyOf(list)
	m.replan()
	if same {
		srv.settings = m.settingsKey
		srv.flags &^= leftSettings
	}
	return nil
}

// lateness is the order in which settings are set: after a change of role others may be forbidden, and a change of the
// session's user resets the role.
func lateness(name string) int {
	return 1 + slices.Index([]string{"session_authorization", "role"}, name)
}

// checkKept refuses settings that are too many, too long, or cannot be passed on safely: in some of the client's encodings a backslash may be
// the half of a character.
func checkKept(list []pgwire.Param, encoding string) error {
	size := 0
	for _, p := range list {
		size += len(p.Name) + len(p.Value)
		if strings.Contains(p.Name, "=") {
			return fmt.Errorf("%w: the name %q", errSettingsKept, p.Name)
		}
		if slices.Contains(halfBackslashes, strings.ToUpper(encoding)) && checkParam(p) != nil {
			return fmt.Errorf("%w: the value of %s mixes backslashes with characters outside ASCII", errSettingsKept, p.Name)
		}
	}
	if len(list) > maxSettings || size > maxSettingBytes {
		return fmt.Errorf("%w: %d settings of %d bytes, the limits are %d and %d", errSettingsKept, len(list), size, maxSettings, maxSettingBytes)
	}
	return nil
}

// halfBackslashes are the encodings of clients in which the second byte of a character may be that of a backslash.
var halfBackslashes = []string{"BIG5", "GB18030", "GBK", "JOHAB", "SHIFT_JIS_2004", "SJIS", "UHC"}
