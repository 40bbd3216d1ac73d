package pgproxy

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/bits"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/headpond/headpond/pgwire"
)

// Calls of functions that are not PostgreSQL's own. A catalog that only adds to the traces of texts may be out of date
// unnoticed, so it cannot say that a function leaves no state. But it can say which rows of pg_proc were read when the
// function left none. After a transaction that has called such functions the gateway asks the server for these rows, by
// the names of the functions and of those that they may call. If they are still the same, the calls have left nothing.
// Otherwise a check for state of any kind follows, which takes the server ten times as long.
//
// So a function may not be replaced unnoticed, nor may another one of its name take its place: the rows of a name are those of all
// schemas. What relations run by triggers, views and the like is known from the last reading, as for statements that
// mention these relations themselves. DDL that the gateway sees puts all of this in doubt until the next reading.

// called are the traces of such calls: a bit for each of callGroups.
const called = (1<<callGroupCount - 1) << callShift

const (
	callShift      = 32
	callGroupCount = 32
	// maxCallees bounds the names of functions that are asked for because of one name, and maxCalled those of all that
	// clients call: the calls of others count as unknown.
	maxCallees = 64
	maxCalled  = 2048
)

// callGroups has the names of the functions that clients have called, in groups that stand for them in traces. The first
// functions have a group each. Any goroutine may use it.
type callGroups struct {
	mu    sync.Mutex // held for a few instructions
	of    map[string]int
	names [callGroupCount][]string
	n     int

	refused atomic.Bool // the server does not answer questions: perhaps a role may not read pg_proc
}

// trace returns the trace of a call; 0 = there are too many functions.
func (g *callGroups) trace(name string) traces {
	g.mu.Lock()
	defer g.mu.Unlock()
	group, ok := g.of[name]
	if !ok {
		if g.n == maxCalled {
			return 0
		}
		group = g.n % callGroupCount
		if g.of == nil {
			g.of = map[string]int{}
		}
		g.of[name] = group
		g.names[group] = append(g.names[group], name)
		g.n++
	}
	return 1 << (callShift + group)
}

// members returns the names in the groups of calls, and how many names there are in all.
func (g *callGroups) members(calls traces) (names []string, n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for set := uint32(calls >> callShift); set != 0; set &= set - 1 {
		names = append(names, g.names[bits.TrailingZeros32(set)]...)
	}
	return names, g.n
}

// callees has the functions of a database that leave no state. It does not change once it is built, except that it
// remembers what it is asked for.
type callees struct {
	harmless map[string]*callee  // by name: all functions of that name leave nothing
	rows     map[string][]uint64 // of pg_proc, by name, as rowKey returns them; sorted

	mu     sync.Mutex
	groups int                      // the names in the groups when the questions were made
	asked  map[traces]*callQuestion // by the groups
}

// callee stands for all functions of a name.
type callee struct {
	left  traces        // what a call leaves to be noted besides state: the use of sequences, for example
	names []string      // of the functions that it may call, and its own; sorted
	trace atomic.Uint64 // its group, once it is known
}

// maxQuestions bounds the questions that are remembered.
const maxQuestions = 1024

// callQuestion asks for the rows of functions that were called.
type callQuestion struct {
	names string          // of the functions, as an array of PostgreSQL's
	want  map[uint64]bool // rows, as rowKey returns them
}

// questionSQL is the statement of all questions.
const questionSQL = "SELECT oid,xmin FROM pg_catalog.pg_proc WHERE proname OPERATOR(pg_catalog.=) ANY ($1::pg_catalog.name[])"

// call returns the traces of calling a function. known is false if it may leave state.
func (c *callees) call(name string, groups *callGroups) (left traces, known bool) {
	f := c.harmless[name]
	if f == nil {
		return 0, false
	}
	group := traces(f.trace.Load())
	if group == 0 {
		group = groups.trace(name)
		f.trace.Store(uint64(group))
	}
	return f.left | group, group != 0
}

// equal reports whether both have the same functions.
func (c *callees) equal(o *callees) bool {
	if c == nil || o == nil {
		return c == o
	}
	return maps.EqualFunc(c.rows, o.rows, slices.Equal) && maps.EqualFunc(c.harmless, o.harmless, func(a, b *callee) bool {
		return a.left == b.left && slices.Equal(a.names, b.names)
	})
}

// question returns the question that follows calls, nil if one of the functions may leave state by now.
func (c *callees) question(calls traces, groups *callGroups) *callQuestion {
	if c == nil || groups.refused.Load() {
		return nil
	}
	names, n := groups.members(calls)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.groups != n || len(c.asked) == maxQuestions || c.asked == nil {
		c.groups, c.asked = n, map[traces]*callQuestion{}
	}
	q, ok := c.asked[calls]
	if !ok {
		q = c.ask(names)
		c.asked[calls] = q
	}
	return q
}

// ask makes a question about functions. Their names need no escapes, see askable.
func (c *callees) ask(names []string) *callQuestion {
	var all []string
	for _, name := range names {
		f := c.harmless[name]
		if f == nil {
			return nil
		}
		all = append(all, f.names...)
	}
	slices.Sort(all)
	all = slices.Compact(all)
	q := &callQuestion{want: map[uint64]bool{}}
	for _, name := range all {
		for _, row := range c.rows[name] {
			q.want[row] = true
		}
	}
	q.names = `{"` + strings.Join(all, `","`) + `"}`
	return q
}

// rowKey returns a row of pg_proc as one number; 0 = it is PostgreSQL's own, or there is no such row.
func rowKey(oid, xmin []byte) uint64 {
	o, x := number(oid), number(xmin)
	if o < firstNormalOID || o > math.MaxUint32 || x > math.MaxUint32 {
		return 0
	}
	return o<<32 | x
}

// number returns the number that text has in decimal digits, math.MaxUint64 if it is none.
func number(text []byte) (n uint64) {
	for _, c := range text {
		if c < '0' || c > '9' || n > math.MaxUint32 {
			return math.MaxUint64
		}
		n = n*10 + uint64(c-'0')
	}
	return n
}

// askable reports whether a name can be asked for whatever the client's settings are.
func askable(name string) bool {
	return !unsearchable([]byte(name)) && !strings.ContainsAny(name, `\'`)
}

// callees returns the functions that leave no state. It follows build, and evident must be false.
func (g *graph) callees() *callees {
	c := &callees{harmless: map[string]*callee{}, rows: map[string][]uint64{}}
	if g.nodes[everyStatement].left&traceUnknown != 0 { // no word in a source says that it uses an operator
		return c
	}
	for name, nodes := range g.named {
		left, functions := traces(0), false
		for _, n := range nodes {
			if n.function {
				functions, left = true, left|n.left
				if n.row != 0 {
					c.rows[name] = append(c.rows[name], n.row)
				}
			}
		}
		slices.Sort(c.rows[name])
		if functions && left&^alongCalls == 0 {
			if names := g.reached(name); names != nil {
				c.harmless[name] = &callee{left: left, names: names}
			}
		}
	}
	return c
}

// alongCalls are the traces that functions without state may have: they are noted whether or not a check follows.
const alongCalls = traceWrites | traceInserts | traceSequences | traceSetval | traceLess | lasting

// reached returns the names of the functions that one of a name may call, and its own, without those that relations call.
// It returns nil if there are too many, or they cannot be asked for.
func (g *graph) reached(name string) []string {
	names, seen := []string{name}, map[string]bool{name: true}
	for i := 0; i < len(names); i++ {
		if len(names) > maxCallees || !askable(names[i]) {
			return nil
		}
		add := func(name string) {
			if !seen[name] && g.has(name) {
				seen[name] = true
				names = append(names, name)
			}
		}
		for _, n := range g.named[names[i]] {
			if !n.function {
				continue
			}
			for _, word := range n.words {
				add(word)
			}
			for _, key := range n.uses {
				if used := g.nodes[key]; used != nil && used.function {
					add(used.name)
				}
			}
		}
	}
	slices.Sort(names)
	return names
}

// noteCalls records calls in traces: what was known before them must still be true after them.
func (m *machine) noteCalls() {
	k := m.shared.knowledge
	if m.calledBy == nil {
		m.calledAt = k.ddl.Load()
		if c := k.now.Load(); c != nil {
			m.calledBy = c.callees
		}
	}
	m.asking.late = true
	if m.defines || k.doubted.Load() {
		m.doubtCalls()
	}
}

// doubtCalls records that the open transaction may have defined the functions that it calls: once it is over, the rows
// may look as if it had not.
func (m *machine) doubtCalls() {
	if m.traces&called != 0 {
		m.forgetCalls()
		m.traces |= traceUnknown
		m.server.stmts.retireReplay() // the functions may have deallocated the replay's statements
	}
}

// forgetCalls removes calls from traces.
func (m *machine) forgetCalls() {
	m.traces &^= called
	m.calledBy = nil
}

// callQuestion returns the question that would do instead of a check; nil = there is none.
func (m *machine) callQuestion() *callQuestion {
	if m.traces&called == 0 || m.calledAt != m.shared.knowledge.ddl.Load() || m.traces&^(called|traceLess) != 0 || m.traces&traceLess != 0 && m.server.pins != 0 {
		return nil
	}
	return m.calledBy.question(m.traces&called, &m.shared.knowledge.calls)
}

// asking is the state of a question that is on its way, or being answered.
type asking struct {
	*callQuestion
	calls traces // that it is about
	found int    // rows
	wrong bool   // a row is not one of those that were read
	late  bool   // there have been calls since it was asked
}

// row compares a row of the answer.
func (q *asking) row(row *pgwire.DataRow) {
	if len(row.Values) != 2 {
		q.wrong = true
	} else if key := rowKey(row.Values[0], row.Values[1]); key != 0 {
		q.found++
		q.wrong = q.wrong || !q.want[key]
	}
}

// answered acts on the whole answer, which came outside a transaction.
func (m *machine) answeredCalls(q *asking) {
	switch {
	case q.wrong || q.found != len(q.want):
		m.shared.knowledge.changedUnseen()
		m.doubtCalls()
	case m.calledAt != m.shared.knowledge.ddl.Load(): // the calls may have waited for a trigger, for example
		m.doubtCalls()
	case !q.late && m.traces&called == q.calls:
		m.forgetCalls()
	}
}

// failedCalls notes that the server has answered a question with an error. b is the beginning of its body.
func (m *machine) failedCalls(b []byte) {
	m.server.stmts.retireQuestions()
	if bytes.Contains(b, []byte("\x00C42")) { // it would do so each time, and log it
		m.shared.knowledge.calls.refused.Store(true)
	}
}

// appendQuestion appends the messages of a question. They are one request, without BEGIN: the question may follow a
// request of the client's in the same write.
func (m *machine) appendQuestion(b []byte, q *callQuestion) []byte {
	stmts := &m.server.stmts
	if stmts.question == "" {
		stmts.question = namePrefix + rand.Text()
		b = (&pgwire.Parse{Name: stmts.question, Query: questionSQL}).Append(b)
	}
	b = beginRun(b, stmts.question, 1, 4+len(q.names))
	b = append(binary.BigEndian.AppendUint32(b, uint32(len(q.names))), q.names...)
	return append(endRun(b), syncMessage...)
}

// askBehind adds a question to the messages for the server, behind a request of the client's that ends the transaction,
// if one would do instead of a check. All messages of the request have been judged. It reports whether it has.
func (m *machine) askBehind() bool {
	if m.traces&called == 0 || m.mode != Transaction || m.replay || m.refusedReplay || m.asking.callQuestion != nil || !m.st.endsAlone() {
		return false
	}
	q := m.callQuestion()
	if q == nil {
		return false
	}
	m.asking = asking{callQuestion: q, calls: m.traces & called}
	m.toServer = m.appendQuestion(m.toServer, q)
	m.st.push(op{kind: opOwn, asks: true})
	return true
}

// questionAnswer handles a message of the answer to askBehind.
func (m *machine) questionAnswer(msg message) (action, error) {
	switch msg.typ {
	case pgwire.TypeDataRow:
		if !msg.hasBody(msg.size()) {
			return action{do: more, n: msg.size()}, nil
		}
		var row pgwire.DataRow
		if err := row.Decode(msg.body); err != nil {
			return action{}, err
		}
		m.asking.row(&row)
	case pgwire.TypeErrorResponse:
		if isFatal(msg.body) {
			return action{do: fatal}, nil
		}
		m.failedCalls(msg.body)
		m.asking.late = true // keep asks again
		m.asking.found = len(m.asking.want)
	case pgwire.TypeReadyForQuery:
		q, status := m.asking, pgwire.TxStatus(firstByte(msg.body))
		m.asking = asking{}
		if _, err := m.st.readyForQuery(status); err != nil {
			return action{}, err
		}
		if status == pgwire.TxIdle {
			m.answeredCalls(&q)
		}
	}
	return action{do: take}, nil
}

// askCalls asks the server for the rows of the functions that the transaction has called, if that would do instead of a
// check and askBehind has not done it.
func (s *session) askCalls() error {
	m, srv := &s.machine, s.srv
	of := m.callQuestion()
	if of == nil {
		return nil
	}
	q := asking{callQuestion: of, calls: m.traces & called}
	_, _ = srv.w.Write(m.appendQuestion(nil, of))
	switch err := s.within(func() error { return srv.answer(q.row) }); {
	case err == nil:
		m.answeredCalls(&q)
	case ordinary(err), canceled(err): // a check follows
		said, _ := errors.AsType[*pgwire.ErrorResponse](err)
		m.failedCalls([]byte("\x00C" + said.Code + "\x00"))
	default:
		return s.serverFailed(fmt.Errorf("reading the functions that the client has called: %w", err), false)
	}
	return nil
}

// endsTransaction reports whether a Query, after calls, is one statement behind which no transaction is open.
func (m *machine) endsTransaction(body []byte) bool {
	if m.traces&called == 0 || !m.st.empty() {
		return false
	}
	text := bytes.TrimRight(withoutNul(body), "; \t\r\n")
	if m.st.tx != pgwire.TxIdle {
		return isOneOf(text, "commit", "end")
	}
	return bytes.IndexByte(text, ';') < 0 && (changesNoSetting(text) || firstWord(text, "call")) && !firstWord(text, "begin") && !firstWord(text, "start")
}
