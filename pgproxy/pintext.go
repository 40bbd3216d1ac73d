package pgproxy

import (
	"bytes"
	"encoding/binary"
	"strings"
)

// traces is a set of kinds of state that a statement may leave in its session after its transaction,
// without the gateway seeing it: see judge. Settings made by SET and set_config are not in the set:
// see settingsIn.
type traces uint64

const (
	// A state check of the server connection reports these, see stateChecks.
	traceObjects    traces = 1 << iota // temporary tables, views, sequences, functions
	traceLocks                         // session-level advisory locks
	traceCursors                       // cursors WITH HOLD
	traceStatements                    // statements prepared by SQL
	traceChannels                      // LISTEN

	// Only the text of the statement tells of these.
	traceSeed      // setseed: the seed of random
	traceLibraries // LOAD
	traceDblink    // open connections of dblink
	traceOrigin    // a replication origin

	traceUnknown   // an unknown function, or a text that is not understood: any kind that a check reports, and settings
	traceLess      // the statement may take state away
	traceSequences // the values of currval and lastval change; it does not pin, since hardly any client reads them
	traceReads     // the statement reads such values, see forgetSequences
	traceWrites    // the statement may use sequences unseen, as column defaults do
	traceLasts     // with traceObjects: they outlive the transaction, unless they are dropped
	traceDefines   // the catalog may be out of date after the transaction; never in machine.traces
	traceLists     // the statement may list prepared statements, see expose; never in machine.traces
	traceSpoils    // with traceUnknown: perhaps state that DISCARD ALL does not undo, such as a seed
	traceUnread    // the text is too long to be judged and may list prepared statements, see closeOthersStatements; never in machine.traces
	traceShows     // the statement shows what clients have left for good, see beforeShowing; never in machine.traces

	// These pin if Config.PinAlso has them, as does traceSequences: see machine.pinAlsoTraces.
	traceCustom // custom settings: RESET keeps their names
	traceTemps  // a temporary table was used: temp_buffers cannot be changed any more
	traceSetval // with traceSequences: setval, which does not change lastval

	// noteValues needs these; they are never in machine.traces.
	traceInserts // with traceWrites: the statement inserts rows
	traceEarlier // with traceReads: no earlier statement of the text has used the sequence

	traceAlone // the statement may need a database for itself, see vacates; never in machine.traces
	traceHides // with traceDefines: statements that do not show it may call functions after the transaction, see pinhides.go; never in machine.traces

	// The bits from callShift on are those of called.
)

const (
	// checkable are the kinds that a state check reports.
	checkable = traceObjects | traceLocks | traceCursors | traceStatements | traceChannels
	// stated are the kinds of which only the statement's text tells. They last as long as the session.
	stated = traceSeed | traceLibraries | traceDblink | traceOrigin
	// indelible are the kinds that DISCARD ALL does not undo: the server connection is closed after its
	// lease.
	indelible = traceSeed | traceLibraries | traceDblink | traceOrigin
	// lasting are the kinds of Config.PinAlso that DISCARD ALL does not undo.
	lasting = traceCustom | traceTemps
	// suspicious are the kinds that must be dealt with before the lease ends.
	suspicious = checkable | stated | traceUnknown
	// evident are the kinds that the statement's text announces, so that the statement can be refused.
	evident = traceLocks | traceCursors | traceStatements | traceLibraries | traceDblink | traceOrigin
)

// traceNames are the names of the kinds in messages to users.
var traceNames = []struct {
	of   traces
	name string
}{
	{traceObjects, "temporary objects"}, {traceLocks, "advisory locks"}, {traceCursors, "cursors WITH HOLD"}, {traceStatements, "PREPARE"},
	{traceChannels, "LISTEN"}, {traceSequences, "values of sequences"}, {traceSeed, "setseed"},
	{traceLibraries, "LOAD"}, {traceDblink, "dblink"}, {traceOrigin, "replication origin"},
	{traceCustom, "names of settings"}, {traceTemps, "temp_buffers"},
}

// String lists the kinds of state in t.
func (t traces) String() string {
	var names []string
	for _, kind := range traceNames {
		if t&kind.of != 0 {
			names = append(names, kind.name)
		}
	}
	return strings.Join(names, ", ")
}

// maxJudged is how many bytes of a text judge reads, and maxJudgedQuery is that limit for a Query: the
// gateway does not keep the text of a Query, but receives all of it before the server gets any of it.
// Longer texts count as unknown.
const (
	maxJudged      = maxUnnamed
	maxJudgedQuery = 64 << 10
)

// judge returns the traces that a text of SQL may leave. The text ends at a NUL; the types of
// parameters may follow, as in Parse. judge does not parse SQL: it knows words, strings, comments and
// whatever looks like a function call. If it errs, it returns too many traces. A nil catalog lacks
// functions that are called through views, triggers, rules, defaults, operators, casts and policies,
// and functions of users that have the name of one of PostgreSQL's own.
func (c *catalog) judge(body []byte) traces {
	text := withoutNul(body)
	if len(text) > maxJudged {
		return traceUnknown | traceUnread | lastingIn(text) | definesUnread(text[:maxLasting])
	}
	left, ok := c.judgePlain(text)
	if !ok {
		left = c.judgeWhole(text)
	}
	return left | c.parameters(body)
}

// maxLasting is how many bytes of a text that is too long to be judged are read for kinds of
// Config.PinAlso: reading them takes some 20 microseconds.
const maxLasting = 4 << 10

// lastingIn returns the kinds of lasting that the beginning of a text leaves. The text is too long to
// be judged.
func lastingIn(text []byte) traces {
	return (*catalog)(nil).judgeWhole(text[:min(len(text), maxLasting)]) & lasting
}

// withoutNul returns the text before the first NUL.
func withoutNul(text []byte) []byte {
	if i := bytes.IndexByte(text, 0); i >= 0 {
		return text[:i]
	}
	return text
}

// judgePlain is judge for texts without calls: one statement that begins with a word of
// plainStatements and has no parenthesis and no backslash. In such a text only pg_temp, INTO and names
// in the catalog can leave state; INSERT INTO is plain. The text may end with a semicolon.
func (c *catalog) judgePlain(text []byte) (left traces, ok bool) {
	n := 0
	for n < len(text) && inWord[text[n]] && n < maxName {
		n++
	}
	for _, plain := range plainStatements {
		if isWord(text[:n], plain.word) {
			rest := text[n:]
			ok = isPlain(rest, plain.into) && !c.mayMention(rest) && (plain.word != "commit" || !bytes.ContainsAny(rest, "'$")) // COMMIT PREPARED
			return plain.left | c.ofEveryStatement(), ok
		}
	}
	return 0, false
}

// plainStatements are the first words of most statements, and the traces of these words in statements.
var plainStatements = []struct {
	word string
	left traces
	into bool
}{{"select", 0, false}, {"begin", 0, true}, {"commit", 0, true}, {"rollback", 0, true}, {"insert", traceWrites | traceInserts, true}, {"delete", traceWrites, true}}

// isPlain reports whether the rest of a statement, after its first word, fits judgePlain. It reads
// most texts of most clients, each time: their values differ, so verdicts does not have them.
func isPlain(rest []byte, into bool) bool {
	if bytes.IndexByte(rest, '(') >= 0 || bytes.IndexByte(rest, '\\') >= 0 || bytes.Contains(rest, []byte(`&"`)) { // the last one begins U&"…"
		return false
	}
	if i := bytes.IndexByte(rest, ';'); i >= 0 && i < len(rest)-1 {
		return false
	}
	for ; len(rest) >= 4; rest = rest[1:] {
		switch binary.LittleEndian.Uint32(rest) | 0x20202020 { // in lower case, also as part of another word
		case 't' | 'e'<<8 | 'm'<<16 | 'p'<<24, 'p' | 'r'<<8 | 'e'<<16 | 'p'<<24: // pg_prepared_statements
			return false
		case 'i' | 'n'<<8 | 't'<<16 | 'o'<<24:
			if !into {
				return false
			}
		}
	}
	return true
}

// judgeWhole judges all of a text word by word.
func (c *catalog) judgeWhole(text []byte) traces {
	j := textJudge{text: text, first: true, catalog: c}
	for j.at < len(text) {
		j.next()
	}
	return j.left | j.hiddenTraces() | c.ofEveryStatement()
}

// word is the position of a word in a text.
type word struct{ from, to int }

// textJudge reads a text for judge.
type textJudge struct {
	text       []byte
	at         int
	left       traces
	first      bool          // the next word begins a statement
	earlier    traces        // left, at the end of the statement before
	closed     bool          // a closing parenthesis precedes the next word
	open       bool          // a name behind a closing parenthesis may be a function, not only an alias
	block      bool          // the statement is DO: its strings are run
	declare    bool          // the statement is DECLARE
	alters     bool          // the statement is ALTER or CREATE: SET is a clause of it, whose value the server tries
	drops      bool          // lastDrop is known
	lastDrop   int           // where the last ON COMMIT DROP is; -1 = nowhere
	spelled    [maxName]byte // see key
	before     word          // the word before the next one, if nothing but space is between them
	catalog    *catalog
	graph      *graph // if not nil, the text is the body of a function
	plpgsql    bool   // with graph: the body is PL/pgSQL, else SQL
	ddl        bool   // with graph: the body has DDL, for which there may be event triggers
	creates    bool   // there was CREATE TABLE or the like
	changing   bool   // there was a statement that hides the calls of its text, of objects that are not temporary
	indexes    bool   // the statement is CREATE INDEX
	configures bool   // set_config is called
	changes    bool   // with graph: settings are changed for longer than the transaction
}

// Classes of bytes.
const (
	otherByte byte = iota
	spaceByte
	wordByte
	digitByte
	quoteByte
	dollarByte
	commentByte // the first byte of a comment, perhaps
)

var byteClasses = func() (class [256]byte) {
	for i := range class {
		if inIdentifier(byte(i)) {
			class[i] = wordByte
		}
	}
	for _, c := range " \t\n\v\f\r" {
		class[c] = spaceByte
	}
	for c := '0'; c <= '9'; c++ {
		class[c] = digitByte
	}
	class['\''], class['"'], class['$'], class['-'], class['/'] = quoteByte, quoteByte, dollarByte, commentByte, commentByte
	return class
}()

// inWord is inIdentifier as a table.
var inWord = func() (in [256]bool) {
	for i := range in {
		in[i] = inIdentifier(byte(i))
	}
	return in
}()

// next reads one token.
func (j *textJudge) next() {
	switch text, c := j.text, j.text[j.at]; byteClasses[c] {
	case spaceByte:
		j.at++
	case wordByte:
		j.word()
	case digitByte:
		for ; j.at < len(text) && (inWord[text[j.at]] || text[j.at] == '.'); j.at++ {
			if c := text[j.at] | 0x20; c != '.'|0x20 && c != 'e' && byteClasses[text[j.at]] != digitByte { // servers before PostgreSQL 15 read 1into as 1 INTO
				j.left |= traceUnknown
			}
		}
		j.other()
	case quoteByte:
		if c == '"' {
			j.word()
			return
		}
		j.string(false)
	case dollarByte:
		if n := j.at + 1; n < len(text) && byteClasses[text[n]] != digitByte { // otherwise a parameter
			from := j.at
			j.at += dollarQuotedEnd(text[from:])
			j.runs(text[from:j.at])
		} else {
			j.at = n
		}
		j.other()
	case commentByte:
		n := spaceLength(text[j.at:], ' ')
		if j.at += max(n, 1); n == 0 {
			j.other()
		}
	default:
		j.at++
		j.other()
		j.closed = c == ')'
		if c == ';' {
			j.first, j.declare, j.block, j.alters, j.indexes = true, false, false, false, false
			j.earlier = j.left
		} else if c != '(' {
			j.first = false
		}
	}
}

// other records that the last token is not a word.
func (j *textJudge) other() { j.before, j.closed = word{}, false }

// string reads a string. If a backslash may or may not be an escape, the text is not understood.
func (j *textJudge) string(escapes bool) {
	n := quotedEnd(j.text[j.at:], escapes)
	inside := j.text[j.at : j.at+n]
	for i := range inside {
		if inside[i] == '\\' && (!escapes || inside[i-1] >= 0x80) && j.ambiguous(inside[i+1:]) { // in some encodings, the backslash is the second byte of a character
			j.left |= traceUnknown
			break
		}
	}
	j.at += n
	j.runs(inside)
	j.other()
}

// ambiguous reports whether a backslash in a string may hide the end of the string; rest follows the
// backslash. In the body of a function, a backslash is never the second byte of a character: servers
// do not use such encodings.
func (j *textJudge) ambiguous(rest []byte) bool {
	return j.graph == nil || len(rest) > 0 && rest[0] == '\''
}

// runs records what a string that DO runs may leave, except for what a state check reports: DO is
// always checked. The string is not read as SQL: words in its strings and comments count as well.
func (j *textJudge) runs(block []byte) {
	if mentionsLists(block) {
		j.left |= traceLists // DO, EXECUTE, query_to_xml and the like run strings
	}
	if !j.block {
		return
	}
	if left := definesSomewhere(block); left != 0 {
		if j.left |= left; j.catalog.mayMention(block) || j.catalog.ofEveryStatement() != 0 { // perhaps a partition of a table with a trigger
			j.left |= traceHides
		}
	}
	var before []byte
	for i := 0; i < len(block); {
		if !inWord[block[i]] {
			i++
			continue
		}
		from := i
		for i < len(block) && inWord[block[i]] {
			i++
		}
		name := block[from:i]
		if len(name) <= maxName {
			j.left |= functions[string(bytes.ToLower(name))] & stated
		}
		if isWord(name, "load") {
			j.left |= traceLibraries
		}
		if isWord(name, "set") || isWord(name, "reset") {
			j.left |= namesAfter(block[i:])
		}
		if isWord(name, "execute") {
			j.left |= lasting
		}
		if isWord(name, "current_setting") {
			j.left |= traceShows
		}
		if isOneOf(name, "temp", "temporary", "pg_temp") {
			j.left |= traceTemps
		}
		if isWord(name, "set_config") {
			setting, known := configured(block[i:])
			j.left |= namesOf(setting, known)
		}
		if isWord(name, "seed") && isOneOf(before, "set", "session", "local", "set_config") {
			j.left |= traceSeed
		}
		before = name
	}
}

// word reads a word: a keyword, or a name with all its parts.
func (j *textJudge) word() {
	text, qualifier := j.text, word{}
	var name word
	for {
		name = word{j.at, j.at}
		if text[j.at] == '"' {
			name.to += quotedEnd(text[j.at:], false)
		} else {
			for name.to < len(text) && inWord[text[name.to]] {
				name.to++
			}
		}
		j.at = name.to
		if c := j.text[name.to-min(name.to-name.from, 1)]; c >= 0x80 && name.to < len(text) && text[name.to] >= '@' {
			j.left |= traceUnknown // the byte may be the second half of a character
		}
		if name.to == name.from { // no name follows the dot
			j.other()
			return
		}
		i := j.at + j.spaceAt(j.at)
		if i >= len(text) || text[i] != '.' {
			break
		}
		qualifier = name
		i++
		if i += j.spaceAt(i); i >= len(text) || text[i] != '"' && !inWord[text[i]] {
			j.at = i
			j.other()
			return
		}
		j.at = i
	}
	if j.at < len(text) && text[j.at] == '\'' && name.to == name.from+1 {
		j.string(text[name.from]|0x20 == 'e')
		return
	}
	if name.to == name.from+1 && text[name.from]|0x20 == 'u' && bytes.HasPrefix(text[j.at:], []byte(`&"`)) {
		j.left |= traceUnknown | traceLists // a name that is spelled in code points
	}
	j.addWord(name, qualifier)
	j.before, j.first, j.closed = name, j.graph != nil && j.begun(name), false
}

// spaceAt returns the length of the space and comments at a position.
func (j *textJudge) spaceAt(at int) int {
	if at >= len(j.text) {
		return 0
	}
	switch c := byteClasses[j.text[at]]; {
	case c != spaceByte && c != commentByte:
		return 0
	case c == spaceByte && at+1 < len(j.text) && byteClasses[j.text[at+1]] == wordByte: // one space, nearly always
		return 1
	}
	return spaceLength(j.text[at:], ' ')
}

// is reports whether a word is a keyword, given in lower case.
func (j *textJudge) is(w word, keyword string) bool {
	if w.to-w.from != len(keyword) {
		return false
	}
	for i := range len(keyword) {
		c := j.text[w.from+i]
		if c-'A' < 26 {
			c |= 0x20
		}
		if c != keyword[i] {
			return false
		}
	}
	return true
}

// addWord adds the traces of a word. qualifier is the part of the name before it.
func (j *textJudge) addWord(name, qualifier word) {
	j.left |= j.known(name)
	if j.graph != nil {
		left := j.inBody(name, qualifier)
		j.left |= left
		j.changes = j.changes || left != 0 && !j.changesLocally(name)
	}
	if j.first && (qualifier == word{}) {
		j.left |= j.begins(name)
	} else {
		j.left |= j.tracesOfInnerWord(name, qualifier)
	}
	if i := j.at + j.spaceAt(j.at); i < len(j.text) && j.text[i] == '(' {
		j.left |= j.call(name, qualifier)
	}
}

// begins returns the traces of the first word of a statement.
func (j *textJudge) begins(name word) traces {
	j.declare, j.block = j.is(name, "declare"), j.is(name, "do")
	left := statements[string(j.key(name))]
	j.alters = j.is(name, "alter") || j.is(name, "create")
	if (j.alters || j.is(name, "drop")) && onDatabase(j.text[j.at:]) {
		left |= traceAlone
	}
	if j.is(name, "set") || j.is(name, "reset") {
		left |= namesAfter(j.text[j.at:])
	}
	if j.is(name, "show") && strings.Contains(customSet(j.text[j.at:]), ".") {
		left |= traceShows
	}
	if j.is(name, "call") && (j.catalog.trusted() || j.catalog != nil && j.catalog.callees != nil) {
		left = 0 // judged by the name of the procedure
	}
	left |= j.defines(name)
	if left == traceStatements {
		if next := j.at + j.spaceAt(j.at); isTransaction(j.text[next:]) {
			return 0
		}
	}
	return left
}

// isTransaction reports whether the text after PREPARE is TRANSACTION and a string. TRANSACTION may
// also be the name of a prepared statement.
func isTransaction(text []byte) bool {
	word, rest := identifier(string(text[:min(len(text), maxSetName)]))
	rest = rest[spaceLength([]byte(rest), ' '):]
	return strings.EqualFold(word, "transaction") && strings.HasPrefix(rest, "'")
}

// tracesOfInnerWord returns the traces of a word that is not the first one of its statement.
func (j *textJudge) tracesOfInnerWord(name, qualifier word) traces {
	switch c := j.text[name.from] | 0x20; {
	case qualifier != word{} && j.isTemp(qualifier):
		return traceObjects | traceLasts | traceTemps
	case c == 't' && (j.is(name, "temp") || j.is(name, "temporary")):
		if j.is(j.before, "create") || j.is(j.before, "replace") || j.is(j.before, "into") || j.is(j.before, "local") || j.is(j.before, "global") {
			if j.dropsOnCommit() {
				return traceObjects | traceTemps
			}
			return traceObjects | traceLasts | traceTemps
		}
	case c == 'h' && j.declare && j.is(name, "hold") && j.is(j.before, "with"):
		return traceCursors
	case (c == 's' || c == '"'|0x20) && qualifier == word{} && string(j.key(name)) == "seed" && (j.is(j.before, "set") || j.is(j.before, "session") || j.is(j.before, "local")):
		return traceSeed
	case c == 'i' && j.is(name, "into") && !j.is(j.before, "insert") && !j.is(j.before, "merge"):
		if j.plpgsql {
			return 0 // variables
		}
		return traceObjects | j.onDDL() // search_path may begin with pg_temp
	case c == 's' && j.alters && j.is(name, "set"):
		return namesAfter(j.text[j.at:])
	case c == 'c' && j.alters && j.is(name, "cache"):
		return traceDefines // of a sequence, see cachesSQL
	case c == 'c' && j.is(name, "create"):
		return traceObjects | traceDefines | traceHides | j.onDDL()
	case c == 'i' && j.is(name, "insert") || c == 'm' && j.is(name, "merge"):
		return traceWrites | traceInserts
	case c == 'e' && j.is(name, "execute"):
		return traceUnknown // also in the definition of a trigger
	case (c == 'p' || c == '"'|0x20) && j.lists(name):
		return traceLists
	case c == 'o' && (j.is(name, "on") && j.is(j.before, "distinct") || j.is(name, "operator")):
		j.open = true
	}
	if j.isTemp(name) {
		return traceObjects | traceTemps
	}
	return 0
}

// lists reports whether a name is pg_prepared_statements, or the function behind that view.
func (j *textJudge) lists(name word) bool {
	key, listed := bytes.CutPrefix(j.key(name), []byte("pg_prepared_statement"))
	return listed && (len(key) == 0 || string(key) == "s")
}

// mentionsLists reports whether a string contains the name of the view of prepared statements, or of
// the function behind it.
func mentionsLists(text []byte) bool {
	for i := bytes.IndexByte(text, '_'); i >= 0; i = bytes.IndexByte(text, '_') {
		if text = text[i+1:]; begins(text, "prepared_statement") {
			return true
		}
	}
	return false
}

// isTemp reports whether a name is that of the schema of temporary objects: pg_temp, or its other
// names such as pg_temp_3.
func (j *textJudge) isTemp(name word) bool {
	return name.to-name.from >= len("pg_temp") && bytes.HasPrefix(j.key(name), []byte("pg_temp"))
}

// dropsOnCommit reports whether ON COMMIT DROP follows in the text.
func (j *textJudge) dropsOnCommit() bool {
	if !j.drops {
		j.drops, j.lastDrop = true, bytes.LastIndex(bytes.ToLower(j.text), []byte("on commit drop"))
	}
	return j.lastDrop > j.at
}

// key returns a word as it is spelled in statements and functions, nil for a word that is too long for
// them. The result is valid until the next call.
func (j *textJudge) key(w word) []byte {
	if w.to-w.from > maxName {
		return nil
	}
	key := j.spelled[:0]
	for _, c := range j.text[w.from:w.to] {
		switch {
		case c == '"':
			return bytes.Trim(j.text[w.from:w.to], `"`)
		case c-'A' < 26:
			c |= 0x20
		}
		key = append(key, c)
	}
	return key
}

// call returns the traces of a name before a parenthesis. The name need not be that of a function.
func (j *textJudge) call(name, qualifier word) traces {
	left, known := functions[string(j.key(name))]
	if known && (qualifier == word{} || string(j.key(qualifier)) == "pg_catalog") {
		if left&traceReads != 0 && j.earlier&drawing == 0 {
			left |= traceEarlier
		}
		return left | j.sets(name)
	}
	if left &= stated; left != 0 { // an extension may be in any schema
		return left | traceUnknown
	}
	if left, known = j.called(name); known {
		return left
	}
	if _, keyword := bodyWords[string(j.key(name))]; keyword && j.plpgsql {
		return 0
	}
	if j.closed && !j.open || j.conflicts(name) { // the parenthesis has the columns of an alias, or of an index
		return 0
	}
	before := j.before
	if j.indexes && (j.is(before, "on") || j.is(before, "only") || j.is(before, "using")) {
		return 0
	}
	for _, keyword := range beforeColumns {
		if j.is(before, keyword) {
			return 0
		}
	}
	return traceUnknown
}

// beforeColumns are words after which a name and a parenthesis are no call: the parenthesis has
// columns of what is named.
var beforeColumns = []string{"into", "table", "references", "as", "view", "exists", "copy", "with", "recursive", "prepare"}

// conflicts reports whether a name before a parenthesis belongs to ON CONFLICT (columns) DO, where no
// function is called.
func (j *textJudge) conflicts(name word) bool {
	if !j.is(name, "conflict") || !j.is(j.before, "on") {
		return false
	}
	if j.catalog.trusted() || j.graph != nil {
		return true // there is no function of that name
	}
	i := j.at + j.spaceAt(j.at) + 1
	for i < len(j.text) && (inWord[j.text[i]] || bytes.IndexByte([]byte(" \t\n\r,\""), j.text[i]) >= 0) {
		i++
	}
	if i >= len(j.text) || j.text[i] != ')' {
		return false
	}
	i++
	i += j.spaceAt(i)
	return i+2 < len(j.text) && isWord(j.text[i:i+2], "do") && !inWord[j.text[i+2]]
}

// maxArguments bounds how many bytes of a set_config call in the body of a function are read: calls
// may be nested deeply.
const maxArguments = 4 << 10

// sets returns the traces of a call of set_config or current_setting, 0 for any other name.
func (j *textJudge) sets(name word) traces {
	switch string(j.key(name)) {
	case "current_setting":
		return j.shows()
	case "set_config":
	default:
		return 0
	}
	j.configures = true
	rest := j.text[j.at:]
	setting, known := configured(rest)
	left := namesOf(setting, known)
	if j.graph != nil {
		if rest = rest[:min(len(rest), maxArguments)]; !setsLocally(rest) {
			j.changes = true
			return left | traceUnknown
		}
	}
	if strings.EqualFold(setting, "seed") {
		return traceSeed
	}
	return left
}

// shows returns traceShows, except in the body of a function, of which it is not known when it is called.
func (j *textJudge) shows() traces {
	if j.graph != nil {
		return 0
	}
	return traceShows
}

// namesOf returns traceCustom for the name of a custom or an extension's setting, which has a dot, and
// for an unknown name.
func namesOf(setting string, known bool) traces {
	if strings.EqualFold(setting, tempBuffers) {
		return traceShows
	}
	if !known || strings.ContainsAny(setting, ".\\") {
		return traceCustom
	}
	return 0
}

// namesAfter is namesOf for the setting behind SET or RESET.
func namesAfter(rest []byte) traces {
	name := customSet(rest)
	return namesOf(name, name != "" && !strings.EqualFold(name, "u")) // U&"…" is spelled in code points
}
