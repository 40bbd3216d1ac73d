package pgproxy

import (
	"bytes"
	"cmp"
	"maps"
	"slices"

	"github.com/headpond/headpond/pgwire"
)

// In a transaction block, a statement that the server does not prepare any more would abort the client's transaction,
// and one that it prepares takes the locks of its tables. So before SQL that lists prepared statements there, the
// gateway prepares the client's behind a savepoint, in one request, and rolls back to the savepoint: what has been
// prepared stays, errors and locks do not. The server skips what comes behind the first statement that it refuses; the
// next request has those. The client's message waits meanwhile. All of this is done in the extended protocol and under
// names of the gateway's, so that the client's unnamed statement and unnamed portal stay.

const (
	// exposure is the name of the savepoint, and of the statement and portal of each command about it.
	exposure = namePrefix + "exposure"
	// lockPatience bounds the wait for a lock of each request, which ends with the first one that has to wait. A list
	// needs no locks on a direct connection, so that the gateway must not take part in a deadlock.
	lockPatience = "SET LOCAL lock_timeout = 1" // millisecond
	// maxUnlisted bounds the statements that the server may refuse before the others are left out, too: each costs a
	// round trip.
	maxUnlisted = 10
)

// listing is the state of a list of prepared statements in a transaction block, while the client's message waits.
type listing struct {
	names   []string              // the statements of the request under way, in order
	done    int                   // how many of them the server has prepared; negative: commands that come before
	refused []string              // names of statements that the server has refused
	undoing bool                  // the request that rolls back to the savepoint is under way
	over    bool                  // no more statements are prepared
	err     *pgwire.ErrorResponse // the client's message fails with this error; nil = it does not
}

// listInBlock prepares the server for a message that may list prepared statements, in a transaction block. left is
// judge's result for the text. waits means that the message has to wait for answers; e is the error with which the
// message fails.
func (m *machine) listInBlock(left traces) (waits bool, e *pgwire.ErrorResponse) {
	if left&traceLists == 0 {
		return false, nil
	}
	if m.listing.names != nil && !m.st.empty() {
		return true, nil // they are not all answered
	}
	if e = m.listing.err; e != nil {
		m.listing = listing{}
		return false, e
	}
	if m.st.tx != pgwire.TxActive || !m.mayExpose() {
		return false, nil
	}
	if !m.listing.over {
		m.closeGatewayStatements(nil)
		if names := m.unlisted(); len(names) > 0 {
			m.list(names)
			return true, nil
		}
	}
	m.listing = listing{}
	return false, nil
}

// unlisted returns the names of the client's statements that the server lacks, and that it has not refused for this
// list, in the order in which the client has prepared them.
func (m *machine) unlisted() (names []string) {
	size := 0
	for _, name := range firstOf(maps.Keys(m.stmts), maxListed) {
		if size += len(m.stmts[name].body); size > maxExposed {
			break
		}
		if m.needsExposing(name) && name != exposure && !slices.Contains(m.listing.refused, name) {
			names = append(names, name)
		}
	}
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(m.stmts[a].since, m.stmts[b].since) })
	return names
}

// list sends the requests that prepare statements behind a savepoint, and roll back to it.
func (m *machine) list(names []string) {
	commands := []string{"SAVEPOINT " + exposure, lockPatience}
	m.listing.names, m.listing.done, m.listing.undoing = names, -len(commands), false
	m.beginList()
	for _, sql := range commands {
		m.askCommand(sql)
	}
	for _, name := range names {
		if _, stands := m.underClientName[name]; stands { // otherwise SQL has prepared what has this name
			m.ask(&pgwire.Close{Object: pgwire.ObjectStatement, Name: name})
		}
		m.sendParse(name, m.stmts[name].body)
	}
	m.ask(&pgwire.Sync{})
	m.beginList()
	m.askCommand("ROLLBACK TO " + exposure)
	m.askCommand("RELEASE " + exposure)
	m.ask(&pgwire.Sync{})
}

// beginList begins a request of list.
func (m *machine) beginList() {
	m.st.push(op{kind: opOwn, lists: true})
	m.ask(&pgwire.Close{Object: pgwire.ObjectStatement, Name: exposure}) // an error may have left it
}

// askCommand has the server execute a command by a statement and a portal of the gateway's own.
func (m *machine) askCommand(sql string) {
	m.sendParse(exposure, sql+"\x00\x00\x00")
	m.ask(&pgwire.Bind{Portal: exposure, Statement: exposure})
	m.ask(&pgwire.Execute{Portal: exposure})
	m.ask(&pgwire.Close{Object: pgwire.ObjectPortal, Name: exposure})
	m.ask(&pgwire.Close{Object: pgwire.ObjectStatement, Name: exposure})
}

// listAnswer notes a message of the server that answers the requests of list.
func (m *machine) listAnswer(msg message) {
	l := &m.listing
	switch msg.typ {
	case pgwire.TypeParseComplete:
		if !l.undoing && l.done >= 0 && l.done < len(l.names) {
			name := l.names[l.done]
			m.setUnderClientName(name, m.stmts[name])
		}
		l.done++
	case pgwire.TypeReadyForQuery:
		l.undoing = true
	case pgwire.TypeErrorResponse:
		m.notListed(msg.body)
	}
}

// notListed notes the server's error about a request of list. A statement that is refused is left out of the list.
// After other errors, such as a cancel request of the client, the client's message fails, as it would on a direct
// connection. b is the beginning of the error's body.
func (m *machine) notListed(b []byte) {
	l := &m.listing
	statement := !l.undoing && l.done >= 0 && l.done < len(l.names)
	if statement {
		if _, stands := m.underClientName[l.names[l.done]]; stands {
			m.setUnderClientName(l.names[l.done], nil) // closing it may have failed
		}
	}
	switch {
	case !statement, bytes.Contains(b, []byte("\x00C"+pgwire.StateQueryCanceled+"\x00")):
		m.server.flags |= leftPrepare // the statement of a command may be left
		if l.err != nil {
			return // without the savepoint, the commands that undo it fail as well
		}
		if l.err = new(pgwire.ErrorResponse); l.err.Decode(b) != nil {
			l.err = errorResponse(pgwire.SeverityError, pgwire.StateQueryCanceled, "canceling statement due to user request", "")
		}
	default:
		l.refused = append(l.refused, l.names[l.done])
		l.over = len(l.refused) >= maxUnlisted || bytes.Contains(b, []byte("\x00C55P03\x00")) // lock_not_available
	}
}
