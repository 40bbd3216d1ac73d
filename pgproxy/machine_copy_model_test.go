package pgproxy_test

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
)

// modelCopy is a COPY from the client in a backend of the model.
type modelCopy struct {
	how    string // see copyTexts
	simple bool   // by Query
}

// copyTexts are texts with COPY. Those from the client work, fail before the server reads any data, at the first data, and at the end of the data.
var copyTexts = []string{"copy works", "copy no", "copy bad", "copy late", "copy out"}

// ofCopy reports whether a message is part of a client's COPY data.
func ofCopy(typ byte) bool {
	return typ == pgwire.TypeCopyData || typ == pgwire.TypeCopyDone || typ == pgwire.TypeCopyFail
}

// copyBegins executes COPY.
func (s *backend) copyBegins(how string, simple bool) []pgwire.Message {
	if how == "out" {
		return []pgwire.Message{&pgwire.CopyOutResponse{}, &pgwire.CopyData{Data: []byte("1\n")}, &pgwire.CopyDone{}, &pgwire.CommandComplete{Tag: "COPY 1"}}
	}
	said := []pgwire.Message{&pgwire.CopyInResponse{}}
	if how == "no" {
		return append(said, s.fails("P0001")...)
	}
	s.copying = &modelCopy{how, simple}
	return said
}

// copied handles a message while a COPY is under way.
func (s *backend) copied(b []byte) (said []pgwire.Message) {
	c := s.copying
	switch {
	case b[0] == pgwire.TypeSync || b[0] == pgwire.TypeFlush || b[0] == pgwire.TypeCopyData && c.how != "bad":
		return nil
	case b[0] == pgwire.TypeCopyData:
		said = s.fails("22P02")
	case b[0] == pgwire.TypeCopyDone && c.how == "late":
		said = s.fails("23505")
	case b[0] == pgwire.TypeCopyDone:
		said = []pgwire.Message{&pgwire.CommandComplete{Tag: "COPY 1"}}
	case b[0] == pgwire.TypeCopyFail:
		said = s.fails("57014")
	default:
		s.over = true
		return []pgwire.Message{&pgwire.ErrorResponse{Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: "08P01", Message: "no"}}
	}
	s.copying = nil
	if c.simple {
		return append(said, s.ready()...)
	}
	s.skipping = isError(said[0])
	return said
}

// owes reports whether the server will answer what is in its queue.
func (s *backend) owes() bool {
	return slices.ContainsFunc(s.queue, func(b []byte) bool { return !ofCopy(b[0]) && b[0] != pgwire.TypeFlush })
}

// sentCopy is a COPY of a client whose end it may not know.
type sentCopy struct {
	simple bool
	ended  bool // the client has sent the end of the data
	synced bool // and a Sync behind it
	inside bool // a Sync was sent in the data
	end    int  // the length of want with its last answer; 0 = not yet
	unfit  bool // requests were sent of which nobody knows whether they are answered
}

// noteCopy notes what a message of the client, which a direct connection has dealt with, is to its COPYs.
func (c *modelClient) noteCopy(typ byte, before *modelCopy) {
	known := func(s *sentCopy) bool { return s.end > 0 && len(c.got) >= s.end }
	for _, s := range c.copies {
		if s.end == 0 && before != nil && c.straight.copying == nil {
			s.end = len(c.want)
		}
		switch {
		case typ == pgwire.TypeCopyDone || typ == pgwire.TypeCopyFail:
			s.ended = true
		case typ == pgwire.TypeSync && (s.ended || known(s)):
			s.synced = true
		case typ == pgwire.TypeSync:
			s.inside = true
		case typ == pgwire.TypeCopyData || typ == pgwire.TypeFlush:
		default:
			s.unfit = s.unfit || !s.ended && !known(s) || !s.simple && s.inside && !s.synced
		}
	}
	c.copies = slices.DeleteFunc(c.copies, func(s *sentCopy) bool { return !s.unfit && known(s) && (s.simple || s.synced || !s.inside) })
	if before != nil {
		return
	}
	began := slices.IndexFunc(c.want[min(len(c.want), c.seen):], func(text string) bool { return text == "CopyInResponse" }) >= 0
	c.seen = len(c.want)
	if began {
		s := &sentCopy{simple: typ == pgwire.TypeQuery}
		if c.straight.copying == nil {
			s.end = len(c.want)
		}
		c.copies = append(c.copies, s)
	}
}

// clientsCopy has the clients use COPY.
func (w *modelWorld) clientsCopy() {
	w.copies, w.texts = true, slices.Concat(modelTexts, copyTexts)
}

// isUnclear ends a client because nobody knows what its server connection answers, if there is a reason for that.
func (w *modelWorld) isUnclear(c *modelClient) {
	if !slices.ContainsFunc(c.copies, func(s *sentCopy) bool { return s.unfit }) {
		w.fail("%s lost its server connection for no reason", c.name)
	}
	w.unclear++
	c.machine.Lose()
	w.replace(c)
}

// isOver ends a client whose server has ended the connection. A direct connection has, too.
func (w *modelWorld) isOver(c *modelClient, srv *pgproxy.FakeServer) {
	if !c.straight.over || !slices.EqualFunc(c.got, c.want, sameAnswer) {
		w.fail("%s got %s\ndirectly it would be %s", c.name, tail(c.got), tail(c.want))
	}
	srv.Gone, srv.Owner = true, nil
	w.replace(c)
}

// replace has another client come, and another server connection.
func (w *modelWorld) replace(c *modelClient) {
	w.history = append(w.history, c.name+" leaves")
	w.clients[slices.Index(w.clients, c)] = w.newClient(c.name + "'")
	w.addServer(2)
	w.resume()
}

// endDoubt has a server answer everything. What nobody expects of it is for its client.
func (w *modelWorld) endDoubt(srv *pgproxy.FakeServer) {
	s := w.servers[srv]
	i := slices.IndexFunc(w.clients, func(c *modelClient) bool { return c.machine == srv.Owner })
	c := w.clients[i]
	for len(s.queue) > 0 {
		for _, m := range s.answer() {
			b := bytesOf(m)
			w.history = append(w.history, fmt.Sprintf("    server %s says %s", srv.Name, textOf(b, false)))
			if !bytes.Equal(b, bytesOf(&pgwire.ReadyForQuery{Status: pgwire.TxIdle})) {
				w.fail("%s did not expect this", c.name)
			}
			c.got = told(c.got, b)
		}
	}
}

// stepCopy executes one byte of a script: a client sends a part of COPY data, or all of a COPY.
func (w *modelWorld) stepCopy(c *modelClient, what int, arg byte) {
	data, sync := &pgwire.CopyData{Data: []byte("1\n")}, &pgwire.Sync{}
	switch what {
	case 12:
		w.sendAll(c, data)
	case 13:
		w.sendAll(c, &pgwire.CopyDone{})
	case 14:
		w.sendAll(c, &pgwire.CopyFail{})
	case 15:
		w.sendAll(c, &pgwire.Flush{})
	case 16:
		c.machine.More = arg%2 == 0
		c.machine.Settle()
		w.resume()
		w.check()
	default:
		text := copyTexts[int(arg)%len(copyTexts)]
		if arg /= byte(len(copyTexts)); arg%2 == 0 {
			w.sendAll(c, query(text))
		} else {
			w.sendAll(c, &pgwire.Parse{Query: text}, &pgwire.Bind{}, &pgwire.Execute{})
		}
		for i, m := range []pgwire.Message{sync, sync, data, sync, &pgwire.CopyDone{}} {
			if arg>>(1+i)&1 == 1 {
				w.sendAll(c, m)
			}
		}
	}
}

func (w *modelWorld) sendAll(c *modelClient, messages ...pgwire.Message) {
	for _, m := range messages {
		w.send(c, m)
	}
}
