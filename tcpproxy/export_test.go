package tcpproxy

import (
	"io"
	"net"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/retrybudget"
	"github.com/headpond/headpond/listener"
)

// Spliced returns the number of bytes moved by splice so far.
func (p *Proxy) Spliced() uint64 { return p.spliced.Load() }

// SetLookInterval replaces how often waiting sessions look for their clients,
// until restore.
func SetLookInterval(d time.Duration) (restore func()) {
	was := checkInterval
	checkInterval = d
	return func() { checkInterval = was }
}

// SetRemainderTimeout replaces remainderTimeout until restore.
func SetRemainderTimeout(d time.Duration) (restore func()) {
	was := remainderTimeout
	remainderTimeout = d
	return func() { remainderTimeout = was }
}

// Watch checks a session at intervals.
type Watch struct{ w *watch }

// NewWatch starts one.
func NewWatch(first time.Duration, check func() time.Duration) Watch {
	w := Watch{new(watch)}
	w.w.watch(first, checkerFunc(check))
	return w
}

type checkerFunc func() time.Duration

func (f checkerFunc) check() time.Duration { return f() }

// Stop ends it.
func (w Watch) Stop() { w.w.stop() }

// Stall finds sessions without an answer.
type Stall struct{ s *stall }

// NewStall returns one with a limit.
func NewStall(limit time.Duration) Stall { return Stall{&stall{limit: limit}} }

// Moved and Look are the stall's.
func (s Stall) Moved(byClient bool)                 { s.s.moving(byClient) }
func (s Stall) Look(out uint64, now time.Time) bool { return s.s.check(out, now) }

// Choose returns the index of the route for what a ClientHello says, -1 if there is none.
func Choose(routes []Route, name string, protocols []string) int {
	for i := range routes {
		routes[i].ConnectTimeout = time.Duration(i + 1)
	}
	t := Config{Routes: routes}.prepare().choose(name, protocols)
	if t == nil {
		return -1
	}
	return int(t.connect) - 1
}

// ErrNoHello is the error of ReadHello when there is something else.
var ErrNoHello = errNoHello

// HelloRead is what ReadHello has found.
type HelloRead struct {
	Read      []byte
	Found     bool
	Name      string
	Protocols []string
	// Extensions are the types of its extensions.
	Extensions []uint16
	Problem    error
}

// ReadHello reads a ClientHello in pieces of n bytes at most.
func ReadHello(from io.Reader, n int) HelloRead {
	r := &helloReader{Conn: pieces{from: from, n: n}}
	hello, err := r.hello()
	found := HelloRead{Read: r.read, Found: hello != nil, Problem: err}
	if hello != nil {
		found.Name, found.Protocols, found.Extensions = hello.ServerName, hello.SupportedProtos, hello.Extensions
	}
	return found
}

// Repeatable reports whether b may be sent to another server.
func Repeatable(b []byte) bool { return repeatable(b) }

// pieces is a connection that is only read, n bytes at a time.
type pieces struct {
	net.Conn
	from io.Reader
	n    int
}

func (p pieces) Read(b []byte) (int, error) { return p.from.Read(b[:min(len(b), p.n)]) }

// Traffic is what has to move within a time-out.
type Traffic = traffic

// The kinds of Traffic.
const (
	AnyByte    = anyByte
	FromClient = fromClient
	FromServer = fromServer
	AfterFIN   = afterFIN
)

// Progress is a time-out of a relay without connections.
type Progress struct {
	p progress
	r relay
}

// NewProgress returns one. client and server are asked what they have acknowledged.
func NewProgress(what Traffic, limit time.Duration, client, server fiber.Stream) *Progress {
	return &Progress{progress{what: what, limit: limit}, relay{
		session: &session{client: &listener.Conn{}}, client: side{"client", client}, server: side{"upstream", server},
	}}
}

// Move is what happens to the relay: bytes in either direction, and the ends of the streams.
func (p *Progress) Move(in, out int64, clientEnded, serverEnded bool) {
	p.r.session.client.Count(in, out)
	if clientEnded {
		p.r.ends.Or(clientEnd)
	}
	if serverEnded {
		p.r.ends.Or(serverEnd)
	}
}

// Over reports whether the time is over.
func (p *Progress) Over(now time.Time) bool { return p.p.check(&p.r, now) <= 0 }

// Budget bounds how many sessions move.
type Budget struct{ p Proxy }

// NewBudget returns one whose first window begins now.
func NewBudget(now time.Time) *Budget {
	return &Budget{Proxy{moves: retrybudget.New(movesWindow, now)}}
}

// Begin counts sessions.
func (b *Budget) Begin(sessions uint64) { b.p.begun.Add(sessions) }

// Take returns how many of n sessions may move.
func (b *Budget) Take(now time.Time, n int) (taken int) {
	for range n {
		if b.p.mayMove(now) {
			taken++
		}
	}
	return taken
}

// SpendBudget leaves none of the proxy's budget.
func (p *Proxy) SpendBudget() {
	for p.mayMove(time.Now()) {
	}
}

// StopBudgetClock begins a window of the proxy's budget that lasts for the test, and takes one of its moves. No session may have begun.
func (p *Proxy) StopBudgetClock() { p.mayMove(time.Now().Add(24 * time.Hour)) }

// AnsweredAfterFailedWrite returns the outcome of a relay whose write to the server fails before the server's answer arrives, and which fails
// again afterwards.
func AnsweredAfterFailedWrite(written error, reason string, later error) (string, error) {
	client, server := net.Pipe()
	defer client.Close()
	defer server.Close()
	r := &relay{client: side{"client", fiber.StreamOf(client)}, server: side{"upstream", fiber.StreamOf(server)}}
	r.noteWrite(&r.server, written)
	r.stay()
	r.fail(reason, later)
	return r.outcome()
}
