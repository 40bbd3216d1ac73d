package pgproxy

import (
	"crypto/rand"
	"fmt"
	"time"

	"github.com/headpond/headpond/pgwire"
)

// A check of any kind reads pg_settings, which takes the server most of the check's time. Mostly nothing has been left. So
// the gateway first asks for a digest: one number for the values of all settings but those that every server reports, and the
// kinds of state that exist. If these are none, and the number is that of the client's settings on this server connection,
// the transaction has left nothing but perhaps custom settings, of which the server has no list. The number is learned
// after a check that has found no change.
//
// The statement is prepared, since planning it takes longer than running it. A function that takes its name from
// pg_prepared_statements, which no client does by chance, could put another one in its place.

// digest is the digest of a server connection that has certain settings and no other state.
type digest struct {
	settings string // as serverState.settings
	value    string // "" = unknown
}

// digestOf returns the statement that asks for a digest. names are those of the settings, separated by commas: nothing but
// letters, underscores and dots.
func digestOf(names string) string {
	return "SELECT pg_catalog.hashtextextended(pg_catalog.string_agg(pg_catalog.current_setting(n,true),'|'),0)," + stateSQL(checkable) +
		" FROM pg_catalog.unnest('{session_authorization,role," + names + "}'::pg_catalog.text[]) AS n"
}

// digestible reports whether a digest can show that the transaction has left nothing that another client must not get: it may
// have left anything unseen, the server connection had the client's settings, and there are no custom ones, nor pins.
func (m *machine) digestible() bool {
	srv := m.server
	return m.traces&(traceUnknown|called) != 0 && m.traces&^(traceUnknown|called|traceLess) == 0 && srv.pins == 0 && !m.unnamedSetting &&
		srv.settings == m.settingsKey && !m.startupUnconfirmed && !m.checksSequences(traceUnknown) && m.sub == nil && len(m.customNames()) == 0
}

// digestLeaves asks for a digest, if that may do instead of a check, and reports whether the transaction has left nothing else
// than it says.
func (s *session) digestLeaves() (nothing bool, err error) {
	m, srv := &s.machine, s.srv
	if srv.flags != 0 || srv.digest.value == "" || srv.stmts.digest == "" || // prepared before: otherwise DEALLOCATE ALL in a function would not be seen
		srv.digest.settings != srv.settings || !m.digestible() {
		return false, nil
	}
	value, err := s.askDigest()
	if err != nil || value == "" || value != srv.digest.value || srv.flags != 0 { // a setting that the server reports
		return false, err
	}
	m.forgetCalls()
	m.traces, m.checked, m.used, m.sequencesDiscarded, m.rolledBack = 0, 0, 0, false, false
	m.epoch = m.shared.knowledge.epochOn(m.server)
	return true, s.resetCustoms()
}

// resetCustoms has the server forget custom settings, and with them all others: the next client's go to it with its request.
func (s *session) resetCustoms() error {
	srv := s.srv
	if !replayable(srv.settings) { // RESET ALL leaves the role
		srv.flags |= leftSettings
		return nil
	}
	switch err := s.within(func() error { return srv.exec("RESET ALL") }); {
	case err == nil:
		srv.settings, srv.unnamed = "", 0
	case ordinary(err) || canceled(err):
		srv.flags |= leftSettings
	default:
		return s.serverFailed(fmt.Errorf("resetting the settings: %w", err), false)
	}
	return nil
}

// within runs a request of the gateway's own to the server, within requestTimeout.
func (s *session) within(request func() error) error {
	conn := s.srv.conn
	_ = conn.SetDeadline(time.Now().Add(requestTimeout))
	err := request()
	_ = conn.SetDeadline(time.Time{})
	return err
}

// learnDigest asks for a digest after a check that has found nothing.
func (s *session) learnDigest() error {
	value, err := s.askDigest()
	s.srv.digest = digest{s.srv.settings, value}
	return err
}

// askDigest returns the digest of the server connection, "" if there is any state or the server has none. An error means that
// the session must end.
func (s *session) askDigest() (value string, err error) {
	m, srv := &s.machine, s.srv
	sql := m.shared.knowledge.digest.Load()
	if sql == nil {
		return "", nil
	}
	var b []byte
	if srv.stmts.digest == "" {
		srv.stmts.digest = namePrefix + rand.Text()
		b = (&pgwire.Parse{Name: srv.stmts.digest, Query: *sql}).Append(b)
	}
	_, _ = srv.w.Write(append(appendRun(b, srv.stmts.digest), syncMessage...))
	err = s.within(func() error {
		return srv.answer(func(row *pgwire.DataRow) {
			if len(row.Values) == 2 && string(row.Values[1]) == "0" {
				value = string(row.Values[0])
			}
		})
	})
	switch {
	case err == nil:
		return value, nil
	case ordinary(err) || canceled(err): // perhaps a role that may not read a setting
		srv.stmts.retireQuestions()
		return "", nil
	}
	return "", s.serverFailed(fmt.Errorf("reading the digest of the session state: %w", err), false)
}
