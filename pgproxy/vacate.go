package pgproxy

import (
	"context"
	"strings"
	"time"
	"unique"

	"github.com/headpond/headpond/pgwire"
)

// A server drops, renames, moves or copies a database only if nobody else is connected to it: it waits up to five seconds for
// others to disconnect, and then refuses (55006). A direct connection ends with its client; one of a pool stays. So a pool
// closes its idle connections to the database on that server while the server waits.

const (
	// vacateAfter is how long a server has had such a statement when the database is vacated first. A client that lacks
	// the permission has its answer by then, and closes nobody's connections. The next times have twice the distance each:
	// they are for connections that were in use, or being opened.
	vacateAfter = 50 * time.Millisecond
	// vacateFor is how long a server waits.
	vacateFor = 5 * time.Second
)

// vacates begins to vacate a database if the text of a Query, which is about to run, needs it for itself. The text ends at a
// NUL. A Query behind others does not count: clients that lack the permission could close the connections of all, as long as
// the server is busy with a statement before.
func (m *machine) vacates(text []byte) {
	if m.st.tx == pgwire.TxIdle && m.st.canExecuteOwn() {
		m.vacate(databaseAlone(text))
	}
}

// vacatesSynced is vacates for a request in the extended protocol, at its Sync.
func (m *machine) vacatesSynced() {
	if m.alone != "" && m.st.single() {
		m.vacate(m.alone)
	}
	m.alone = ""
}

// vacate begins to vacate a database; "" = none.
func (m *machine) vacate(database string) {
	if database != "" && m.rules.vacate != nil {
		m.vacated()
		m.vacating = m.rules.vacate(database, m.server.peer)
	}
}

// vacated is called when the server has answered, or its connection is lost or given up.
func (m *machine) vacated() {
	if m.work != nil && m.vacating != nil {
		m.vacating()
		m.vacating = nil
	}
}

// vacate closes the idle connections of all backends to a database of one server, repeatedly, until stop is called or the
// server gives up.
func (p *Proxy) vacate(database string, peer unique.Handle[string]) (stop func()) {
	ctx, stop := context.WithTimeout(context.Background(), vacateFor)
	go p.keepVacating(ctx, database, peer)
	return stop
}

// keepVacating is the goroutine of vacate.
func (p *Proxy) keepVacating(ctx context.Context, database string, peer unique.Handle[string]) {
	for wait := vacateAfter; ; wait *= 2 {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
		for _, b := range p.settings.Load().Databases {
			if pg := postgresOf(b); pg != nil {
				pg.vacate(database, peer)
			}
		}
	}
}

// vacate closes the idle connections to a database of one server: those in use are closed when they are released. Pairs
// without sessions end, if they have connections to no other server.
func (b *Postgres) vacate(database string, peer unique.Handle[string]) {
	if b.cfg.LoginAs == AsUpstream {
		if b.cfg.DBName == database {
			b.leaveServer(peer)
		}
		return
	}
	var all []*Postgres // whose pools are not touched with mu held
	b.eachPair(func(p *Postgres) {
		if p.database == database {
			all = append(all, p)
		}
	})
	for _, p := range all {
		if p.leaveServer(peer) {
			b.endUnused(p)
		}
	}
}

// leaveServer has the pools close their connections to a server, and closes the listening connection if that leads there and
// no client listens. It reports whether the pools had connections there, and have none to other servers.
func (b *Postgres) leaveServer(peer unique.Handle[string]) (only bool) {
	expired, others := b.up.Expire(func(s *server) bool { return s.peer == peer })
	b.listening.mu.Lock()
	l := b.listening.conn
	b.listening.mu.Unlock()
	if l != nil && l.srv.peer == peer {
		l.closeUnused()
	}
	return expired > 0 && others == 0
}

// onDatabase reports whether DATABASE follows in a text.
func onDatabase(rest []byte) bool {
	rest = rest[spaceLength(rest, ' '):]
	n := min(len(rest), len("database"))
	return isWord(rest[:n], "database") && (n == len(rest) || !inIdentifier(rest[n]))
}

// databaseAlone returns the database to which nobody else may be connected while a statement runs; "" = none. The text ends
// at a NUL.
func databaseAlone(text []byte) string {
	text = withoutNul(text)
	text = text[spaceLength(text, ';'):]
	verb, rest := identifier(string(text[:min(len(text), maxSetName)]))
	object, rest := identifier(rest)
	if !strings.EqualFold(object, "database") {
		return ""
	}
	name, rest := identifier(rest)
	next, last := identifier(rest)
	switch strings.ToLower(verb) {
	case "create":
		return templateOf(rest)
	case "drop":
		if strings.EqualFold(name, "if") && strings.EqualFold(next, "exists") {
			name, _ = identifier(last)
		}
		return folded(name)
	case "alter":
		if what, _ := identifier(last); strings.EqualFold(next, "rename") || strings.EqualFold(next, "set") && strings.EqualFold(what, "tablespace") {
			return folded(name)
		}
	}
	return ""
}

// templateDefault is the database that CREATE DATABASE copies without TEMPLATE.
const templateDefault = "template1"

// templateOf returns the database that CREATE DATABASE copies, by the options behind the new database's name.
func templateOf(options string) string {
	for options != "" {
		word, rest := identifier(options)
		switch {
		case strings.EqualFold(word, "template"):
			rest = strings.TrimLeft(rest, " \t\n\v\f\r=")
			if strings.HasPrefix(rest, "'") {
				return strings.Trim(rest[:quotedEnd(rest, false)], "'")
			}
			if word, _ = identifier(rest); strings.EqualFold(word, "default") {
				return templateDefault
			}
			return folded(word)
		case word != "":
			options = rest
		case strings.HasPrefix(rest, "'"):
			options = rest[quotedEnd(rest, false):]
		default:
			options = rest[min(1, len(rest)):]
		}
	}
	return templateDefault
}

// folded returns the name that an identifier stands for.
func folded(word string) string {
	if strings.HasPrefix(word, `"`) {
		return unquoted(word)
	}
	return strings.Map(func(c rune) rune {
		if c >= 'A' && c <= 'Z' {
			c |= 0x20
		}
		return c
	}, word)
}
