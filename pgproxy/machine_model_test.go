package pgproxy_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
)

// backend is a simple model of a PostgreSQL session: it answers messages, one at a time, in the order they were sent.
type backend struct {
	queue    [][]byte // not dealt with yet
	stmts    map[string]string
	portal   string // the text of the unnamed portal
	open     bool   // there is one
	tx       pgwire.TxStatus
	skipping bool
	busy     bool // extended messages came after the last Sync
	bound    bool // one of them was Bind

	copying *modelCopy // from the client; nil = none is under way
	over    bool       // it has ended the connection

	settings *modelSettings // nil = it has none
	runs     func(text string)
}

func newBackend() *backend {
	return &backend{stmts: map[string]string{}, tx: pgwire.TxIdle, runs: func(string) {}}
}

// undo is the clean-up of a server connection between clients.
func (s *backend) undo(sql string) {
	if strings.Contains(sql, "DEALLOCATE ALL") {
		s.deallocateAll()
	}
	if s.settings != nil {
		s.settings.undo(sql)
	}
}

func (s *backend) deallocateAll() {
	for name := range s.stmts {
		if name != "" {
			delete(s.stmts, name)
		}
	}
}

// answer handles the next message and returns the server's answer.
func (s *backend) answer() []pgwire.Message {
	b := s.queue[0]
	s.queue = s.queue[1:]
	switch {
	case s.over:
		return nil
	case s.copying != nil:
		return s.copied(b)
	case ofCopy(b[0]):
		return nil // the rest of one that has failed
	}
	if b[0] == pgwire.TypeSync {
		s.skipping, s.busy, s.bound = false, false, false
		return s.ready()
	}
	if s.skipping {
		return nil
	}
	if b[0] == pgwire.TypeQuery {
		delete(s.stmts, "")
		s.open, s.busy, s.bound = false, false, false
		text := string(b[5 : len(b)-1])
		said := s.run(text, true)
		if s.copying == nil {
			said = append(said, s.ready()...)
		}
		return said
	}
	if b[0] == pgwire.TypeFlush {
		return nil
	}
	s.busy = true
	said := s.extended(b)
	s.skipping = slices.ContainsFunc(said, isError)
	return said
}

func isError(m pgwire.Message) bool {
	_, is := m.(*pgwire.ErrorResponse)
	return is
}

func (s *backend) ready() (said []pgwire.Message) {
	if s.tx == pgwire.TxIdle {
		s.open = false
	}
	if s.settings != nil {
		if s.tx == pgwire.TxIdle {
			s.settings.commit()
		}
		said = s.settings.report(true)
	}
	return append(said, &pgwire.ReadyForQuery{Status: s.tx})
}

// fails is the answer with an error.
func (s *backend) fails(code string) []pgwire.Message {
	s.open = false
	if s.tx == pgwire.TxActive {
		s.tx = pgwire.TxFailed
	}
	said := []pgwire.Message{errorOf(code)}
	if s.settings != nil {
		said = append(said, s.settings.rollback()...)
	}
	return said
}

func (s *backend) aborted(text string) bool {
	return s.tx == pgwire.TxFailed && text != "rollback"
}

func (s *backend) extended(b []byte) []pgwire.Message {
	switch b[0] {
	case pgwire.TypeParse:
		name, rest, _ := bytes.Cut(b[5:], []byte{0})
		text, _, _ := bytes.Cut(rest, []byte{0})
		return s.parse(string(name), string(text))
	case pgwire.TypeBind:
		s.bound = true
		var m pgwire.Bind
		_ = m.Decode(b[5:])
		text, ok := s.stmts[m.Statement]
		switch {
		case !ok:
			return s.fails("26000")
		case s.aborted(text):
			return s.fails("25P02")
		}
		for i, value := range m.Params {
			literal := "NULL"
			if value != nil {
				literal = "'" + string(value) + "'"
			}
			text = strings.Replace(text, fmt.Sprint("$", i+1), literal, 1)
		}
		s.portal, s.open = text, true
		return []pgwire.Message{&pgwire.BindComplete{}}
	case pgwire.TypeDescribe:
		text, ok := s.portal, s.open
		var said []pgwire.Message
		if b[5] == pgwire.ObjectStatement {
			text, ok = s.stmts[string(b[6:len(b)-1])]
			said = append(said, &pgwire.ParameterDescription{})
		}
		switch {
		case !ok:
			return s.fails("34000")
		case s.aborted(text):
			return s.fails("25P02")
		}
		return append(said, described(text))
	case pgwire.TypeExecute:
		if !s.open {
			return s.fails("34000")
		}
		return s.run(s.portal, false)
	case pgwire.TypeClose:
		if b[5] == pgwire.ObjectStatement {
			delete(s.stmts, string(b[6:len(b)-1]))
		} else {
			s.open = false
		}
		return []pgwire.Message{&pgwire.CloseComplete{}}
	}
	return nil
}

func described(text string) pgwire.Message {
	if strings.HasPrefix(text, "select") {
		return &pgwire.RowDescription{Fields: []pgwire.Field{{Name: text, TypeOID: 25}}}
	}
	return &pgwire.NoData{}
}

func (s *backend) parse(name, text string) []pgwire.Message {
	if name == "" {
		delete(s.stmts, "")
	}
	switch _, taken := s.stmts[name]; {
	case text == "bad" || strings.HasPrefix(text, "headpond"):
		return s.fails("42601")
	case s.aborted(text):
		return s.fails("25P02")
	case taken:
		return s.fails("42P05")
	}
	s.stmts[name] = text
	return []pgwire.Message{&pgwire.ParseComplete{}}
}

// run executes a text.
func (s *backend) run(text string, simple bool) []pgwire.Message {
	tag := strings.ToUpper(text)
	word, name, _ := strings.Cut(text, " ")
	switch {
	case s.aborted(text):
		return s.fails("25P02")
	case text == "bad" || strings.HasPrefix(text, "headpond"):
		return s.fails("42601")
	case text == "fail":
		return s.fails("22012")
	case text == "":
		return []pgwire.Message{&pgwire.EmptyQueryResponse{}}
	case text == "begin":
		s.tx = pgwire.TxActive
	case text == "rollback":
		s.tx = pgwire.TxIdle
	case text == "deallocate all":
		s.deallocateAll()
	case word == "deallocate":
		if _, ok := s.stmts[name]; !ok {
			return s.fails("26000")
		}
		delete(s.stmts, name)
		tag = "DEALLOCATE"
	case word == "execute":
		of, ok := s.stmts[name]
		if !ok {
			return s.fails("26000")
		}
		if !strings.HasPrefix(of, "select") {
			return s.fails("0A000")
		}
		return s.run(of, simple)
	case word == "copy":
		return s.copyBegins(name, simple)
	case word == "select":
		tag = "SELECT 1"
	}
	s.runs(text)
	said := []pgwire.Message{&pgwire.CommandComplete{Tag: tag}}
	if s.settings != nil {
		if said = s.settings.run(s, text); said == nil {
			return s.fails("42501")
		}
	} else if word == "select" {
		said = slices.Insert(said, 0, pgwire.Message(&pgwire.DataRow{Values: [][]byte{[]byte(text)}}))
		if simple {
			said = slices.Insert(said, 0, described(text))
		}
	}
	return said
}

// modelTexts are the texts that the model understands.
var modelTexts = []string{
	"select 1", "select 2", "select 3", "begin", "rollback", "fail", "bad", "set", "deallocate a", "deallocate b", "deallocate all", "", "execute a", "execute b",
}

// modelClient is a client with its machine, and with its own server for comparison.
type modelClient struct {
	name     string
	machine  *pgproxy.Machine
	straight *backend
	got      []string // its output through the machine
	want     []string // and straight
	refused  bool     // a server has refused its settings, or the machine currval: want is something else
	copies   []*sentCopy
	seen     int // of want, by noteCopy
}

// modelWorld are clients that share server connections.
type modelWorld struct {
	t       testing.TB
	pool    pgproxy.FakePool
	servers map[*pgproxy.FakeServer]*backend
	clients []*modelClient
	history []string
	texts   []string // that the clients send
	lost    func()   // called when a server connection is discarded; nil = none may be
	copies  bool     // clients COPY
	unclear int      // how many server connections were lost because nobody knows what they answer
}

func newModelWorld(t testing.TB, servers, statements int) *modelWorld {
	w := &modelWorld{t: t, servers: map[*pgproxy.FakeServer]*backend{}, texts: modelTexts}
	for range servers {
		w.addServer(statements)
	}
	for i := range 3 {
		w.clients = append(w.clients, w.newClient(fmt.Sprint("client ", i)))
	}
	return w
}

func (w *modelWorld) newClient(name string) *modelClient {
	c := &modelClient{name: name, straight: newBackend()}
	c.machine = pgproxy.NewMachine(&w.pool, pgproxy.Transaction, func(format string, args ...any) {
		w.history = append(w.history, "  "+c.name+": "+fmt.Sprintf(format, args...))
		if strings.HasPrefix(format, "discard") {
			if w.lost == nil {
				w.fail("%s: %s", c.name, format)
			}
			w.lost()
		}
	})
	return c
}

func (w *modelWorld) addServer(statements int) (*pgproxy.FakeServer, *backend) {
	s, name := newBackend(), fmt.Sprint(len(w.servers))
	in := func(b []byte) {
		w.history = append(w.history, fmt.Sprintf("    server %s gets %s", name, textOf(b, true)))
		s.queue = append(s.queue, bytes.Clone(b))
	}
	srv := w.pool.NewServer(name, statements, in, s.undo)
	srv.Doubt = func() { w.endDoubt(srv) }
	w.servers[srv] = s
	return srv, s
}

func (w *modelWorld) fail(format string, args ...any) {
	w.t.Helper()
	w.t.Fatalf(format+"\n%s", append(args, strings.Join(w.history, "\n"))...)
}

// told records a client's output: of an error its code.
func told(list []string, b []byte) []string {
	text := textOf(b, false)
	if b[0] == pgwire.TypeErrorResponse {
		var m pgwire.ErrorResponse
		_ = m.Decode(b[5:])
		text = "ErrorResponse " + m.Code
	}
	return append(list, text)
}

// send has a client send a message.
func (w *modelWorld) send(c *modelClient, m pgwire.Message) {
	b := bytesOf(m)
	if c.straight.over || c.straight.copying != nil && b[0] == pgwire.TypeClose && !c.machine.InCopy() {
		return // the gateway itself answers Close, and does not know of the COPY yet
	}
	w.history = append(w.history, fmt.Sprintf("%s sends %s", c.name, textOf(b, true)))
	copying := c.straight.copying
	c.straight.queue = append(c.straight.queue, b)
	for len(c.straight.queue) > 0 {
		for _, m := range c.straight.answer() {
			c.want = told(c.want, bytesOf(m))
		}
	}
	c.noteCopy(b[0], copying)
	if _, err := c.machine.Client(b, func(b []byte) { c.got = told(c.got, b) }); err != nil {
		w.fail("%s: %v", c.name, err)
	}
	w.check()
}

// serve has a server deal with its next message, and reports whether it had one.
func (w *modelWorld) serve(c *modelClient) bool {
	srv := c.machine.Leased()
	if srv == nil || len(w.servers[srv].queue) == 0 {
		return false
	}
	s := w.servers[srv]
	for _, m := range s.answer() {
		b := bytesOf(m)
		w.history = append(w.history, fmt.Sprintf("    server %s says %s", srv.Name, textOf(b, false)))
		switch err := c.machine.Server(b, func(b []byte) { c.got = told(c.got, b) }); {
		case pgproxy.IsUnclear(err):
			w.isUnclear(c)
			return true
		case err != nil:
			w.fail("%s: %v", c.name, err)
		}
	}
	if s.over {
		w.isOver(c, srv)
		return true
	}
	c.machine.Settle()
	w.resume()
	w.check()
	return true
}

// resume continues with the clients that wait for a server connection, or for an answer.
func (w *modelWorld) resume() {
	for _, c := range w.clients {
		if !c.machine.Blocked() {
			continue
		}
		if _, err := c.machine.Resume(func(b []byte) { c.got = told(c.got, b) }); err != nil {
			w.fail("%s: %v", c.name, err)
		}
	}
}

// check tests the invariants.
func (w *modelWorld) check() {
	for srv, s := range w.servers {
		if srv.Owner == nil && !srv.Gone && (s.owes() || s.tx != pgwire.TxIdle || s.skipping || s.busy || s.copying != nil) {
			w.fail("server %s is free, and has %d messages to answer, transaction %c", srv.Name, len(s.queue), s.tx)
		}
	}
	for _, c := range w.clients {
		n := len(c.got)
		c.refused = c.refused || slices.Contains(c.got, "ErrorResponse 55000") // in a pipeline
		if c.refused {
			continue
		}
		if n > len(c.want) || !slices.EqualFunc(c.got, c.want[:n], sameAnswer) {
			w.fail("%s got %s\ndirectly it would be %s", c.name, tail(c.got), tail(c.want[:min(n, len(c.want))]))
		}
	}
}

// sameAnswer compares a client's output with that of a direct connection. The gateway's own error for a name in use
// precedes the server's errors about the text and the transaction, and a missing portal may be due to a missing
// statement.
func sameAnswer(got, want string) bool {
	return got == want || got == "ErrorResponse 42P05" && (want == "ErrorResponse 42601" || want == "ErrorResponse 25P02")
}

func tail(list []string) string { return strings.Join(list[max(0, len(list)-6):], ", ") }

// end makes every client end its request and its transaction, and wants everything answered and every server connection
// free.
func (w *modelWorld) end() {
	for range 3 {
		for i := range w.clients {
			c := w.clients[i]
			if c.machine.More = false; c.straight.copying != nil {
				w.send(c, &pgwire.CopyFail{})
			}
			w.send(c, &pgwire.Sync{})
			w.drain()
			if c.straight.tx != pgwire.TxIdle || c.refused {
				w.send(c, query("rollback"))
			}
			w.drain()
		}
	}
	for _, c := range w.clients {
		if !c.refused && len(c.got) != len(c.want) || !strings.HasSuffix(c.got[len(c.got)-1], `"I"`) || c.machine.Owed() > 0 || c.machine.Leased() != nil {
			w.fail("%s at the end: %d messages owed, got %s\ndirectly it would be %s", c.name, c.machine.Owed(), tail(c.got), tail(c.want))
		}
	}
}

// drain serves until nothing moves.
func (w *modelWorld) drain() {
	for moved := true; moved; {
		moved = false
		for _, c := range w.clients {
			for w.serve(c) {
				moved = true
			}
		}
	}
}

// watchSequences fails the test if a server runs INSERT for a client while it has values of a CACHE that are not the client's latest.
func (w *modelWorld) watchSequences() {
	w.pool.Caches()
	last := map[*modelClient]*backend{} // where the client has taken values last
	for srv, s := range w.servers {
		var has *modelClient // whose values the server has
		s.runs = func(text string) {
			switch text {
			case "DISCARD SEQUENCES":
				has = nil
			case "insert 1":
				i := slices.IndexFunc(w.clients, func(c *modelClient) bool { return c.machine == srv.Owner })
				c := w.clients[i]
				if has != nil && (has != c || last[c] != s) {
					w.fail("server %s has values that were cached for %s, and %s takes one", srv.Name, has.name, c.name)
				}
				has, last[c] = c, s
			}
		}
	}
}

// step executes one byte of a script.
func (w *modelWorld) step(op, arg byte) {
	c := w.clients[int(op)%len(w.clients)]
	name, text := []string{"", "a", "b"}[int(arg)%3], w.texts[int(arg)/3%len(w.texts)]
	kinds := 12
	if w.copies {
		kinds = 19
	}
	what := int(op) / len(w.clients) % kinds
	switch executes := strings.HasPrefix(text, "execute"); {
	case what >= 12:
		w.stepCopy(c, what, arg)
	case what > 1:
		w.extended(c, what, name, "SP"[int(arg)/3%2])
	case executes && c.straight.bound:
		w.send(c, &pgwire.Sync{}) // behind a Bind, EXECUTE does not find the client's statements
	case what == 0:
		w.send(c, query(text))
	case executes: // at once: it finds those that there are when it is bound
		for _, m := range []pgwire.Message{&pgwire.Parse{Query: text}, &pgwire.Bind{}, &pgwire.Execute{}, &pgwire.Close{Object: pgwire.ObjectPortal}} {
			w.send(c, m)
		}
		if w.copies {
			w.sendAll(c, &pgwire.Sync{}, &pgwire.Close{Object: pgwire.ObjectStatement}) // a later Bind would be another one
		}
	default:
		w.send(c, &pgwire.Parse{Name: name, Query: text})
	}
}

// extended has a client send a message of the extended protocol other than Parse, or a server answer.
func (w *modelWorld) extended(c *modelClient, what int, name string, object byte) {
	switch what {
	case 2, 3:
		w.send(c, &pgwire.Bind{Statement: name})
	case 4:
		if object == pgwire.ObjectPortal {
			name = ""
		}
		w.send(c, &pgwire.Describe{Object: object, Name: name})
	case 5:
		w.send(c, &pgwire.Execute{})
	case 6:
		w.send(c, &pgwire.Close{Object: pgwire.ObjectStatement, Name: name})
	case 7, 8:
		w.send(c, &pgwire.Sync{})
	default:
		w.serve(c)
	}
}

// FuzzMachine makes three clients share two server connections by their machines, and compares each client's output
// with that of a direct connection. A script has two bytes for each step.
func FuzzMachine(f *testing.F) {
	f.Add([]byte("\x00\x00\x03\x01\x06\x01\x0f\x00\x15\x00"))
	r := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		script := make([]byte, 200)
		for i := range script {
			script[i] = byte(r.Uint32())
		}
		f.Add(script)
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		w := newModelWorld(t, 2, 1+len(script)%3)
		w.clientsCopy()
		for i := 0; i+1 < len(script); i += 2 {
			w.step(script[i], script[i+1])
		}
		w.end()
	})
}
