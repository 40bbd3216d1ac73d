package pgproxy_test

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/headpond/headpond/pgwire"
)

// modelSettings are the settings of a backend of the model: TimeZone, which is reported, and app.x, which is not.
type modelSettings struct {
	now      map[string]string // that were set in the session
	before   map[string]string // the transaction
	open     bool              // before is valid
	reported string            // the last report of TimeZone
	early    bool              // reports come at once, as before PostgreSQL 14, and not before ReadyForQuery only
	refuses  func() bool       // whether it refuses set_config; nil = never
}

func newModelSettings(early bool, values map[string]string) *modelSettings {
	s := &modelSettings{now: maps.Clone(values), early: early}
	s.reported = s.zone()
	return s
}

func (s *modelSettings) zone() string {
	if zone, ok := s.now["TimeZone"]; ok {
		return zone
	}
	return "GMT"
}

func (s *modelSettings) rows() (rows []pgwire.Param) {
	for _, name := range slices.Sorted(maps.Keys(s.now)) {
		rows = append(rows, pgwire.Param{Name: name, Value: s.now[name]})
	}
	return rows
}

func (s *modelSettings) begin() {
	if !s.open {
		s.before, s.open = maps.Clone(s.now), true
	}
}

func (s *modelSettings) commit() { s.open = false }

func (s *modelSettings) rollback() []pgwire.Message {
	if s.open {
		s.now = maps.Clone(s.before)
	}
	return s.report(false)
}

// report returns the report of TimeZone if there is a new one.
func (s *modelSettings) report(ready bool) []pgwire.Message {
	if zone := s.zone(); zone != s.reported && (ready || s.early) {
		s.reported = zone
		return []pgwire.Message{&pgwire.ParameterStatus{Name: "TimeZone", Value: zone}}
	}
	return nil
}

var setConfig = regexp.MustCompile(`pg_catalog\.set_config\('([^']*)',(?:'([^']*)'|NULL),false\)`)

// set executes the calls of set_config in a text.
func (s *modelSettings) set(text string) {
	for _, call := range setConfig.FindAllStringSubmatch(text, -1) {
		if delete(s.now, call[1]); !strings.Contains(call[0], "NULL") {
			s.now[call[1]] = call[2]
		}
	}
}

// undo is what the gateway does before it lets a client use the server connection.
func (s *modelSettings) undo(sql string) {
	if strings.Contains(sql, "RESET ALL") {
		clear(s.now)
	}
	s.set(sql)
	s.reported = s.zone()
}

// run executes a text; nil = it is refused.
func (s *modelSettings) run(b *backend, text string) (said []pgwire.Message) {
	tag := strings.ToUpper(text)
	word, value, _ := strings.Cut(text, " ")
	s.begin()
	switch {
	case strings.HasPrefix(text, "BEGIN"):
		b.tx = pgwire.TxActive
	case text == "COMMIT" && b.tx == pgwire.TxActive:
		b.tx, b.open = pgwire.TxIdle, false
		s.commit()
	case setConfig.MatchString(text):
		if s.refuses != nil && s.refuses() {
			return nil
		}
		s.set(text)
		said = append(s.report(false), &pgwire.DataRow{Values: [][]byte{[]byte(value)}})
		tag = "SELECT 1"
	case text == "rollback":
		said = s.rollback()
		s.commit()
	case word == "zone":
		s.now["TimeZone"] = value
		said, tag = s.report(false), "SET"
	case word == "app":
		s.now["app.x"] = value
		tag = "SET"
	case word == "select":
		said = append(said, &pgwire.DataRow{Values: [][]byte{[]byte(text + " in " + s.zone() + " for " + s.now["app.x"])}})
		tag = "SELECT 1"
	}
	return append(said, &pgwire.CommandComplete{Tag: tag})
}

var settingTexts = []string{"select 1", "select 2", "begin", "rollback", "fail", "bad", "zone UTC", "zone Asia/Tokyo", "app x", "app y", "deallocate all"}

// startSettings gives the clients of a world settings of their own. A refusal is up to refuses, which may be nil.
func startSettings(t testing.TB, early bool, refuses func() bool) *modelWorld {
	w := newModelWorld(t, 0, 0)
	w.texts = settingTexts
	for range 2 {
		w.addSettingsServer(early, refuses)
	}
	w.lost = func() { w.addSettingsServer(early, refuses) }
	for i, c := range w.clients {
		zone, app := []string{"UTC", "Asia/Tokyo", "UTC"}[i], []string{"x", "x", "y"}[i]
		c.machine.Set(pgwire.Param{Name: "TimeZone", Value: zone}, pgwire.Param{Name: "app.x", Value: app})
		c.straight.settings = newModelSettings(early, map[string]string{"TimeZone": zone, "app.x": app})
	}
	return w
}

func (w *modelWorld) addSettingsServer(early bool, refuses func() bool) {
	srv, s := w.addServer(3)
	s.settings = newModelSettings(early, map[string]string{})
	srv.Report(pgwire.Param{Name: "TimeZone", Value: s.settings.zone()})
	srv.Rows = s.settings.rows
	if refuses != nil {
		s.settings.refuses = func() bool {
			if !refuses() {
				return false
			}
			for _, c := range w.clients {
				c.refused = c.refused || c.machine.Leased() == srv
			}
			return true
		}
	}
}
