package pgproxy

import (
	"bytes"
	"slices"
	"strings"

	"github.com/headpond/headpond/pgwire"
)

// In transaction mode a client's statements have other names on servers. DEALLOCATE ALL and DISCARD ALL need no help:
// they remove all statements of a server connection, and the tag of the answer shows it. The gateway answers
// DEALLOCATE of one statement itself if it is alone in a Query. Otherwise (with other statements, in a pipeline or in
// the extended protocol) the server executes it, and just before it gets an empty statement of that name, a stand-in.

// canAnswerQuery reports whether the gateway can answer a Query itself: everything that the client sent is complete and
// answered, and no message to the client is incomplete.
func (m *machine) canAnswerQuery() bool {
	return m.st.serverSilent() && !m.st.unsynced && !m.st.skipping && m.st.strays == 0 && !m.partial
}

// deallocate answers a Query that is a single DEALLOCATE of one of the client's statements. It returns false for any
// other text.
func (m *machine) deallocate(text string) bool {
	name, _ := deallocates(text)
	if m.stmts[name] == nil || m.hasUnderClientName(name) || m.st.tx == pgwire.TxFailed {
		return false
	}
	m.forget(name, m.stmts[name])
	m.unnamed, m.unnamedNew = unnamed{}, false // as any Query does
	m.addToClient(&pgwire.CommandComplete{Tag: "DEALLOCATE"})
	m.addToClient(&pgwire.ReadyForQuery{Status: m.st.tx})
	return true
}

// deallocating returns the text of a Query that may deallocate statements, "" for any other Query, with the action
// take; or it returns the action more.
func (m *machine) deallocating(msg message) (text string, act action) {
	switch {
	case len(m.stmts)+len(m.underClientName) == 0 && m.st.empty() || msg.size() > peekSize:
	case !msg.hasBody(msg.size()):
		return "", action{do: more, n: msg.size()}
	case mentionsDeallocate(msg.body):
		text = string(bytes.TrimRight(msg.body, "\x00"))
	}
	return text, action{do: take}
}

// prepareStandIns prepares stand-ins on the server for those statements of the client's that the next message
// deallocates, in this order. It returns the value for op.name.
func (m *machine) prepareStandIns(names []string) (drop string) {
	if m.st.skipping || m.st.copyIn || m.st.tx == pgwire.TxFailed {
		return "" // the server answers
	}
	for i, name := range names {
		if slices.Contains(names[:i], name) {
			continue
		}
		if m.stmts[name] == nil {
			m.closeStandIn(name)
			continue
		}
		if m.hasUnderClientName(name) {
			m.setUnderClientName(name, nil)
		}
		m.st.push(op{kind: opInjectedClose}) // SQL may have prepared one
		m.ask(&pgwire.Close{Object: pgwire.ObjectStatement, Name: name})
		m.st.push(op{kind: opInjectedParse})
		m.sendParse(name, "\x00\x00\x00")
		drop = strings.Join(names, "\x00")
	}
	return drop
}

// notDeallocated records that the server still has the stand-ins for names, which are as in op.name.
func (m *machine) notDeallocated(names string) {
	for name := range strings.SplitSeq(names, "\x00") {
		m.setUnderClientName(name, nil)
	}
}

// setUnderClientName records that the server has a statement under one of the client's names: st, or nil for another
// statement.
func (m *machine) setUnderClientName(name string, st *statement) {
	if m.underClientName == nil {
		m.underClientName = make(map[string]*statement)
	}
	m.underClientName[name] = st
	if m.server != nil && !isASCII(name) {
		m.server.flags |= leftPrepare // under another client_encoding the bytes are another name or none, and cannot close it
	}
}

// hasUnderClientName reports whether the server has a statement under one of the client's names.
func (m *machine) hasUnderClientName(name string) bool {
	_, is := m.underClientName[name]
	return is && m.server != nil
}

// closeStandIn closes a stand-in on the server, so that the next message with that name does not find it.
func (m *machine) closeStandIn(name string) {
	if m.hasUnderClientName(name) && m.st.push(op{kind: opInjectedClose, name: name, local: true}) {
		delete(m.underClientName, name)
		m.ask(&pgwire.Close{Object: pgwire.ObjectStatement, Name: name})
	}
}

// noteSweep records the effect that executing a portal has on statements. st is the portal's statement, nil for the
// unnamed one.
func (m *machine) noteSweep(portal, name []byte, st *statement) {
	var text string
	switch {
	case st != nil && st.sweeps:
		text = st.body
	case len(name) == 0 && m.unnamed.sweeps:
		text = string(m.unnamed.text)
	default:
		delete(m.drops, string(portal))
		return
	}
	m.sweeping = true
	text, _, _ = strings.Cut(text, "\x00")
	drop, ok := deallocates(text)
	if !ok {
		delete(m.drops, string(portal))
		return
	}
	if m.drops == nil {
		m.drops = make(map[string]string)
	}
	m.drops[string(portal)] = drop
}

// deallocated records that the server has deallocated a statement: one of the client's, or an unknown one.
func (m *machine) deallocated() {
	name := m.st.deallocated()
	delete(m.underClientName, name)
	if m.stmts[name] != nil {
		m.forget(name, m.stmts[name])
		return
	}
	m.server.stmts.retireAll(nil)
}

// sweeps reports whether a text removes named statements, also in the extended protocol. Names in later messages can
// be judged only after its answer.
func sweeps(text []byte) bool {
	text = text[spaceLength(text, ';'):]
	return begins(text, "deallocate") || begins(text, "discard")
}

// mentionsDeallocate reports whether a text contains the word.
func mentionsDeallocate(text []byte) bool {
	for i := bytes.IndexAny(text, "dD"); i >= 0; i = bytes.IndexAny(text, "dD") {
		if text = text[i:]; begins(text, "deallocate") {
			return true
		}
		text = text[1:]
	}
	return false
}

func begins(text []byte, word string) bool {
	return len(text) >= len(word) && strings.EqualFold(string(text[:len(word)]), word)
}

// deallocates returns the name in "DEALLOCATE [PREPARE] name". It skips comments. ok is false for any other SQL.
func deallocates(sql string) (name string, ok bool) {
	word, rest := identifier(sql[spaceLength([]byte(sql), ';'):])
	if !strings.EqualFold(word, "deallocate") {
		return "", false
	}
	name, rest = identifier(rest)
	if strings.EqualFold(name, "prepare") {
		if next, after := identifier(rest); next != "" {
			name, rest = next, after
		}
	}
	if name == "" || strings.EqualFold(name, "all") || spaceLength([]byte(rest), ';') < len(rest) {
		return "", false
	}
	name = statementName(name)
	return name, name != ""
}

// statementName returns the name of a statement from its spelling in SQL.
func statementName(spelled string) string {
	name, quoted := strings.CutPrefix(spelled, `"`)
	if quoted {
		name = strings.ReplaceAll(strings.TrimSuffix(name, `"`), `""`, `"`)
	} else {
		folded := []byte(name) // in any encoding
		for i, c := range folded {
			if c >= 'A' && c <= 'Z' { // servers fold no other letters, as in UTF-8
				folded[i] |= 0x20
			}
		}
		name = string(folded)
	}
	return string(statementKey([]byte(name)))
}

// deallocations returns the names in all DEALLOCATE statements of a text in an encoding.
func deallocations(text, encoding string) (names []string) {
	ends := text // where statements end in it, they end in text
	if hasHalfBackslashes(encoding) {
		ends = withoutHalfBackslashes(text, encoding)
	}
	for text != "" {
		end := statementEnd(ends)
		ends = ends[min(end+1, len(ends)):]
		if name, ok := deallocates(text[:end]); ok {
			names = append(names, name)
		}
		text = text[min(end+1, len(text)):]
	}
	return names
}

// statementEnd returns the index at which the first statement of a text ends: that of a semicolon outside comments,
// strings and quoted names.
func statementEnd(text string) int {
	for i := 0; i < len(text); {
		switch c := text[i]; {
		case c == ';':
			return i
		case c == '\'' && i > 0 && (text[i-1] == 'e' || text[i-1] == 'E'):
			i += quotedEnd(text[i:], true)
		case c == '\'' || c == '"':
			i += quotedEnd(text[i:], false)
		case c == '$' && (i == 0 || !inIdentifier(text[i-1])):
			i += dollarQuotedEnd(text[i:])
		default:
			i += max(1, spaceLength([]byte(text[i:]), ' '))
		}
	}
	return len(text)
}

// quotedEnd returns the length of a quoted string with its quotes. A doubled quote counts as two adjacent strings.
func quotedEnd[T string | []byte](text T, escapes bool) int {
	for i := 1; i < len(text); i++ {
		switch {
		case escapes && text[i] == '\\':
			i++
		case text[i] == text[0]:
			return i + 1
		}
	}
	return len(text)
}

// dollarQuotedEnd returns the length of a $tag$string$tag$, 1 for another dollar sign.
func dollarQuotedEnd[T string | []byte](text T) int {
	n := 1
	for n < len(text) && text[n] != '$' && inIdentifier(text[n]) {
		n++
	}
	if n == len(text) || text[n] != '$' || n > 1 && text[1] >= '0' && text[1] <= '9' {
		return 1
	}
	for i := n + 1; i+n < len(text); i++ {
		if text[i] == '$' && text[i+n] == '$' && string(text[i:i+n]) == string(text[:n]) {
			return i + n + 1
		}
	}
	return len(text)
}

// identifier splits off the identifier that a text begins with, after white space. A quoted identifier keeps its
// quotes. word is "" if there is none.
func identifier(text string) (word, rest string) {
	text = text[spaceLength([]byte(text), ' '):]
	end := 0
	if strings.HasPrefix(text, `"`) {
		for end = 1; end < len(text); end++ {
			if text[end] != '"' {
				continue
			}
			if end++; end == len(text) || text[end] != '"' {
				return text[:end], text[end:]
			}
		}
		return "", text
	}
	for end < len(text) && inIdentifier(text[end]) {
		end++
	}
	return text[:end], text[end:]
}

func inIdentifier(c byte) bool {
	return c == '_' || c == '$' || c >= 0x80 || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// spaceLength returns the length of the white space and comments that a text begins with; also is one more character
// that counts as white space.
func spaceLength(text []byte, also byte) int {
	for i := 0; i < len(text); {
		switch rest := text[i:]; {
		case rest[0] == also || bytes.IndexByte([]byte(" \t\n\v\f\r"), rest[0]) >= 0:
			i++
		case bytes.HasPrefix(rest, []byte("--")):
			end := bytes.IndexAny(rest, "\n\r")
			if end < 0 {
				return len(text)
			}
			i += end
		case bytes.HasPrefix(rest, []byte("/*")):
			i += comment(rest)
		default:
			return i
		}
	}
	return len(text)
}

// comment returns the length of the comment that a text begins with. Comments nest.
func comment(text []byte) int {
	depth := 0
	for i := 0; i+1 < len(text); i++ {
		switch {
		case text[i] == '/' && text[i+1] == '*':
			depth++
			i++
		case text[i] == '*' && text[i+1] == '/':
			if depth--; depth == 0 {
				return i + 2
			}
			i++
		}
	}
	return len(text)
}
