package pgproxy

import (
	"bytes"
	"slices"
	"strings"
	"sync/atomic"
)

// Some state that a client leaves in a server connection cannot be removed: the name of a custom setting, which others
// then read as empty instead of NULL, and the use of temporary tables, after which temp_buffers cannot be changed. Most
// clients never notice, and to close the connection after each such client would cost a login for each. So the one who
// would notice pays: before a statement that shows such state of another client, the lease gets another server
// connection (renew.go). That is possible as long as nothing has run in the lease but BEGIN.

// remnants is what earlier clients have left in a server connection for good.
type remnants struct {
	names []remnant // names of custom settings
	// unnamed is whose custom settings of unknown names there were, and temps who has used temporary tables.
	unnamed, temps whose
}

// remnant is the name of a custom setting, in lower case as far as it is ASCII, and the client that has set it.
type remnant struct {
	name string
	of   whose
}

// whose is the number of a client (machine.client), nobody, or severalClients.
type whose uint64

const (
	nobody         whose = 0
	severalClients whose = 1<<64 - 1
)

// with returns w after another use by a client.
func (w whose) with(client uint64) whose {
	if w == nobody || w == whose(client) {
		return whose(client)
	}
	return severalClients
}

// includesOthers reports whether another client than this one is among w.
func (w whose) includesOthers(client uint64) bool { return w != nobody && w != whose(client) }

// Limits of the names that are remembered, beyond which they count as unknown. Programs have a handful; a search among
// these takes less than a microsecond.
const (
	maxRemnants    = 32      // of a server connection
	maxOwnNames    = 1 << 10 // of a client, in bytes together
	maxRemnantName = 200     // in bytes; three names of PostgreSQL, with dots
)

// any reports whether there is anything.
func (r *remnants) any() bool { return len(r.names) > 0 || r.unnamed != nobody || r.temps != nobody }

// add records that a client has set a custom setting.
func (r *remnants) add(name string, client uint64) {
	for i := range r.names {
		if n := &r.names[i]; strings.EqualFold(n.name, name) {
			n.of = n.of.with(client)
			return
		}
	}
	if len(r.names) == maxRemnants || len(name) > maxRemnantName {
		r.unnamed = r.unnamed.with(client)
		return
	}
	r.names = append(r.names, remnant{lower(name), whose(client)})
}

// lower returns a name in lower case as far as it is ASCII, as servers compare names of settings.
func lower(name string) string {
	b := []byte(name)
	for i, c := range b {
		if c-'A' < 26 {
			b[i] = c | 0x20
		}
	}
	return string(b)
}

// find returns whose a custom setting is, nobody's if it was never set.
func (r *remnants) find(name string) whose {
	for i := range r.names {
		if strings.EqualFold(r.names[i].name, name) {
			return r.names[i].of
		}
	}
	return nobody
}

// noteName records that the client's statement, or its settings, set a custom setting, also if only for a transaction.
func (m *machine) noteName(name string) {
	m.server.left.add(name, m.client)
	if !m.hasMade(name) {
		if len(m.customsMade)+len(name)+1 > maxOwnNames {
			m.customsMade = allNames
			return
		}
		m.customsMade += lower(name) + "\x00"
	}
}

// noteUnknownName is noteName for a setting whose name the text does not show.
func (m *machine) noteUnknownName() { m.server.left.unnamed = m.server.left.unnamed.with(m.client) }

// allNames in clientView.customsMade means that the client has set more names than are kept: it may have set any.
const allNames = "\x00"

// owns reports whether a custom setting is one of the client's own, or it has set that before: it expects the name to be
// there. So it does if every server connection has the name from the beginning.
func (m *machine) owns(name string) bool {
	_, set := settingIn(m.settingsKey, name)
	return set || m.hasMade(name) || m.shared.given.has(name)
}

// hasMade reports whether the client has ever set a custom setting.
func (m *machine) hasMade(name string) bool {
	if m.customsMade == allNames {
		return true
	}
	for own := range strings.SplitSeq(m.customsMade, "\x00") {
		if own != "" && strings.EqualFold(own, name) {
			return true
		}
	}
	return false
}

// noteNamesOfSettings records the names of the client's own settings, which the server connection is getting.
func (m *machine) noteNamesOfSettings() {
	for key := m.settingsKey; key != ""; {
		var name string
		if name, _, key = nextSetting(key); strings.Contains(name, ".") {
			m.noteName(name)
		}
	}
}

// givenNames are names of custom settings that every server connection has from the beginning, by ALTER DATABASE or
// PostgresConfig.Params. Any goroutine may use it.
type givenNames struct{ list atomic.Pointer[[]string] }

// has reports whether a name is among them.
func (g *givenNames) has(name string) bool {
	list := g.list.Load()
	return list != nil && slices.ContainsFunc(*list, func(n string) bool { return strings.EqualFold(n, name) })
}

// add adds a name, unless there are maxRemnants.
func (g *givenNames) add(name string) {
	for {
		list := g.list.Load()
		var names []string
		if list != nil {
			names = *list
		}
		if len(names) == maxRemnants || slices.Contains(names, name) {
			return
		}
		more := append(slices.Clone(names), name)
		if g.list.CompareAndSwap(list, &more) {
			return
		}
	}
}

// noteTemps records that the client may use temporary tables. The server connection's first one changes what a search_path stands
// for, so that the server reads literals again.
func (m *machine) noteTemps() {
	if m.server.left.temps == nobody { // the server connection gets its temporary schema
		m.server.stmts.retireLiterals()
	}
	m.server.left.temps = m.server.left.temps.with(m.client)
	m.server.stmts.retireRead()
	m.temps = true
}

// shown is what a text shows of the state that clients have left.
type shown struct {
	names    []string // of custom settings that it reads
	computed bool     // it reads a setting whose name is not a literal
	buffers  bool     // it changes temp_buffers
}

// shownBy examines a text for which judge has returned traceShows.
func shownBy(text []byte) (s shown) {
	text = withoutNul(text)
	for i := 0; i < len(text); {
		if !inIdentifier(text[i]) {
			i++
			continue
		}
		start := i
		for i < len(text) && inIdentifier(text[i]) {
			i++
		}
		name := ""
		switch word, rest := text[start:i], text[i:]; {
		case isWord(word, "show"):
			name = customSet(rest)
		case isWord(word, "current_setting"):
			var literal bool
			name, literal = argument(rest)
			s.computed = s.computed || !literal
		case isWord(word, "temp_buffers"):
			s.buffers = true
		}
		if strings.Contains(name, ".") && !slices.Contains(s.names, name) {
			s.names = append(s.names, name)
		}
	}
	return s
}

// argument returns the first argument of a function, if it is a plain string.
func argument(rest []byte) (value string, literal bool) {
	rest = bytes.TrimLeft(rest, " \t\n\v\f\r(")
	if len(rest) == 0 || rest[0] != '\'' {
		return "", false
	}
	n := quotedEnd(rest, false)
	if n < 2 || rest[n-1] != '\'' {
		return "", false
	}
	value = string(rest[1 : n-1])
	behind := rest[n:]
	behind = behind[spaceLength(behind, ' '):]
	return value, len(behind) > 0 && (behind[0] == ',' || behind[0] == ')' || behind[0] == ':')
}

// seesOthers reports whether a statement shows what other clients have left in the server connection. parameters is the
// body of Bind, if it is there.
func (m *machine) seesOthers(s shown, parameters []byte) bool {
	left := &m.server.left
	if s.buffers && !m.temps && left.temps.includesOthers(m.client) {
		return true
	}
	for _, name := range s.names {
		if !m.owns(name) && (left.find(name).includesOthers(m.client) || left.unnamed.includesOthers(m.client)) {
			return true
		}
	}
	if !s.computed || len(parameters) == 0 {
		return false
	}
	return slices.ContainsFunc(left.names, func(r remnant) bool {
		return r.of.includesOthers(m.client) && !m.owns(r.name) && bytes.Contains(bytes.ToLower(parameters), []byte(r.name))
	})
}
