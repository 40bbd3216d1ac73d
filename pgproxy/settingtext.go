package pgproxy

import (
	"bytes"
	"slices"
	"strings"
)

// Settings in the text of a statement. The tag of the answer shows SET and RESET. This file finds other ways to
// change settings for the session (set_config, UPDATE of pg_settings, SET in a DO block), and the names of custom
// settings, which the server does not list.

// textSettings is what settingsIn finds in a text.
type textSettings struct {
	changes bool     // it may change a setting for the session without the tag of SET
	unnamed bool     // the name of a changed setting is unknown: a parameter, or computed
	customs []string // the names of custom settings in it
	hidden  bool     // it changes a setting whose name is unknown, perhaps only for the transaction
	resets  bool     // there is SET … TO DEFAULT, which has the tag of any SET
	given   []string // the custom settings that may get an empty value for the session, and are not reset behind it
	back    []string // the custom settings that return to those of the session's start; "all" stands for all

	reads      bool // it may change, also for the transaction only, a setting under which texts are read
	path       bool // the search_path
	unreported bool // one of unreportedNames
}

// any reports whether something was found.
func (t textSettings) any() bool {
	return t.changes || len(t.customs) > 0 || t.hidden || t.resets || len(t.back) > 0 || t.reads
}

// noteSettings records the settings that the text of the next statement may change. left is judge's result for it.
func (m *machine) noteSettings(text []byte, left traces) (found textSettings) {
	found = settingsIn(text)
	if found.changes {
		m.settingChanged()
	}
	m.unnamedSetting, m.unreported = m.unnamedSetting || found.unnamed, m.unreported || found.unreported
	if found.hidden || left&traceCustom != 0 && len(found.customs) == 0 {
		m.noteUnknownName()
	}
	m.defaults = m.defaults || found.resets
	for _, name := range found.back {
		m.customGiven = without(m.customGiven, name)
	}
	m.customBack = append(m.customBack[:min(len(m.customBack), maxSettings)], found.back...)
	if m.customGiven = append(m.customGiven, found.given...); len(m.customGiven) > maxSettings {
		m.customGiven = m.customGiven[:maxSettings]
	}
	m.settingsReset = m.settingsReset || found.resets || m.startsWithRole() && hintsOf(text)&hintResets != 0 // SET role TO DEFAULT
	for _, name := range found.customs {
		m.noteName(name)
		switch {
		case slices.Contains(m.customs, name):
		case len(m.customs) == maxSettings:
			m.unnamedSetting = true
		default:
			m.customs = append(m.customs, name)
		}
	}
	return found
}

// settingsIn examines a text. Most texts contain nothing, which maySet finds out quickly.
func settingsIn(text []byte) (found textSettings) {
	text, _, _ = bytes.Cut(text, []byte{0})
	if !maySet(text) {
		return found
	}
	begins, do, update := true, false, false // at the beginning of a statement; these words have come
	for i := 0; i < len(text); {
		if !inIdentifier(text[i]) {
			begins = begins || text[i] == ';'
			i++
			continue
		}
		start := i
		for i < len(text) && inIdentifier(text[i]) {
			i++
		}
		name, session := "", false
		switch word, rest := text[start:i], text[i:]; {
		case begins && isWord(word, "do"):
			do = true
		case isWord(word, "update"):
			update = true
		case isWord(word, "set"):
			name, session = customSet(rest), do
			back := setsDefault(string(rest))
			found.resets = found.resets || back
			if back || !setsSomething(rest) {
				found.giveOrReset(name, back)
			}
		case isWord(word, "reset"):
			name = customSet(rest) // RESET of an unknown name makes it known
			found.giveOrReset(name, true)
			if strings.EqualFold(name, "all") {
				found.given, found.back = nil, append(found.back, everything)
			}
		case isWord(word, "set_config"):
			var known bool
			name, known = configured(rest)
			if session = !setsLocally(rest); session && !configuresSomething(rest) {
				found.giveOrReset(name, false)
			}
			found.hidden, found.reads = found.hidden || !known, found.reads || !known
			found.unnamed = found.unnamed || session && !known
		case isWord(word, "pg_settings"):
			session, found.reads = update, found.reads || update
		}
		begins = false
		found.noteRead(name)
		found.changes = found.changes || session
		switch {
		case strings.HasSuffix(name, "."): // the remainder is computed
			found.hidden = true
		case strings.Contains(name, "."):
			found.customs = append(found.customs, name)
		}
	}
	return found
}

// everything stands for all settings in textSettings.back.
const everything = "all"

// giveOrReset notes that a setting gets a value or, with back, that of the session's start. Only custom ones matter.
func (t *textSettings) giveOrReset(name string, back bool) {
	if !strings.Contains(name, ".") {
		return
	}
	if t.given = without(t.given, name); back {
		t.back = append(t.back, name)
	} else {
		t.given = append(t.given, name)
	}
}

// setsSomething reports whether SET with these words behind it cannot empty a setting for the session: it is SET LOCAL, or has a
// literal that is not empty.
func setsSomething(rest []byte) bool {
	if firstWord(rest, "local") {
		return true
	}
	behind := string(rest[:min(len(rest), maxSetName)])
	for part := "."; part != ""; behind = strings.TrimPrefix(behind[spaceLength([]byte(behind), ' '):], ".") {
		part, behind = identifier(behind) // the name, and TO
	}
	behind = strings.TrimPrefix(behind, "=")
	behind = behind[spaceLength([]byte(behind), ' '):]
	return len(behind) > 1 && (behind[0] == '\'' && behind[1] != '\'' || behind[0] >= '0' && behind[0] <= '9')
}

// configuresSomething reports whether the second argument of set_config is a literal that is not empty.
func configuresSomething(rest []byte) bool {
	if _, known := configured(rest); !known {
		return false
	}
	_, behind, _ := bytes.Cut(rest, []byte{','})
	behind = behind[spaceLength(behind, ' '):]
	if len(behind) < 2 || behind[0] != '\'' || behind[1] == '\'' {
		return false
	}
	behind = behind[quotedEnd(string(behind), false):]
	return bytes.HasPrefix(behind[spaceLength(behind, ' '):], []byte{','})
}

// without removes a name of a setting from names, or all.
func without(names []string, name string) []string {
	return slices.DeleteFunc(names, func(n string) bool { return name == everything || strings.EqualFold(n, name) })
}

// setsDefault reports whether SET with these words behind it returns a setting to that of the session's start. SET LOCAL … TO DEFAULT does not
// count: it ends with its transaction.
func setsDefault(rest string) bool {
	rest = rest[:statementEnd(rest)]
	first, behind := identifier(rest)
	if strings.EqualFold(first, "session") {
		first, behind = identifier(behind)
	}
	if strings.EqualFold(first, "time") {
		_, behind = identifier(behind)
		zone, _ := identifier(behind)
		return strings.EqualFold(zone, "default") || strings.EqualFold(zone, "local")
	}
	return !strings.EqualFold(first, "local") && hintsOf([]byte(rest))&hintResets != 0
}

// maySet reports whether settingsIn may find something: the text begins with SET, RESET or DO, has more than one statement,
// or contains the name of a function or view that settingsIn looks for.
func maySet(text []byte) bool {
	at := spaceLength(text, ';')
	if at == len(text) {
		return false
	}
	if firstWord(text[at:], "set") || firstWord(text[at:], "do") || firstWord(text[at:], "reset") {
		return true
	}
	if i := bytes.IndexByte(text, ';'); i >= 0 && i < len(text)-1 {
		return true
	}
	for rest := text; ; {
		i := bytes.IndexByte(rest, '_')
		if i < 0 {
			return false
		}
		if begins(rest[i+1:], "config") || begins(rest[i+1:], "settings") {
			return true
		}
		rest = rest[i+1:]
	}
}

// firstWord reports whether the first word of a text is lower, in any case.
func firstWord(text []byte, lower string) bool {
	text = text[spaceLength(text, ';'):]
	n := 0
	for n < len(text) && inIdentifier(text[n]) {
		n++
	}
	return isWord(text[:n], lower)
}

// setsLocally reports whether the arguments of set_config at the start of rest make the change local to the
// transaction.
func setsLocally(rest []byte) bool {
	if bytes.ContainsRune(rest, '\\') || bytes.Contains(rest, []byte("--")) || bytes.Contains(rest, []byte("/*")) {
		return false // where literals end would depend on settings
	}
	rest = rest[spaceLength(rest, ' '):]
	depth, start := 0, 0
	for i := 0; i < len(rest); i++ {
		switch rest[i] {
		case '\'', '"':
			i += quotedEnd(string(rest[i:]), false) - 1
		case '(':
			if depth++; depth == 1 {
				start = i + 1
			}
		case ',':
			if depth == 1 {
				start = i + 1
			}
		case ')':
			if depth--; depth <= 0 {
				last := bytes.TrimSpace(rest[start:i])
				return isOneOf(last, "true", "'t'", "'true'")
			}
		}
	}
	return false
}

// onlyForTransaction reports whether a text is a single SET LOCAL or SET TRANSACTION. Its tag is SET, but the setting
// does not outlast the transaction.
func onlyForTransaction(text []byte) bool {
	text, _, whole := bytes.Cut(text, []byte{0})
	if !whole || !firstWord(text, "set") || bytes.ContainsRune(text, '\\') {
		return false
	}
	_, rest := identifier(string(text[spaceLength(text, ';'):]))
	next, rest := identifier(rest)
	end := statementEnd(rest)
	return (strings.EqualFold(next, "local") || strings.EqualFold(next, "transaction")) && spaceLength([]byte(rest[end:]), ';') == len(rest)-end
}
