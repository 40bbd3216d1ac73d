package pgproxy

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"

	"github.com/headpond/headpond/pgwire"
)

// Two things stay on a server connection that no statement takes away: the names of custom settings, which are NULL where there is no such name
// and empty where another client has made one, and that there was a temporary table, which forbids to change temp_buffers. A client that asks for
// one of them by the first message of a transaction, and has not made it itself, gets another server connection: see machine.renews. Most texts are
// not read for that: only those that come first on a server connection where other clients have left something of the kind.

// maxRenewals is how many server connections are closed for one transaction of a client before it gets one on which others have left something.
const maxRenewals = 8

// marks are what clients have made that stays on their server connections.
type marks struct {
	// names are those of custom settings, in lower case and in order, each with a zero before it. There are at most maxSettings, of
	// maxSettingBytes: others are not noticed.
	names string
	// temps means that there has been a temporary object.
	temps bool
}

// in reports whether others have all of them too.
func (k *marks) in(o *marks) bool {
	return (k.names == "" || k.names == o.names) && (o.temps || !k.temps)
}

// has reports whether a name, in lower case, is among them.
func (k *marks) has(name string) bool {
	for names := k.names; ; {
		i := strings.Index(names, name)
		if i < 0 {
			return false
		}
		rest := names[i+len(name):]
		if names[max(i-1, 0)] == 0 && (rest == "" || rest[0] == 0) {
			return true
		}
		names = rest
	}
}

// add adds the name of a custom setting.
func (k *marks) add(name string) {
	name = strings.ToLower(name)
	if k.has(name) || len(k.names)+len(name) >= maxSettingBytes || strings.Count(k.names, "\x00") >= maxSettings {
		return
	}
	all := append(strings.Split(k.names, "\x00")[1:], name)
	slices.Sort(all)
	k.names = "\x00" + strings.Join(all, "\x00")
}

// nameSetting notes that the client makes a custom setting.
func (m *machine) nameSetting(name string) {
	m.server.made.add(name)
	if m.made.add(name); m.made.names == m.server.made.names {
		m.made.names = m.server.made.names // one string for both
	}
}

// nameApplied notes that the server connection has the client's custom settings.
func (m *machine) nameApplied() {
	if strings.IndexByte(m.settingsKey, '.') < 0 {
		return
	}
	for _, p := range settingsOfKey(m.settingsKey) {
		if strings.IndexByte(p.Name, '.') >= 0 {
			m.server.made.add(p.Name)
		}
	}
}

// sought is what a text asks for.
type sought struct {
	names []string // of custom settings
	any   bool     // perhaps others
	temps bool     // what depends on whether there was a temporary object
}

// seeks reads a text for that. Words in strings and comments count, too.
func seeks(text []byte) (s sought) {
	begins := true // of a statement
	for i := 0; i < len(text); {
		if !inWord[text[i]] {
			begins = begins || text[i] == ';'
			i++
			continue
		}
		from := i
		for i < len(text) && inWord[text[i]] {
			i++
		}
		s.word(text[from:i], text[i:], begins)
		begins = false
	}
	return s
}

// word notes what a word before the rest of a text asks for.
func (s *sought) word(word, rest []byte, begins bool) {
	name := ""
	switch len(word) {
	case len("show"):
		if begins && isWord(word, "show") {
			name = customSet(rest)
		}
	case len("temp_buffers"):
		s.temps = s.temps || isWord(word, "temp_buffers")
	case len("current_setting"): // and of current_schemas
		s.temps = s.temps || isWord(word, "current_schemas")
		if isWord(word, "current_setting") {
			known := false
			name, known = literalArgument(rest)
			s.any = s.any || !known
		}
	case len("pg_my_temp_schema"):
		s.temps = s.temps || isWord(word, "pg_my_temp_schema")
	case len("pg_settings_get_flags"):
		s.any = s.any || isWord(word, "pg_settings_get_flags")
	}
	if strings.IndexByte(name, '.') >= 0 {
		s.names = append(s.names, strings.ToLower(name))
	}
}

// literalArgument returns the first argument of a function, if it is a plain string.
func literalArgument(rest []byte) (value string, known bool) {
	rest = rest[space(rest, '('):]
	if len(rest) == 0 || rest[0] != '\'' {
		return "", false
	}
	n := quotedEnd(rest, false)
	inside, after := rest[1:max(n-1, 1)], rest[n:]
	after = after[space(after, ' '):]
	if bytes.IndexByte(inside, '\\') >= 0 || len(after) == 0 || bytes.IndexByte([]byte(",):"), after[0]) < 0 {
		return "", false
	}
	return string(inside), true
}

// OIDs of current_setting, with one argument and with two.
const (
	oidCurrentSetting        = 2077
	oidCurrentSettingMissing = 3294
)

// soughtBy returns what a message asks for. Of a message longer than maxPeek nobody knows.
func (m *machine) soughtBy(msg message) (s sought) {
	if !msg.whole(msg.size()) {
		return s
	}
	switch msg.typ {
	case pgwire.TypeQuery:
		return seeks(withoutNul(msg.body))
	case pgwire.TypeParse:
		_, text, _ := bytes.Cut(msg.body, []byte{0})
		return seeks(withoutNul(text))
	case pgwire.TypeBind:
		_, name, _, err := pgwire.BindNames(msg.body)
		if err != nil {
			return s
		}
		if st := m.stmts[string(statementKey(name))]; st != nil {
			return seeks(withoutNul([]byte(st.body)))
		} else if len(name) == 0 {
			return seeks(withoutNul(m.unnamed.text))
		}
	case pgwire.TypeFunctionCall:
		if len(msg.body) >= oidSize {
			oid := binary.BigEndian.Uint32(msg.body)
			s.any = oid == oidCurrentSetting || oid == oidCurrentSettingMissing
		}
	}
	return s
}

// renews reports whether the client would notice, by its first message on a server connection, what only others have made there. msg must be
// there as far as maxPeek.
func (m *machine) renews(msg message) bool {
	asked, server := m.soughtBy(msg), &m.server.made
	if asked.temps && server.temps && !m.made.temps {
		return true
	}
	if asked.any {
		asked.names = strings.Split(server.names, "\x00")[1:]
	}
	return slices.ContainsFunc(asked.names, func(name string) bool { return server.has(name) && !m.hasNamed(name) })
}

// hasNamed reports whether the client has made a custom setting, the name of which is in lower case.
func (m *machine) hasNamed(name string) bool {
	return m.made.has(name) || slices.ContainsFunc(settingsOfKey(m.settingsKey), func(p pgwire.Param) bool { return strings.EqualFold(p.Name, name) })
}

// begun judges the client's first message on a server connection where others have left something that it could notice; false = it would not.
func (m *machine) begun(msg message) (act action, ok bool) {
	if !msg.whole(maxPeek) {
		return action{do: more, n: min(msg.size(), maxPeek)}, true
	}
	if m.renews(msg) {
		return action{do: renew}, true
	}
	m.opening = false
	return action{}, false
}

// renew gives the client another server connection for a message, because of what others have left on this one, which is closed. done is that of
// leaseFor. No server reader runs, and nothing was sent.
func (s *session) renew(msg *message) (done bool, err error) {
	if m := &s.machine; !s.b.renewed.Swap(true) { // once, for it may happen often
		s.c.Logger().Info("a client asks for custom settings or temp_buffers, which others have used on its server connection: it gets another one, and so will others",
			"upstream", s.b.cfg.Name, "endpoint", m.server.endpoint)
	}
	for range maxRenewals {
		s.discard()
		if done, err := s.leaseFor(msg, false); done || err != nil {
			return done, err
		}
		if !s.machine.opening || !s.machine.renews(*msg) {
			return false, nil
		}
	}
	s.machine.opening = false
	return false, nil
}
