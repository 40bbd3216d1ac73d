package sqlite

import (
	"cmp"
	"strings"

	"github.com/headpond/headpond/pgwire"
)

// modes are the modes in BEGIN or SET TRANSACTION; "" means the session's default.
type modes struct {
	isolation, readOnly string // values of the settings transaction_isolation and transaction_read_only
	immediate           bool   // SQLite's IMMEDIATE or EXCLUSIVE
}

// isolations are the isolation levels. The one that is a single word comes first.
var isolations = []string{"serializable", "repeatable read", "read committed", "read uncommitted"}

// parseModes reads the transaction modes of PostgreSQL and SQLite.
func parseModes(tokens []token) (m modes) {
	for i, t := range tokens[1:] {
		before := tokens[i]
		switch {
		case t.isAny("IMMEDIATE", "EXCLUSIVE"):
			m.immediate = true
		case before.is("READ") && t.is("ONLY"):
			m.readOnly = "on"
		case before.is("READ") && t.is("WRITE"):
			m.readOnly = "off"
		}
		for _, level := range isolations {
			first, second, two := strings.Cut(level, " ")
			if !two && t.is(strings.ToUpper(first)) || two && before.is(strings.ToUpper(first)) && t.is(strings.ToUpper(second)) {
				m.isolation = level
			}
		}
	}
	return m
}

// or returns m with its missing modes from other.
func (m modes) or(other modes) modes {
	return modes{cmp.Or(m.isolation, other.isolation), cmp.Or(m.readOnly, other.readOnly), m.immediate || other.immediate}
}

// defaults are the modes of a transaction that gives none.
func (s *session) defaults() modes {
	return modes{isolation: s.settings["default_transaction_isolation"], readOnly: s.settings["default_transaction_read_only"]}
}

// modeOf returns how a transaction block with these modes reads and writes.
func (s *session) modeOf(m modes) txMode {
	all := m.or(s.defaults())
	switch {
	case m.readOnly == "on":
		return txReadOnly
	case m.immediate:
		return txImmediate
	case all.readOnly == "on" || s.b.db.ReadOnly():
		return txReadOnly
	case all.isolation == "serializable" || all.isolation == "repeatable read":
		return txSerializable
	}
	return txReadCommitted
}

// setTransaction implements SET TRANSACTION.
func (s *session) setTransaction(m modes) error {
	if !s.block {
		s.notice(pgwire.StateNoActiveTransaction, "SET TRANSACTION can only be used in transaction blocks")
		return nil
	}
	if m.readOnly == "off" && s.mode == txReadOnly && s.pinned != nil {
		return sqlError(pgwire.StateActiveTransaction, "transaction read-write mode must be set before any query")
	}
	s.asked = m.or(s.asked)
	s.mode = s.modeOf(s.asked)
	return nil
}

// setCharacteristics implements SET SESSION CHARACTERISTICS AS TRANSACTION.
func (s *session) setCharacteristics(m modes) error {
	for name, v := range map[string]string{"default_transaction_isolation": m.isolation, "default_transaction_read_only": m.readOnly} {
		if v == "" {
			continue
		}
		if err := s.set(name, v); err != nil {
			return err
		}
	}
	return nil
}

// readOnly reports whether a statement must not write.
func (s *session) readOnly() bool {
	if s.block {
		return s.mode == txReadOnly
	}
	return s.settings["default_transaction_read_only"] == "on"
}
