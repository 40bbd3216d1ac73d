package pgproxy

import (
	"bytes"
	"context"
	"encoding/binary"
	"maps"
	"slices"
	"sync/atomic"
)

// catalog has the functions of a database, and the relations and types that call functions: the traces
// of statements that mention one of them. It does not change once it is built. A nil catalog is empty:
// judge uses the text of statements alone.
type catalog struct {
	version uint32            // of the content; never 0
	adds    bool              // the catalog only adds to what texts say: calls and always do not count
	wary    bool              // with adds: every statement may leave state, see knowledge.beWary
	caches  bool              // a lease begins with DISCARD SEQUENCES after another client that may have used sequences; see cachesSQL
	also    traces            // the kinds of lasting that pin clients of the backend: names includes them
	names   map[string]traces // of relations, types and functions that may leave state: a text with the name as a word may leave it
	calls   map[string]traces // of all functions that are not PostgreSQL's own, before a parenthesis; 0 = the function leaves no state
	always  traces            // traceUnknown if operators, casts or operator classes call functions that may leave state, else 0
	ddl     traces            // traces of the event triggers, which run at DDL
	odd     traces            // traces of all objects whose names cannot be looked up in texts, see unsearchable
	types   bool              // types may leave state: perhaps those of a statement's parameters
	words   map[string]bool   // the first word in each name, in lower case
	sieve   sieve             // filters words before they are looked up
	callees *callees          // with adds: the functions whose calls a question can follow instead of a check; nil = unknown
	groups  *callGroups       // for callees
}

// outdatedCatalog is the catalog to use while the last one is out of date.
var outdatedCatalog = &catalog{version: 1, always: traceUnknown}

// versionOf returns the version, 0 for a nil catalog.
func (c *catalog) versionOf() uint32 {
	if c == nil {
		return 0
	}
	return c.version
}

// trusted reports whether the catalog may lower the traces that a text has by itself.
func (c *catalog) trusted() bool { return c != nil && !c.adds }

// equal reports whether both catalogs have the same content.
func (c *catalog) equal(o *catalog) bool {
	return c != nil && o != nil && c.adds == o.adds && c.caches == o.caches && c.always == o.always && c.ddl == o.ddl && c.odd == o.odd && c.types == o.types &&
		maps.Equal(c.names, o.names) && maps.Equal(c.calls, o.calls) && c.callees.equal(o.callees)
}

// ofEveryStatement returns the traces of every statement.
func (c *catalog) ofEveryStatement() traces {
	switch {
	case c == nil:
		return 0
	case c.wary:
		return traceUnknown
	case c.adds:
		return 0
	}
	return c.always
}

// wariest returns a copy of the catalog with wary. A nil catalog counts as an empty one.
func (c *catalog) wariest() *catalog {
	w := catalog{adds: true}
	if c != nil {
		w = *c
	}
	w.version, w.wary, w.callees = lastCatalog.Add(1), true, nil
	return &w
}

// parameters returns the traces of the types of parameters, which follow the text in the body of a
// Parse.
func (c *catalog) parameters(body []byte) traces {
	if c == nil || !c.types {
		return 0
	}
	_, types, _ := bytes.Cut(body, []byte{0})
	for i := 2; i+oidSize <= len(types); i += oidSize {
		if binary.BigEndian.Uint32(types[i:]) >= firstNormalOID {
			return traceUnknown
		}
	}
	return 0
}

// firstNormalOID is the OID of the first object that is not PostgreSQL's own.
const firstNormalOID = 16384

// known returns the traces of a word as a name.
func (j *textJudge) known(name word) traces {
	switch {
	case j.graph != nil:
		j.graph.addMention(string(j.object(name)))
	case j.catalog == nil || len(j.catalog.names) == 0 && j.catalog.odd == 0:
	case j.catalog.odd != 0 && unsearchable(j.text[name.from:name.to]):
		return j.catalog.odd
	case j.text[name.from] == '"' || name.to-name.from > maxName || j.catalog.sieve.has(j.text[name.from:name.to]):
		return j.catalog.names[string(j.object(name))]
	}
	return 0
}

// called returns the traces of a function that is not PostgreSQL's own. known is false if it may leave any state.
func (j *textJudge) called(name word) (left traces, known bool) {
	switch {
	case j.graph != nil:
		return 0, j.graph.has(string(j.object(name))) // known has mentioned the name
	case j.catalog.trusted():
		left, known = j.catalog.calls[string(j.object(name))]
	case j.catalog != nil && j.catalog.callees != nil:
		left, known = j.catalog.callees.call(string(j.object(name)), j.catalog.groups)
	}
	return left, known
}

// object returns a word as the server spells it as the name of an object: in lower case unless it is
// quoted, and cut to 63 bytes.
func (j *textJudge) object(w word) []byte {
	name := j.text[w.from:w.to]
	if name[0] == '"' {
		name = bytes.TrimSuffix(name[1:], []byte{'"'})
		return name[:min(len(name), maxName)]
	}
	key := j.spelled[:0]
	for _, c := range name[:min(len(name), maxName)] {
		if c-'A' < 26 {
			c |= 0x20
		}
		key = append(key, c)
	}
	return key
}

// graph is the input of a catalog: functions, relations and types, the traces that they have by
// themselves, and the objects that they use.
type graph struct {
	nodes map[string]*node   // keys are a letter for the catalog, and the OID
	named map[string][]*node // by name
	also  traces             // the kinds of lasting that pin clients of the backend
	words map[string]bool    // the words of the body that is being judged that are names of nodes

	evident bool // only what functions evidently leave counts: see textJudge.evident
	caches  bool // see catalog.caches
}

// node is a function, a relation or a type.
type node struct {
	name     string
	function bool
	datatype bool
	view     bool
	left     traces
	row      uint64   // of a function, see rowKey
	uses     []string // keys of nodes
	words    []string // of its source text: each may be the name of a node
	users    []*node  // the reverse of uses, see propagate
}

// Keys of two nodes that are no objects: their uses are those of every statement, and those of DDL.
const (
	everyStatement = "*"
	everyDDL       = "!"
)

func newGraph() *graph {
	return &graph{nodes: map[string]*node{everyStatement: {}, everyDDL: {}}, named: map[string][]*node{}}
}

// add adds a node.
func (g *graph) add(key, name string, function bool) *node {
	n := &node{name: name, function: function}
	g.nodes[key] = n
	g.named[name] = append(g.named[name], n)
	return n
}

// use records that a node uses another one. A key without a node is an object of PostgreSQL's own.
func (g *graph) use(key, used string) {
	if n := g.nodes[key]; n != nil {
		n.uses = append(n.uses, used)
	}
}

// addTraces records traces that a node has by itself.
func (g *graph) addTraces(key string, left traces) {
	if n := g.nodes[key]; n != nil {
		n.left |= left
	}
}

// addMention records a word of the body that is being judged.
func (g *graph) addMention(name string) {
	if len(g.named[name]) > 0 {
		g.words[name] = true
	}
}

// has reports whether there is a function of a name.
func (g *graph) has(name string) bool {
	for _, n := range g.named[name] {
		if n.function {
			return true
		}
	}
	return false
}

// judgeBodies judges the source texts of functions, after all nodes have been added.
func (g *graph) judgeBodies(ctx context.Context, sources map[*node]source) error {
	for n, from := range sources {
		if err := ctx.Err(); err != nil {
			return err
		}
		g.words = map[string]bool{}
		j := textJudge{text: []byte(from.text), first: true, graph: g, plpgsql: from.plpgsql}
		for j.at < len(j.text) {
			j.next()
		}
		if n.left |= j.left; g.evident {
			n.left = j.evident()
		}
		n.words = slices.Collect(maps.Keys(g.words)) // includes its own name, which other nodes may have
		if j.ddl {
			n.uses = append(n.uses, everyDDL)
		}
	}
	g.words = nil
	return nil
}

// source is the source of a function.
type source struct {
	text    string
	plpgsql bool // else SQL
}

// throughCall returns the traces of calling a function with the traces t. None of them is certain: such a
// call neither pins its client nor is refused. After state that DISCARD ALL does not undo, the server
// connection is closed; connections of dblink are the exception, since functions that open them close
// them, too.
func (t traces) throughCall() traces {
	kept := t & (traceWrites | traceInserts | traceSequences | traceSetval | traceLess | traceDefines | traceHides | traceSpoils | traceLists | lasting)
	if t&(suspicious|traceReads) != 0 { // only a statement that certainly reads values of sequences can be refused for it
		kept |= traceUnknown
	}
	if t&(indelible&^traceDblink) != 0 {
		kept |= traceSpoils
	}
	return kept
}

// propagate adds to each node the traces of the nodes that it uses, after all nodes have their uses. A
// node of its own stands between a word and the nodes of that name: many schemas may have the same
// names.
func (g *graph) propagate() {
	var grown []*node // nodes with new traces that their users do not have yet
	groups := make(map[string]*node, len(g.named))
	for name, nodes := range g.named {
		group := &node{}
		groups[name] = group
		for _, n := range nodes {
			n.users = append(n.users, group)
		}
	}
	for _, n := range g.nodes {
		for _, key := range n.uses {
			if used := g.nodes[key]; used != nil {
				used.users = append(used.users, n)
			}
		}
		for _, w := range n.words {
			groups[w].users = append(groups[w].users, n)
		}
		if n.left != 0 {
			grown = append(grown, n)
		}
	}
	for len(grown) > 0 {
		n := grown[len(grown)-1]
		grown = grown[:len(grown)-1]
		for _, u := range n.users {
			if n.left&^u.left != 0 {
				u.left |= n.left
				grown = append(grown, u)
			}
		}
	}
}

// build returns the catalog, after all nodes have their uses.
func (g *graph) build() *catalog {
	for _, n := range g.nodes {
		n.left = n.left.throughCall()
	}
	g.propagate()
	c := &catalog{version: lastCatalog.Add(1), names: map[string]traces{}, calls: map[string]traces{}, words: map[string]bool{}, ddl: g.nodes[everyDDL].left, also: g.also, caches: g.caches}
	if g.nodes[everyStatement].left&traceUnknown != 0 {
		c.always = traceUnknown
	}
	for name, nodes := range g.named {
		c.name(name, nodes)
	}
	return c
}

// name adds the nodes of a name.
func (c *catalog) name(name string, nodes []*node) {
	telling := traceUnknown | traceDefines | traceLists
	if _, known := functions[name]; known { // judge looks the name up there before it uses calls
		telling |= traceWrites | traceInserts | traceSequences | traceSetval | traceLess
	}
	for _, n := range nodes {
		telling := telling
		if n.view { // SELECT may use sequences; statements that write have traceWrites anyway
			telling |= traceSequences
		}
		if n.function {
			c.calls[name] |= n.left
		}
		c.types = c.types || n.datatype && n.left&telling != 0
		if !unsearchable([]byte(name)) { // traces below traceUnknown cannot be told apart without the name
			telling |= c.also
		}
		mentioned := n.left
		if n.function { // the word may also be the name of a column
			mentioned &^= traceSpoils
		}
		switch {
		case n.left&telling == 0:
		case unsearchable([]byte(name)):
			c.odd |= mentioned
		default:
			c.names[name] |= mentioned
			c.addWord(name)
		}
	}
}

// lastCatalog numbers the contents of all backends' catalogs; the first number is that of outdatedCatalog.
var lastCatalog atomic.Uint32

func init() { lastCatalog.Store(outdatedCatalog.version) }

// unsearchable reports whether a name cannot be looked up by its spelling, in a text or in the catalogs: it
// has characters that depend on an encoding, or quotes within, or no characters of words.
func unsearchable(name []byte) bool {
	if len(name) > 1 && name[0] == '"' { // as texts quote it
		name = bytes.TrimSuffix(name[1:], []byte{'"'})
	}
	word := false
	for _, c := range name {
		if c >= 0x80 || c == '"' {
			return true
		}
		word = word || inWord[c]
	}
	return !word
}

// sieve is a filter for a set of words: for each first letter it has the lengths of the words as bits.
// Most other words do not pass.
type sieve [256]uint64

// has reports whether a word, which must not be empty, may be in the set.
func (s *sieve) has(word []byte) bool { return s[word[0]|0x20]>>(len(word)%64)&1 != 0 }

// addWord adds the first word in a name to words and sieve.
func (c *catalog) addWord(name string) {
	from := 0
	for !inWord[name[from]] {
		from++
	}
	to := from
	for to < len(name) && inWord[name[to]] {
		to++
	}
	word := []byte(name[from:to])
	c.sieve[word[0]|0x20] |= 1 << (len(word) % 64)
	c.words[string(bytes.ToLower(word))] = true
}

// hasWord reports whether a word of a text may be the first one in a name.
func (c *catalog) hasWord(word []byte) bool {
	if len(word) >= maxName {
		return true
	}
	if !c.sieve.has(word) {
		return false
	}
	var lower [maxName]byte
	for i, b := range word {
		if b-'A' < 26 {
			b |= 0x20
		}
		lower[i] = b
	}
	return c.words[string(lower[:len(word)])]
}

// mayMention reports whether a text may contain a name of the catalog, or has names that cannot be looked
// up.
func (c *catalog) mayMention(text []byte) bool {
	if c == nil || len(c.names) == 0 && c.odd == 0 {
		return false
	}
	odd := c.odd != 0
	for i := 0; i < len(text); {
		if !inWord[text[i]] {
			if text[i] == '"' && (odd || i > 0 && text[i-1] == '&') { // or a name in code points
				return true
			}
			i++
			continue
		}
		from := i
		for i < len(text) && inWord[text[i]] {
			if odd && text[i] >= 0x80 {
				return true
			}
			i++
		}
		if c.hasWord(text[from:i]) {
			return true
		}
	}
	return false
}
