package sqlite_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgproxy/sqlite"
	"github.com/headpond/headpond/pgwire"
)

// killing is a Backend that kills its only session just before a read deadline takes effect.
type killing struct {
	*sqlite.Backend
	p    *pgproxy.Proxy
	at   int // number of that deadline, from 1
	done chan struct{}
}

func (k *killing) Serve(ctx context.Context, c *pgproxy.Client) error {
	c.Conn = &killedConn{c.Conn, k}
	return k.Backend.Serve(ctx, c)
}

type killedConn struct {
	fiber.Stream
	k *killing
}

// SetReadDeadline is called by the session's goroutine, and by the kill with a time in the past.
func (c *killedConn) SetReadDeadline(t time.Time) error {
	if t.IsZero() || t.After(time.Now()) {
		if c.k.at--; c.k.at == 0 {
			for _, s := range c.k.p.Sessions() {
				id, _, _ := listener.ParseID(s.ID)
				c.k.p.Kill(id, 0)
			}
			close(c.k.done)
		}
	}
	return c.Stream.SetReadDeadline(t)
}

// A killed session ends, whichever of its own read deadlines follows that of the kill.
func TestDeadlinesDoNotUndoAKill(t *testing.T) {
	steps := [][]pgwire.Message{
		{&pgwire.Query{SQL: `BEGIN; INSERT INTO posts (author, title) VALUES (1, 'x')`}},
		{&pgwire.Query{SQL: `SELECT length('` + strings.Repeat("long ", 100_000) + `')`}},
		{&pgwire.Query{SQL: `COPY posts (author, title) FROM STDIN`}},
		{&pgwire.CopyData{Data: []byte("1\tcopied\n")}, &pgwire.CopyDone{}},
	}
	n := 1
	for ; killedAt(t, n, steps); n++ {
	}
	if n == 1 {
		t.Error("no deadline was set")
	}
}

// killedAt kills the session at its read deadline n. It returns false if the steps set fewer
// deadlines. The session must end.
func killedAt(t *testing.T, n int, steps [][]pgwire.Message) (killed bool) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "test.db")
	b, err := sqlite.New(sqlite.Config{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Exec(t.Context(), schema); err != nil {
		t.Fatal(err)
	}
	k := &killing{Backend: b, at: n, done: make(chan struct{})}
	s := serve(t, k, path)
	k.p = s.p
	conn, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Minute)) // for a session that does not end
	c := &wire{t, pgwire.NewReader(conn), pgwire.NewWriter(conn)}
	c.w.Send(&pgwire.StartupMessage{Params: []pgwire.Param{{Name: "user", Value: "demo"}, {Name: "database", Value: "demo"}}})
	for i := -1; i < len(steps); i++ {
		if i >= 0 {
			for _, m := range steps[i] {
				c.w.Send(m)
			}
		}
		said := ""
		for said != "G" && said != over && !strings.HasPrefix(said, "Z") {
			said = k.next(c, n)
		}
		if said == over {
			return true
		}
	}
	select {
	case <-k.done:
	default:
		return false
	}
	for k.next(c, n) != over {
	}
	return true
}

// over is the result of next for an ended session.
const over = "over"

// next returns the server's next message to a client whose session is killed at deadline n.
func (k *killing) next(c *wire, n int) string {
	c.t.Helper()
	err := c.w.Flush()
	var h pgwire.Header
	var body []byte
	if err == nil {
		h, err = c.r.Next()
	}
	if err == nil {
		body, err = c.r.Body()
	}
	if err == nil {
		said := c.describe(h.Type, body)
		if said == "E 57P01" {
			return over
		}
		return said
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		c.t.Fatalf("killed at deadline %d, the session goes on", n)
	}
	select {
	case <-k.done: // the client was sending at that moment and got a reset instead of 57P01
		return over
	default:
		c.t.Fatal(err)
		return ""
	}
}
