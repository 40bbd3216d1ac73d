package pgproxy_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
	"github.com/headpond/headpond/upstream"
)

// wire is one end of a connection on which a test speaks the protocol message by message.
type wire struct {
	net.Conn
	t     testing.TB
	r     *pgwire.Reader
	key   pgwire.BackendKeyData
	names ownNames
}

// ownNames number the gateway's names of statements, which are random, in their order.
type ownNames struct{ seen []string }

var ownName = regexp.MustCompile(`headpond_[A-Z2-7]{26}`)

// number replaces the names in a text by headpond_1 and so on.
func (n *ownNames) number(text string) string {
	return ownName.ReplaceAllStringFunc(text, func(name string) string {
		if !slices.Contains(n.seen, name) {
			n.seen = append(n.seen, name)
		}
		return fmt.Sprint("headpond_", 1+slices.Index(n.seen, name))
	})
}

func newWire(t testing.TB, conn net.Conn) *wire {
	t.Cleanup(func() { _ = conn.Close() })
	return &wire{Conn: conn, t: t, r: pgwire.NewReader(conn)}
}

// patient bounds the next message, not the test: one that hangs says where.
func (w *wire) patient() { _ = w.SetDeadline(time.Now().Add(3 * time.Minute)) }

// bytesOf encodes messages.
func bytesOf(messages ...pgwire.Message) []byte {
	var b []byte
	for _, m := range messages {
		b = m.Append(b)
	}
	return b
}

func (w *wire) send(messages ...pgwire.Message) {
	w.t.Helper()
	w.patient()
	if _, err := w.Write(bytesOf(messages...)); err != nil {
		w.t.Fatal(err)
	}
}

// read returns the next message: its type and body.
func (w *wire) read() (byte, string) {
	w.t.Helper()
	typ, body, err := w.try()
	if err != nil {
		w.t.Fatal(err)
	}
	return typ, body
}

func (w *wire) try() (byte, string, error) {
	w.patient()
	h, err := w.r.Next()
	if err != nil {
		return 0, "", err
	}
	body, err := w.r.Body()
	return h.Type, w.names.number(string(body)), err
}

// ask sends messages and reads up to ReadyForQuery; see until.
func (w *wire) ask(messages ...pgwire.Message) (types, bodies string) {
	w.t.Helper()
	w.send(messages...)
	return w.until(pgwire.TypeReadyForQuery)
}

// until reads up to a message of type last and returns the types read, and all bodies.
func (w *wire) until(last byte) (types, bodies string) {
	w.t.Helper()
	for {
		typ, body := w.read()
		types, bodies = types+string(typ), bodies+body
		if typ == last {
			return types, bodies
		}
	}
}

// login goes through startup as a client.
func (w *wire) login(params ...pgwire.Param) *wire {
	w.t.Helper()
	return w.loginVersion(pgwire.Version30, params...)
}

func (w *wire) loginVersion(version uint32, params ...pgwire.Param) *wire {
	w.t.Helper()
	w.send(&pgwire.StartupMessage{Version: version, Params: append([]pgwire.Param{{Name: "user", Value: "app"}}, params...)})
	for {
		typ, body := w.read()
		switch typ {
		case pgwire.TypeErrorResponse:
			w.t.Fatalf("startup: %q", body)
		case pgwire.TypeBackendKeyData:
			if err := w.key.Decode([]byte(body)); err != nil {
				w.t.Fatal(err)
			}
		case pgwire.TypeReadyForQuery:
			return w
		}
	}
}

// dial returns a client of the gateway that has logged in.
func (g *gateway) dial(t testing.TB, params ...pgwire.Param) *wire {
	t.Helper()
	conn, err := net.Dial("tcp", g.addr)
	if err != nil {
		t.Fatal(err)
	}
	return newWire(t, conn).login(params...)
}

// pipe returns a client connected by net.Pipe: its writes arrive in exactly those pieces, and
// nothing is buffered in between. It has not logged in.
func (g *gateway) pipe(t testing.TB) *wire {
	t.Helper()
	client, server := net.Pipe()
	l := &oneConn{conn: server, done: make(chan struct{})}
	served := make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	t.Cleanup(func() {
		_ = client.Close()
		_ = l.Close()
		<-served
	})
	return newWire(t, client)
}

// oneConn is a net.Listener of one connection.
type oneConn struct {
	conn net.Conn
	done chan struct{}
}

func (l *oneConn) Accept() (net.Conn, error) {
	if c := l.conn; c != nil {
		l.conn = nil
		return c, nil
	}
	<-l.done
	return nil, net.ErrClosed
}

func (l *oneConn) Close() error {
	select {
	case <-l.done:
	default:
		close(l.done)
	}
	return nil
}

func (l *oneConn) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

// fakeServer is a server whose every message is written by the test.
type fakeServer struct {
	addr    string
	conns   chan *wire // have logged in
	cancels chan *wire // have sent a CancelRequest
	reports []pgwire.Message
}

// newFakeServer listens; it reports parameters besides client_encoding.
func newFakeServer(t testing.TB, reports ...pgwire.Message) *fakeServer {
	t.Helper()
	l := conntest.Listen(t)
	f := &fakeServer{addr: l.Addr().String(), conns: make(chan *wire, 100), cancels: make(chan *wire, 100), reports: reports}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			f.greet(t, conn)
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
	return f
}

func (f *fakeServer) greet(t testing.TB, conn net.Conn) {
	w := newWire(t, conn)
	packet, err := w.r.Startup()
	if err != nil {
		return
	}
	m, err := pgwire.DecodeStartup(packet)
	if err != nil {
		t.Error(err)
		return
	}
	if _, ok := m.(*pgwire.CancelRequest); ok {
		f.cancels <- w
		return
	}
	hello := bytesOf(&pgwire.Authentication{}, &pgwire.ParameterStatus{Name: "client_encoding", Value: "UTF8"})
	hello = append(hello, bytesOf(f.reports...)...)
	_, err = w.Write(append(hello, bytesOf(&pgwire.BackendKeyData{ProcessID: 7, Key: []byte("key7")}, &pgwire.ReadyForQuery{Status: pgwire.TxIdle})...))
	if err == nil {
		f.conns <- w
	}
}

// startFake runs a proxy before a fake server.
func startFake(t testing.TB, change func(*pgproxy.Config, *pgproxy.PostgresConfig), reports ...pgwire.Message) (*gateway, *fakeServer) {
	t.Helper()
	f := newFakeServer(t, reports...)
	return start(t, pgtest.Shared(t), func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		pc.Endpoints, pc.Password, pc.Limits.MaxSize = upstream.Endpoints(f.addr), "", 1
		pc.Limits.CheckAfter = time.Hour // on a busy machine a check could come between, which no script answers
		if change != nil {
			change(c, pc)
		}
	}), f
}

// answerQuery reads a Query and answers it with nothing.
func (w *wire) answerQuery() string {
	w.t.Helper()
	typ, body := w.read()
	if typ != pgwire.TypeQuery {
		w.t.Fatalf("message of type %q, want a Query", typ)
	}
	w.send(&pgwire.CommandComplete{Tag: "SELECT 0"}, &pgwire.ReadyForQuery{Status: pgwire.TxIdle})
	return strings.TrimRight(body, "\x00")
}

// isEnd reports whether err is the end of a connection, in order or not.
func isEnd(err error) bool {
	var ne net.Error
	return err != nil && (errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || !errors.As(err, &ne) || !ne.Timeout())
}

func query(sql string) *pgwire.Query { return &pgwire.Query{SQL: sql} }

// bounded is a context for a test's last steps.
func bounded(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}
