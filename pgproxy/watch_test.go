package pgproxy_test

import (
	"errors"
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pgwire"
)

// slowToTell is a connection that takes its time to say whether its client is still there, as one
// does whose loop is busy.
type slowToTell struct {
	net.Conn
	asked, answer chan struct{}
}

func (c slowToTell) SyscallConn() (syscall.RawConn, error) {
	select {
	case c.asked <- struct{}{}:
	default:
	}
	<-c.answer
	return nil, net.ErrClosed // the client has gone
}

// While the proxy looks for clients that have left, others come and go.
func TestLookingForClientsHoldsNobody(t *testing.T) {
	g := start(t, pgtest.Shared(t), nil)
	conn, served := net.Pipe()
	slow := slowToTell{served, make(chan struct{}, 1), make(chan struct{})}
	l := &oneConn{conn: slow, done: make(chan struct{})}
	over := make(chan error, 1)
	go func() { over <- g.Serve(l) }()
	c := newWire(t, conn).login()
	c.send(query("select pg_sleep(60)"))
	<-slow.asked // the proxy looks after a second
	for range 3 {
		other := g.connect(t, "")
		do(t, other, "select 1")
		if err := other.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	close(slow.answer)
	if types, _ := c.until(pgwire.TypeReadyForQuery); !strings.HasSuffix(types, "EZ") { // canceled, for it has gone
		t.Errorf("the client got %s", types)
	}
	_ = conn.Close()
	_ = l.Close()
	if err := <-over; !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}
