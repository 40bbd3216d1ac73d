package pgproxy

import (
	"unique"

	"github.com/headpond/headpond/pgwire"
)

// DatabaseAlone returns the database that a statement needs for itself, if the gateway sees that it is about databases.
func DatabaseAlone(sql string) string {
	if (*catalog)(nil).judge([]byte(sql))&traceAlone == 0 {
		return ""
	}
	return databaseAlone([]byte(sql))
}

// VacatesUntilLost has a client send a Query whose server connection is lost before the answer, and returns how often a
// database began to be vacated, and how often that ended.
func VacatesUntilLost(sql string) (began, ended int) {
	pool := &FakePool{}
	s, srv := newJudge(pool)
	m := &s.machine
	m.rules = &pinRules{vacate: func(string, unique.Handle[string]) func() { began++; return func() { ended++ } }}
	s.ensureWork()
	m.begin(&srv.state)
	_, _ = m.clientMessage(messageOf((&pgwire.Query{SQL: sql}).Append(nil)))
	m.lost()
	return began, ended
}
