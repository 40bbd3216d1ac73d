package httpproxy

import (
	"context"
	"crypto/x509"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2/hpack"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/httpwire"
	"github.com/headpond/headpond/pool/httppool"
	"github.com/headpond/headpond/traffic"
)

// HTTP1Head makes the head of a request of these fields of HTTP/2, as text; false = they are refused.
func HTTP1Head(limit int, ends bool, fields ...hpack.HeaderField) ([]byte, bool) {
	b := &h2Head{limit: limit}
	b.reset(false)
	for i := range fields {
		var f hpackField
		f.setName(fields[i].Name)
		f.setValue(fields[i].Value)
		b.field(&f)
	}
	var r httpwire.Request
	var text []byte
	if b.bad || b.large || !b.request(&r, &text, ends) {
		return nil, false
	}
	return appendText(nil, &r), r.Complete() == nil
}

// CodedField codes a field as responses of HTTP/2 have it.
func CodedField(status int, name, value string) []byte {
	return appendCoded(appendStatus([]byte{emptyTable}, status), &httpwire.Field{Name: []byte(name), Value: []byte(value)})
}

// CodedLine codes a field as the proxy writes its own.
func CodedLine(name, value string) []byte {
	w := headWriter{coded: true}
	w.line(name, value)
	return w.finish()
}

// ServerBlock decodes a block of fields of a server in two frames, of which the first is empty, and begins the next with other fields.
func ServerBlock(fields, others []byte) error {
	c := &h2Server{next: 3}
	c.h2Reader.begin(c, true, maxResponseHead)
	for _, step := range []func() error{
		func() error { return c.headers(0, 1, nil) },
		func() error { return c.fragment(fields, true) },
		func() error { return c.headers(0, 1, others) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// GRPCTimeout reads a value of the field grpc-timeout.
func GRPCTimeout(value string) time.Duration { return grpcTimeout(value) }

// QueryHas reports whether a query meets a route's condition.
func QueryHas(query, name, value string) bool {
	c := conditionsOf([]FieldMatch{{Name: name, Value: value}})[0]
	return c.inQuery([]byte(query))
}

// CookiesHave reports whether a Cookie field meets a route's condition.
func CookiesHave(cookies string, f FieldMatch) bool {
	c := conditionsOf([]FieldMatch{f})[0]
	return c.inCookies(&httpwire.Request{Fields: []httpwire.Field{{Name: []byte("Cookie"), Value: []byte(cookies)}}})
}

// OwnLocation returns what becomes of a server's Location on a route with Locations.Own: the client has asked for host, and
// the endpoint is the server's.
func OwnLocation(r Route, host, endpoint, location string) string {
	r.Locations.Own = true
	tg := &target{route: r}
	tg.change(r)
	s := &session{}
	s.ex.target, s.ex.result.Endpoint, s.req.Host = tg, endpoint, []byte(host)
	w := headWriter{}
	tg.reverse.location(&w, s, []byte(location))
	return string(w.dst)
}

// HeldAfterReset reports whether a reset stream still holds the connection that it was about to use.
func HeldAfterReset(c *httppool.Conn) bool {
	st := &h2Stream{clientSide: clientSide{h2Sides: h2Sides{mu: new(sync.Mutex)}, err: errStreamReset}}
	return st.uses(c) || st.server != nil
}

// FlushAmongOthers sends what a stream has written, n times, while others have frames to send at each write. It returns
// when the stream may continue.
func FlushAmongOthers(n int, wrote func(i int), returned func()) error {
	h := &http2{writeTimeout: time.Hour, out: []byte("x")}
	writes := 0
	h.conn = &busyConn{write: func() {
		if writes++; writes < n {
			h.mu.Lock()
			h.out = append(h.outgoing(), 'x')
			h.mu.Unlock()
		}
		wrote(writes)
	}}
	err := h.flush(&h2Stream{h: h})
	returned()
	h.fibers.Wait()
	return err
}

type busyConn struct {
	fiber.Stream
	write func()
}

func (c *busyConn) SetWriteDeadline(time.Time) error { return nil }

func (c *busyConn) Write(p []byte) (int, error) {
	c.write()
	return len(p), nil
}

// Budget is a budget for retries with one route.
type Budget struct {
	b    *budget
	cell *traffic.Cell
}

// NewBudget returns one without requests.
func NewBudget(now time.Time) *Budget {
	b := &Budget{b: newBudget(now), cell: traffic.NewCell(routeTraffic)}
	b.b.watch(b.cell)
	return b
}

// Requests counts n requests that have ended.
func (b *Budget) Requests(n int) { b.cell.Shard(0).Add(2, uint64(n)) }

// Take is a retry.
func (b *Budget) Take(now time.Time, percent int) bool { return b.b.take(now, percent) }

// HpackDecoder decodes blocks of one connection, each into the memory of the last.
type HpackDecoder struct {
	d      hpackDecoder
	text   []byte
	fields []hpack.HeaderField
}

// NewHpackDecoder returns one with the table of a new connection.
func NewHpackDecoder() *HpackDecoder {
	h := new(HpackDecoder)
	h.d = hpackDecoder{most: tableSize, emit: func(f *hpackField) {
		h.fields = append(h.fields, hpack.HeaderField{Name: strings.Clone(f.name), Value: strings.Clone(f.value)})
	}}
	return h
}

// Decode returns the fields of a block.
func (h *HpackDecoder) Decode(block []byte) ([]hpack.HeaderField, error) {
	h.fields, h.text = nil, h.text[:0]
	err := h.d.decode(block, &h.text)
	return h.fields, err
}

// HashedPasswords is how many passwords have been checked by bcrypt.
func HashedPasswords(u *Users) int64 { return u.hashed.Load() }

// HashQueue is a queue of passwords to check; nothing is checked.
type HashQueue struct {
	*hashQueue
	Began   []string
	flights map[string]*flight
}

// NewHashQueue returns one with places for checks.
func NewHashQueue(places int) *HashQueue {
	q := &HashQueue{flights: map[string]*flight{}}
	q.hashQueue = newHashQueue(places, func(f *flight) { q.Began = append(q.Began, string(f.password)) })
	return q
}

// Enter is a request of a source.
func (q *HashQueue) Enter(source, name string) bool {
	f := &flight{source: netip.MustParseAddr(source), password: []byte(name)}
	q.flights[name] = f
	return q.enter(f)
}

// Leave is a request that is given up.
func (q *HashQueue) Leave(_, name string) bool { return q.leave(q.flights[name]) }

// Next is the end of a check.
func (q *HashQueue) Next() { q.next() }

// ComparedWithoutTurn compares a password whose turn does not come before a context ends with cause.
func ComparedWithoutTurn(u *Users, cause error) (verdict string, left int) {
	u.queue = newHashQueue(0, nil)
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(cause)
	v := u.compare(ctx, netip.Addr{}, u.file.load(), credentials{name: []byte("bob")})
	return map[verdictNumber]string{givenUp: "given up", clientLeft: "client left"}[v], len(u.flights) + u.queue.waiting
}

// FillQueue fills the queue of passwords to check.
func FillQueue(u *Users) {
	u.queue = newHashQueue(0, nil)
	u.queue.waiting = maxHashing
}

type verdictNumber = verdict

// ComparedWith is the hash that an unknown name is compared with.
func ComparedWith(u *Users, name string) string {
	return string(u.file.load().another(u.identify([]byte(name), nil, nil)))
}

// LimitFiles lists where the limits of the process's control groups are.
func LimitFiles(groups string) []string { return limitFiles(groups) }

// DescribeCert is the value of X-Forwarded-Client-Cert.
func DescribeCert(c *x509.Certificate) string { return describeCert(c) }

// CompressorsInUse is how many answers are being compressed.
func CompressorsInUse() int64 { return compressorsInUse.Load() }

// AppendEscaped appends a value as access logs have it.
func AppendEscaped(dst []byte, value string, json bool) []byte {
	return appendEscaped(dst, value, json)
}

// StatedTime calls parseTimeout.
func StatedTime(name, value string) time.Duration { return parseTimeout(name, value) }

// RewriteFields returns a function that writes fields of an answer as a route does.
func RewriteFields(r Route, host, endpoint string, fields ...string) func() {
	tg := &target{route: r}
	tg.change(r)
	s := &session{}
	s.ex.target, s.ex.result.Endpoint, s.req.Host = tg, endpoint, []byte(host)
	w := headWriter{dst: make([]byte, 0, 4096)}
	all := []httpwire.Field{}
	for i := 0; i+1 < len(fields); i += 2 {
		all = append(all, httpwire.Field{Name: []byte(fields[i]), Value: []byte(fields[i+1])})
	}
	return func() {
		w.dst = w.dst[:0]
		for i := range all {
			tg.reverse.rewrites(&w, s, &all[i])
		}
	}
}

// CountSessions returns how many sessions were made during f, which are those that had to be because none was free for reuse. No
// other proxy may run.
func CountSessions(f func()) int {
	sessions = sync.Pool{New: sessions.New}
	var made atomic.Int64
	defer func(before func() any) { sessions.New = before }(sessions.New)
	sessions.New = func() any {
		made.Add(1)
		return new(session)
	}
	f()
	return int(made.Load())
}

// Foreseen returns what uploads may soon hold.
func (p *Proxy) Foreseen() int64 { return p.ledger.foreseen.Load() }

// ForeseenBytes is foreseenBytes.
const ForeseenBytes = foreseenBytes

// ForeseeFor sets foreseenFor until the returned function is called.
func ForeseeFor(d time.Duration) (restore func()) {
	was := foreseenFor
	foreseenFor = d
	return func() { foreseenFor = was }
}
