package pgproxy

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"
)

// hints are possible effects of a statement on a session, found in its text without understanding it, so there may be
// too many: a word in a string or a comment counts as well. Effects of called functions are not found.
type hints byte

const (
	// hintRemains: DISCARD ALL does not undo it. No statement unloads a library or closes the connections of dblink;
	// RESET keeps the name of a custom setting, with an empty value; random() continues from a seed; temp_buffers
	// cannot be changed once there was a temporary table.
	hintRemains hints = 1 << iota
	// hintResets: there are words of RESET, DISCARD, or SET … TO DEFAULT.
	hintResets
	// hintDefines: there are words of statements that define or drop something.
	hintDefines
)

// hintsOf returns the hints in a text.
func hintsOf(text []byte) (all hints) {
	var before []byte
	for i := 0; i < len(text); {
		if !inIdentifier(text[i]) {
			i++
			continue
		}
		start := i
		for i < len(text) && inIdentifier(text[i]) {
			i++
		}
		word := text[start:i]
		all |= hintOf(before, word, text[i:])
		before = word
	}
	return all
}

// hintOf returns the hints in a word, between the one before and the rest of the text.
func hintOf(before, word, rest []byte) hints {
	found := false
	switch word[0] | 0x20 {
	case 'a', 'c':
		if isOneOf(word, "alter", "create") {
			return hintDefines
		}
	case 'd':
		if isWord(word, "discard") || isWord(word, "default") {
			return hintResets
		}
		if isWord(word, "drop") {
			return hintDefines
		}
		found = isWord(word, "dblink_connect") || isWord(word, "dblink_connect_u")
	case 'l':
		rest = rest[spaceLength(rest, ' '):]
		found = isWord(word, "load") && len(rest) > 0 && rest[0] == '\''
	case 'p':
		found = isWord(word, "pg_temp") || isWord(word, "pg_replication_origin_session_setup")
	case 'r':
		if isWord(word, "reset") {
			return hintResets
		}
	case 's':
		switch {
		case isWord(word, "set"):
			found = strings.Contains(customSet(rest), ".")
		case isWord(word, "seed"):
			found = isOneOf(before, "set", "session", "local")
		case isWord(word, "set_config"):
			name, known := configured(rest)
			found = !known || strings.Contains(name, ".")
		default:
			found = isWord(word, "setseed")
		}
	case 't':
		found = (isWord(word, "temp") || isWord(word, "temporary")) && isOneOf(before, "create", "replace", "local", "global", "into")
	}
	if found {
		return hintRemains
	}
	return 0
}

// isWord reports whether a word is the one in lower-case letters, in whatever case.
func isWord(word []byte, lower string) bool {
	if len(word) != len(lower) {
		return false
	}
	for i, c := range word {
		if c >= 'A' && c <= 'Z' {
			c |= 0x20
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}

func isOneOf(word []byte, list ...string) bool {
	return slices.ContainsFunc(list, func(lower string) bool { return isWord(word, lower) })
}

// customSet returns the name of the setting behind SET: a custom one has a dot in it.
func customSet(rest []byte) (name string) {
	part, after := identifier(string(rest[:min(len(rest), maxSetName)]))
	if isOneOf([]byte(part), "session", "local") {
		part, after = identifier(after)
	}
	for name = unquoted(part); part != ""; name += unquoted(part) {
		if after = after[spaceLength([]byte(after), ' '):]; !strings.HasPrefix(after, ".") {
			break
		}
		name += "."
		part, after = identifier(after[1:])
	}
	return name
}

// unquoted returns the name that an identifier stands for, as the names of settings are compared: without regard to case.
func unquoted(identifier string) string {
	if inner, quoted := strings.CutPrefix(identifier, `"`); quoted {
		return strings.ReplaceAll(strings.TrimSuffix(inner, `"`), `""`, `"`)
	}
	return identifier
}

// maxSetName is how much of the text after SET is looked at for a name, in bytes: two identifiers, and comments.
const maxSetName = 512

// configured returns the name of the setting behind set_config, if it is a plain string.
func configured(rest []byte) (name string, known bool) {
	rest = bytes.TrimLeft(rest, " \t\n\v\f\r(")
	if len(rest) == 0 || rest[0] != '\'' {
		return "", false // a parameter, a column: unknown
	}
	text, rest, ok := bytes.Cut(rest[1:], []byte{'\''})
	rest = rest[spaceLength(rest, ' '):]
	if bytes.HasPrefix(rest, []byte("::")) {
		cast, behind := identifier(string(rest[2:min(len(rest), 2+maxSetName)]))
		rest = []byte(behind)[spaceLength([]byte(behind), ' '):]
		ok = ok && cast != ""
	}
	return string(text), ok && len(rest) > 0 && rest[0] == ',' // the literal is all of it
}

// oidSize is how many bytes of a FunctionCall name the function.
const oidSize = 4

// Functions of the server with effects that DISCARD ALL does not undo; pg_proc.dat has their OIDs.
const (
	oidSetseed                       = 1599
	oidSetConfig                     = 2078
	oidReplicationOriginSessionSetup = 6006
)

// callsSetConfig reports whether a FunctionCall with that body sets a setting.
func callsSetConfig(body []byte) bool {
	return len(body) >= oidSize && binary.BigEndian.Uint32(body) == oidSetConfig
}

// tracesOfCall returns the traces of a FunctionCall that a state check cannot report.
func tracesOfCall(body []byte) traces {
	if len(body) < oidSize {
		return 0
	}
	switch binary.BigEndian.Uint32(body) {
	case oidSetseed:
		return traceSeed
	case oidReplicationOriginSessionSetup:
		return traceOrigin
	}
	return 0
}

// hintsOfCall returns the hints in the body of a FunctionCall.
func hintsOfCall(body []byte) hints {
	if len(body) < oidSize {
		return 0
	}
	switch binary.BigEndian.Uint32(body) {
	case oidSetseed, oidSetConfig, oidReplicationOriginSessionSetup:
		return hintRemains
	}
	return 0
}
