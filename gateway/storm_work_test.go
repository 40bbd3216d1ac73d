//go:build unix && storm

package gateway_test

import (
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

// stormWork are the kinds of work.
var stormWork = []struct {
	name string
	do   func(*stormSession) error
}{
	{"simple", (*stormSession).simple}, {"extended", (*stormSession).extended}, {"named", (*stormSession).useNamed}, {"pipeline", (*stormSession).pipeline}, {"copy in", (*stormSession).copyIn},
	{"copy out", (*stormSession).copyOut}, {"transaction", (*stormSession).transaction}, {"transaction", (*stormSession).transaction}, {"insert", (*stormSession).insert}, {"cursor", (*stormSession).cursor}, {"temp", (*stormSession).tempTable},
	{"listen", (*stormSession).listen}, {"setting", (*stormSession).useSetting}, {"prepare", (*stormSession).sqlPrepare}, {"canceled", (*stormSession).sleepCanceled}, {"lock", (*stormSession).lock}, {"idle", (*stormSession).idle}, {"rows", (*stormSession).manyRows}, {"discard", (*stormSession).discard},
}

// step does some work.
func (s *stormSession) step() error {
	w := stormWork[s.r.IntN(len(stormWork))]
	s.work = w.name
	s.trail = append(s.trail, w.name)
	return w.do(s)
}

func parseBindExecute(name, sql string, values ...string) []pgproto3.FrontendMessage {
	var parameters [][]byte
	for _, v := range values {
		parameters = append(parameters, []byte(v))
	}
	return []pgproto3.FrontendMessage{&pgproto3.Parse{Name: name, Query: sql}, &pgproto3.Bind{PreparedStatement: name, Parameters: parameters}, &pgproto3.Execute{}}
}

func (s *stormSession) simple() error {
	tag, other := s.tag(), s.tag()
	switch s.r.IntN(3) {
	case 0:
		a, err := s.query("select '%s'; select '%s'", tag, other)
		if err == nil {
			s.want(a, tag, other)
		}
		return err
	case 1:
		a, err := s.query("select '%s'; select 1/0; select '%s'", tag, other)
		if err == nil {
			s.want(a, tag)
		}
		return err
	}
	a, err := s.query("select '%s'", tag)
	if err == nil {
		s.want(a, tag)
	}
	return err
}

func (s *stormSession) extended() error {
	tag := s.tag()
	a, err := s.one(append(parseBindExecute("", "select $1::text", tag), &pgproto3.Sync{})...)
	if err == nil {
		s.want(a, tag)
	}
	return err
}

// useNamed executes a statement whose name other clients use, too.
func (s *stormSession) useNamed() error {
	tag := s.tag()
	var messages []pgproto3.FrontendMessage
	if s.named == "" {
		messages = append(messages, &pgproto3.Parse{Name: "storm_named", Query: fmt.Sprintf("select '%s ' || $1", tag)}, &pgproto3.Sync{})
		a, err := s.one(messages...)
		if err != nil {
			return err
		}
		if a.err != nil {
			return nil
		}
		s.named = tag
	}
	for range 1 + s.r.IntN(3) {
		tag := s.tag()
		a, err := s.one(&pgproto3.Bind{PreparedStatement: "storm_named", Parameters: [][]byte{[]byte(tag)}}, &pgproto3.Describe{ObjectType: 'P'}, &pgproto3.Execute{}, &pgproto3.Sync{})
		if err != nil {
			return err
		}
		s.want(a, s.named+" "+tag)
	}
	return nil
}

// pipeline sends many requests before it reads.
func (s *stormSession) pipeline() error {
	var messages []pgproto3.FrontendMessage
	var want []string
	n := 2 + s.r.IntN(6)
	for i := range n {
		tag := s.tag()
		switch {
		case s.oneIn(5):
			messages = append(messages, &pgproto3.Query{String: fmt.Sprintf("select '%s'", tag)})
		case s.oneIn(6):
			messages = append(append(messages, parseBindExecute("", "select 1/0")...), &pgproto3.Sync{})
			tag = ""
		default:
			name := ""
			if s.oneIn(3) {
				name = fmt.Sprintf("storm_%s_%d", tag, i)
			}
			messages = append(append(messages, parseBindExecute(name, "select $1::text", tag)...), &pgproto3.Sync{})
		}
		want = append(want, tag)
	}
	answers, err := s.messages(n, messages...)
	for i, a := range answers {
		if want[i] != "" {
			s.want(a, want[i])
		} else if a.err == nil || len(a.rows) > 0 {
			s.wrong("a division by zero gets %+v", a)
		}
	}
	return err
}

// insertText returns the text that inserts a new row.
func (s *stormSession) insertText() (n int, text string) {
	s.tag()
	s.rows[s.tags] = rowUnknown
	return s.tags, fmt.Sprintf("insert into public.storm_rows values (%d, %d, %d)", s.round, s.id, s.tags)
}

// outcome notes what has become of a row whose commit was answered.
func (s *stormSession) outcome(a stormAnswer, rows ...int) {
	for _, n := range rows {
		switch {
		case a.err == nil:
			s.rows[n] = rowCommitted
		case !fault(a.err):
			s.rows[n] = rowAborted
		}
	}
}

func (s *stormSession) insert() error {
	n, text := s.insertText()
	var a stormAnswer
	var err error
	if s.oneIn(2) {
		a, err = s.query("%s", text)
	} else {
		a, err = s.one(append(parseBindExecute("", text), &pgproto3.Sync{})...)
	}
	if err == nil {
		s.outcome(a, n)
	}
	return err
}

func (s *stormSession) copyIn() error {
	a, err := s.query("copy public.storm_rows from stdin")
	if err != nil || a.err != nil {
		return err
	}
	var messages []pgproto3.FrontendMessage
	var rows []int
	for range 1 + s.r.IntN(20) {
		n, _ := s.insertText()
		rows = append(rows, n)
		messages = append(messages, &pgproto3.CopyData{Data: fmt.Appendf(nil, "%d\t%d\t%d\n", s.round, s.id, n)})
	}
	if s.oneIn(8) { // in the middle
		_, _ = s.messages(0, messages...)
		s.reset()
		return errStormEnd
	}
	fails := s.oneIn(4)
	if fails {
		messages = append(messages, &pgproto3.CopyFail{Message: "no"})
	} else {
		messages = append(messages, &pgproto3.CopyDone{})
	}
	a, err = s.one(messages...)
	if err == nil {
		if fails && a.err == nil {
			s.wrong("a COPY that failed has no error")
		}
		s.outcome(a, rows...)
	}
	return err
}

func (s *stormSession) copyOut() error {
	tag, n := s.tag(), 1+s.r.IntN(2000)
	a, err := s.query("copy (select '%s' from generate_series(1, %d)) to stdout", tag, n)
	if err != nil {
		return err
	}
	if want := strings.Repeat(tag+"\n", n); a.copy != want && (a.err == nil || !strings.HasPrefix(want, a.copy)) {
		s.wrong("COPY to stdout of %d rows: %d bytes, %.100q", n, len(a.copy), a.copy)
	}
	return nil
}

func (s *stormSession) manyRows() error {
	tag, n := s.tag(), 1+s.r.IntN(500)
	text := fmt.Sprintf("select '%s' || repeat('x', 200) from generate_series(1, %d)", tag, n)
	if s.oneIn(6) {
		_, _ = s.messages(0, &pgproto3.Query{String: text + " x, generate_series(1, 1000)"})
		_, _ = s.f.Receive()
		s.reset()
		return errStormEnd
	}
	var a stormAnswer
	var err error
	rows := n
	if s.oneIn(3) { // a portal that is suspended
		rows = min(n, 7)
		a, err = s.one(&pgproto3.Parse{Query: text}, &pgproto3.Bind{}, &pgproto3.Execute{MaxRows: 5}, &pgproto3.Flush{}, &pgproto3.Execute{MaxRows: 2}, &pgproto3.Sync{})
	} else {
		a, err = s.query("%s", text)
	}
	if err != nil {
		return err
	}
	if len(a.rows) != rows && a.err == nil {
		s.wrong("%d rows of %d", len(a.rows), rows)
	}
	for _, row := range a.rows {
		if row != tag+strings.Repeat("x", 200) {
			s.wrong("row %.60q", row)
			break
		}
	}
	return nil
}

// end ends a transaction; open are its rows.
func (s *stormSession) end(text string, open []int) error {
	if s.oneIn(8) { // and does not wait for the answer
		_, _ = s.messages(0, &pgproto3.Query{String: text})
		s.reset()
		return errStormEnd
	}
	a, err := s.query("%s", text)
	if err != nil {
		return err
	}
	switch {
	case a.err != nil:
		s.outcome(a, open...)
	case len(a.tags) == 1 && a.tags[0] == "COMMIT":
		s.outcome(a, open...)
	case len(a.tags) == 1 && a.tags[0] == "ROLLBACK":
		for _, n := range open {
			s.rows[n] = rowAborted
		}
	default:
		s.wrong("%s answers %v", text, a.tags)
	}
	if s.tx != 'I' {
		s.wrong("after %s the status is %c", text, s.tx)
	}
	return nil
}

func (s *stormSession) transaction() error {
	begin := "begin"
	if s.oneIn(4) {
		begin = "begin isolation level repeatable read"
	}
	a, err := s.query("%s", begin)
	if err != nil || a.err != nil {
		return err
	}
	var open, undone []int // rows, and those behind the savepoint
	saved := false
	for range 1 + s.r.IntN(5) {
		switch s.r.IntN(7) {
		case 0:
			if a, err = s.query("savepoint a"); err == nil && a.err == nil {
				saved, open, undone = true, append(open, undone...), nil
			}
		case 1:
			if !saved {
				continue
			}
			if a, err = s.query("rollback to a"); err == nil && a.err == nil {
				for _, n := range undone {
					s.rows[n] = rowAborted
				}
				undone = nil
			}
		case 2:
			a, err = s.query("select 1/0")
		case 3:
			wait(time.Duration(s.r.IntN(250)) * time.Millisecond)
			tag := s.tag()
			if a, err = s.one(append(parseBindExecute("", "select $1::text", tag), &pgproto3.Sync{})...); err == nil {
				s.want(a, tag)
			}
		default:
			n, text := s.insertText()
			undone = append(undone, n)
			a, err = s.query("%s", text)
			if err == nil && a.err != nil {
				s.rows[n] = rowAborted
				undone = undone[:len(undone)-1]
			}
		}
		if err != nil {
			return err
		}
		if a.err == nil && s.tx != 'T' || a.err != nil && s.tx != 'E' {
			s.wrong("in a transaction the status is %c, after %+v", s.tx, a)
		}
	}
	if s.oneIn(10) {
		s.reset()
		return errStormEnd
	}
	if s.oneIn(5) {
		return s.end("rollback", append(open, undone...))
	}
	return s.end("commit", append(open, undone...))
}

// cursor holds a cursor over transactions.
func (s *stormSession) cursor() error {
	if s.held == "" {
		tag := s.tag()
		if a, err := s.query("begin; declare storm_cursor cursor with hold for select '%s' from generate_series(1, 3); commit", tag); err != nil || a.err != nil {
			return s.inBlock(err)
		}
		s.held = tag
	}
	a, err := s.query("fetch 1 from storm_cursor")
	if err != nil {
		return err
	}
	if a.err == nil {
		s.want(a, s.held)
	}
	if a.err != nil && s.mayLose() {
		s.held = ""
	}
	if a, err = s.query("close storm_cursor"); err != nil {
		return err
	}
	if a.err == nil || s.mayLose() {
		s.held = ""
	}
	return nil
}

// inBlock ends the transaction of a Query that may have failed.
func (s *stormSession) inBlock(err error) error {
	if err == nil && s.tx != 'I' {
		_, err = s.query("rollback")
	}
	return err
}

// tempTable uses a temporary table whose name other clients use, too.
func (s *stormSession) tempTable() error {
	if s.temp == "" {
		tag := s.tag()
		if a, err := s.query("create temp table storm_temp as select '%s' as tag", tag); err != nil || a.err != nil {
			return err
		}
		s.temp = tag
	}
	a, err := s.query("select tag from storm_temp")
	if err != nil {
		return err
	}
	if a.err == nil {
		s.want(a, s.temp)
	} else if s.mayLose() {
		s.temp = ""
	}
	if s.oneIn(2) && s.temp != "" {
		if a, err = s.query("drop table storm_temp"); err != nil {
			return err
		}
		if a.err == nil || s.mayLose() {
			s.temp = ""
		}
	}
	return nil
}

func (s *stormSession) listen() error {
	own := fmt.Sprintf("storm%d", s.id)
	switch s.r.IntN(3) {
	case 0:
		before := s.listens
		s.listens = true
		a, err := s.query("listen %s", own)
		if err == nil && a.err != nil && !fault(a.err) {
			s.listens = before
		}
		return err
	case 1:
		other := fmt.Sprintf("storm%d", s.r.IntN(stormClients))
		_, err := s.query("notify %s, 'to%s.%s'", other, other, s.tag())
		return err
	}
	payload := "to" + own + "." + s.tag()
	a, err := s.query("notify %s, '%s'", own, payload)
	if err == nil && a.err == nil && s.listens && !s.heard[payload] && !s.mayLose() {
		s.wrong("its own notification %q has not come", payload)
	}
	return err
}

// useSetting: settings follow their client.
func (s *stormSession) useSetting() error {
	if s.setting == "" || s.oneIn(3) {
		tag := s.tag()
		a, err := s.query("set storm.tag = '%s'", tag)
		if err != nil || a.err != nil {
			return err
		}
		s.setting = tag
	}
	a, err := s.query("show storm.tag")
	if err == nil {
		s.want(a, s.setting)
	}
	return err
}

func (s *stormSession) sqlPrepare() error {
	if s.sqlNamed == "" {
		tag := s.tag()
		if a, err := s.query("prepare storm_sql as select '%s'", tag); err != nil || a.err != nil {
			return err
		}
		s.sqlNamed = tag
	}
	a, err := s.query("execute storm_sql")
	if err != nil {
		return err
	}
	if a.err == nil {
		s.want(a, s.sqlNamed)
	} else if s.mayLose() {
		s.sqlNamed = ""
	}
	if s.oneIn(2) && s.sqlNamed != "" {
		if a, err = s.query("deallocate storm_sql"); err != nil {
			return err
		}
		if a.err == nil || s.mayLose() {
			s.sqlNamed = ""
		}
	}
	return nil
}

// sleepCanceled sends a statement, and a cancel request for it.
func (s *stormSession) sleepCanceled() error {
	tag := s.tag()
	done := make(chan struct{})
	if s.oneIn(4) { // there is nothing to cancel
		s.cancel()
	}
	s.canceled = true
	delay := time.Duration(s.r.IntN(60)) * time.Millisecond
	go func() { defer close(done); wait(delay); s.cancel() }()
	a, err := s.query("select '%s' from pg_sleep(0.5)", tag)
	<-done
	if err == nil {
		s.want(a, tag)
	}
	return err
}

func (s *stormSession) lock() error {
	for _, text := range []string{"select pg_advisory_lock(%d)::text", "select pg_advisory_unlock(%d)::text"} {
		a, err := s.query(text, s.id)
		if err != nil || a.err != nil {
			return err
		}
		if len(a.rows) == 1 && a.rows[0] == "false" && !s.mayLose() {
			s.wrong("it has lost its lock")
		}
	}
	return nil
}

// idle waits, and then asks.
func (s *stormSession) idle() error {
	wait(time.Duration(s.r.IntN(400)) * time.Millisecond)
	return s.simple()
}

func (s *stormSession) discard() error {
	if !s.oneIn(3) {
		return s.simple()
	}
	a, err := s.query("discard all")
	if err == nil && a.err == nil {
		s.temp, s.named, s.sqlNamed, s.held, s.setting = "", "", "", "", ""
		s.listens, s.lost = false, false
	}
	if err == nil && a.err != nil {
		s.lost = true
	}
	return err
}

// reset breaks the connection off.
func (s *stormSession) reset() {
	raw := s.conn
	if wrapped, ok := raw.(interface{ NetConn() net.Conn }); ok {
		raw = wrapped.NetConn()
	}
	if tcp, ok := raw.(*net.TCPConn); ok && s.oneIn(2) {
		_ = tcp.SetLinger(0)
	}
	_ = s.conn.Close()
}

// leave ends the session in one of many ways.
func (s *stormSession) leave() {
	s.work = "leave"
	switch s.r.IntN(5) {
	case 0: // in the middle of a message
		b, _ := (&pgproto3.Query{String: "select '" + s.tag() + "'"}).Encode(nil)
		_, _ = s.conn.Write(b[:1+s.r.IntN(len(b)-1)])
	case 1: // while a statement runs
		_, _ = s.messages(0, &pgproto3.Query{String: "select pg_sleep(0.3)"})
	case 2:
		_, text := s.insertText()
		_, _ = s.messages(0, append(parseBindExecute("", text), &pgproto3.Sync{})...)
	default:
		_, _ = s.messages(0, &pgproto3.Terminate{})
	}
	s.reset()
}
