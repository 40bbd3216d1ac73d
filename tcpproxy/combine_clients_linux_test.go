package tcpproxy_test

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	proxyproto "github.com/pires/go-proxyproto"
	"golang.org/x/sys/unix"

	"github.com/headpond/headpond/internal/conntest"
)

// combineTag is the length of a tag, with which a client's stream begins.
const combineTag = 16

// combined is a session, with all that its client and its server do.
type combined struct {
	r   *combineRound
	l   *combineListener
	tag string

	tls      bool
	sni      string
	alpn     []string
	header   int            // version of the client's PROXY header, 0 = none
	from     netip.AddrPort // in that header
	vanishes string         // the client ends like this before its stream has begun: "", reset, fin
	first    []byte         // what it sends until then
	oneWrite bool           // header and stream begin in one write
	up, down combineScript

	socket   atomic.Value // string: address of the client's socket
	upstream *combineUpstream
	killed   atomic.Bool
	client   combineView
	server   combineView
	served   chan struct{} // closed when the server's script is over
	lines    []string      // of the log
}

// combineScript is what one end does.
type combineScript struct {
	size  int    // of its stream
	piece int    // the largest piece that it writes
	pause bool   // it pauses now and then
	waits bool   // it sends only after it got the other end's FIN
	end   string // fin, reset, close, stay
	hard  bool   // with TLS: the end of the stream is only TCP's, or only TLS's
	reads string // all, slow, none
}

// combineView is what one end has seen and done.
type combineView struct {
	by     atomic.Pointer[combineServer]
	got    int    // bytes from the other end
	wrong  string // a difference from what the other end sends
	end    string // of what the other end sends: eof, or an error
	sent   int    // bytes that the socket took
	werr   string // why it did not take all
	broke  bool   // because of a reset
	did    atomic.Pointer[string]
	rawIn  atomic.Int64
	rawOut atomic.Int64
}

func newCombined(r *combineRound, rnd *rand.Rand, client, turn int) *combined {
	c := &combined{r: r, l: r.listeners[rnd.IntN(len(r.listeners))], served: make(chan struct{})}
	c.tag = fmt.Sprintf("t%d.%d.%d.", r.seed, client, turn)
	c.tag += strings.Repeat("x", combineTag-len(c.tag))
	c.l.dress(c, rnd)
	c.up, c.down = newCombineScript(rnd), newCombineScript(rnd)
	c.up.size = max(c.up.size, combineTag)
	if c.up.waits {
		c.down.waits = false
		c.up.waits = false
	}
	for _, s := range []struct{ a, b *combineScript }{{&c.up, &c.down}, {&c.down, &c.up}} {
		if s.a.reads == "none" && (s.a.end == "fin" || s.a.waits) {
			s.a.reads = "all"
		}
		if s.a.waits && s.b.end != "fin" {
			s.a.waits = false
		}
	}
	return c
}

func newCombineScript(rnd *rand.Rand) combineScript {
	s := combineScript{piece: 1 << rnd.IntN(17), pause: rnd.IntN(5) == 0, waits: rnd.IntN(4) == 0, hard: rnd.IntN(3) == 0}
	switch rnd.IntN(8) {
	case 0:
	case 1:
		s.size, s.piece = 1<<20+rnd.IntN(7<<20), 64<<10
	default:
		s.size = rnd.IntN(1 << rnd.IntN(18))
	}
	s.piece = max(s.piece, s.size/200)
	s.end = [...]string{"fin", "fin", "fin", "fin", "fin", "reset", "close", "stay"}[rnd.IntN(8)]
	s.reads = [...]string{"all", "all", "all", "slow", "none"}[rnd.IntN(5)]
	return s
}

// source is the client's address as the proxy knows it.
func (c *combined) source() string {
	if c.header > 0 {
		return c.from.String()
	}
	s, _ := c.socket.Load().(string)
	return s
}

// lasts reports whether neither end ends the session, and no time-out that it meets.
func (c *combined) lasts() bool {
	if c.vanishes != "" {
		return false
	}
	return (c.up.end == "stay" || c.down.end == "stay" || c.up.reads == "none" || c.down.reads == "none") && !c.l.always
}

// combineLocal returns an address of this machine that no other client has. The others of a listener may share its IP address.
func combineLocal(shared bool) *net.TCPAddr {
	const ports = 16000 // below those that the system gives
	n := combineNumber.Add(1)
	ip := net.IPv4(127, byte(16+n>>16&63), byte(n>>8), byte(n)) //nolint:gosec // cut off
	if shared {
		ip = net.IPv4(127, 9, 0, 1)
	}
	return &net.TCPAddr{IP: ip, Port: 2000 + int(n%ports)}
}

// run is the client's side of the session.
func (c *combined) run() {
	conn, err := c.dial()
	if err != nil {
		if drained := errors.Is(err, syscall.ECONNREFUSED) && c.lasts() && c.l.draining.Load(); !drained && !wasReset(err) {
			c.r.failed(c, "connect: %v", err)
		}
		return
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(conntest.Patience))
	raw := &combineCounted{TCPConn: conn, view: &c.client}
	if c.header > 0 {
		h := proxyproto.HeaderProxyFromAddrs(byte(c.header), net.TCPAddrFromAddrPort(c.from), conn.RemoteAddr())
		b, err := h.Format()
		if err != nil {
			c.r.t.Error(err)
			return
		}
		if c.oneWrite {
			raw.ahead = b
		} else if _, err := conn.Write(b); err != nil {
			c.client.werr = err.Error()
		}
	}
	if c.vanishes != "" {
		c.vanish(raw)
		return
	}
	e := combineEnd{raw: conn, stream: raw}
	if c.tls {
		cfg := &tls.Config{RootCAs: c.r.certs.pool, ServerName: c.sni, NextProtos: c.alpn, InsecureSkipVerify: c.sni == ""} //nolint:gosec // the tests' own
		e.tls = tls.Client(raw, cfg)
		if err := e.tls.Handshake(); err != nil {
			c.client.end = err.Error()
			return
		}
		e.stream = e.tls
	}
	c.client.play(c, e, &c.up, &c.down, false)
	if c.server.by.Load() != nil { // it may read slowly
		<-c.served
	}
}

// dial connects from an address that no other client has.
func (c *combined) dial() (conn *net.TCPConn, err error) {
	for range 100 {
		local := combineLocal(c.l.shared && c.header == 0)
		c.socket.Store(local.String())
		c.r.sources.Store(local.String(), c)
		c.r.sources.Store(c.source(), c)
		if conn, err = net.DialTCP("tcp", local, c.l.address); !errors.Is(err, syscall.EADDRINUSE) && !errors.Is(err, syscall.EADDRNOTAVAIL) {
			break
		}
	}
	return conn, err
}

// vanish sends a part of a beginning, and ends.
func (c *combined) vanish(raw *combineCounted) {
	_, _ = raw.Write(c.first)
	if c.vanishes == "reset" {
		c.client.doing("reset")
		_ = raw.SetLinger(0)
		return
	}
	c.client.doing("fin")
	_ = raw.CloseWrite()
	b, err := io.ReadAll(raw)
	c.client.got, c.client.end = len(b), combineEndOf(err)
}

// combineCounted counts what moves on a client's connection, and sends its header with the first bytes.
type combineCounted struct {
	*net.TCPConn
	view  *combineView
	ahead []byte
}

func (c *combineCounted) Read(p []byte) (int, error) {
	n, err := c.TCPConn.Read(p)
	c.view.rawIn.Add(int64(n))
	return n, err
}

func (c *combineCounted) Write(p []byte) (int, error) {
	ahead := len(c.ahead)
	n, err := c.TCPConn.Write(append(c.ahead, p...))
	c.ahead = nil
	n = max(n-ahead, 0)
	c.view.rawOut.Add(int64(n))
	return n, err
}

// combineEnd is one end of a session.
type combineEnd struct {
	raw    *net.TCPConn
	stream net.Conn
	tls    *tls.Conn // nil = none
	broke  bool      // a write was told of a reset already
}

// String describes the view for a failure.
func (v *combineView) String() string {
	return fmt.Sprintf("{got=%d wrong=%q end=%q sent=%d werr=%q did=%q rawIn=%d rawOut=%d}", v.got, v.wrong, v.end, v.sent, v.werr, v.done(), v.rawIn.Load(), v.rawOut.Load())
}

func (v *combineView) doing(what string) { v.did.CompareAndSwap(nil, &what) }

// done is what an end has done to end its stream.
func (v *combineView) done() string {
	if p := v.did.Load(); p != nil {
		return *p
	}
	return ""
}

func combineEndOf(err error) string {
	switch {
	case err == nil || errors.Is(err, io.EOF):
		return "eof"
	case errors.Is(err, io.ErrUnexpectedEOF):
		return "cut"
	case wasReset(err):
		return "reset"
	case errors.Is(err, net.ErrClosed):
		return "closed here"
	}
	return err.Error()
}

// play does what a script says, and returns when the session is over for this end. The other end has the script peer.
func (v *combineView) play(c *combined, e combineEnd, script, peer *combineScript, banner bool) {
	var writer sync.WaitGroup
	ended := make(chan struct{}) // what the other end sends has
	writer.Go(func() { v.write(c, e, script, ended, banner) })
	if script.reads != "none" {
		v.read(c, e, script, peer)
	}
	close(ended)
	writer.Wait()
	if v.broke && (v.end == "eof" || v.end == "cut") {
		v.end = "reset" // which the socket has told the writer, and tells only once
	}
	if v.done() == "" && (v.end == "eof" || v.end == "") { // it stays
		v.wait(e.raw)
	}
}

// wait waits until the connection is reset.
func (v *combineView) wait(c *net.TCPConn) {
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	err = raw.Read(func(fd uintptr) bool {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) //nolint:gosec // a descriptor
		const closed = 7
		return err != nil || info.State == closed
	})
	switch {
	case err != nil:
		v.end = "waits: " + err.Error()
	case v.end == "":
		v.end = "reset"
	}
}

func (v *combineView) write(c *combined, e combineEnd, script *combineScript, ended <-chan struct{}, banner bool) {
	data := c.stream(script == &c.up)
	if script.waits {
		<-ended
	}
	for v.sent < script.size {
		at := v.sent % len(data)
		n, err := e.stream.Write(data[at:min(len(data), at+script.piece, at+script.size-v.sent)])
		if v.sent += n; err != nil {
			v.werr, v.broke = err.Error(), v.broke || wasReset(err)
			return
		}
		if script.pause && v.sent/script.piece%32 == 0 {
			<-time.After(2 * time.Millisecond)
		}
	}
	if script.end == "stay" {
		return
	}
	v.doing(script.end)
	switch script.end {
	case "fin":
		if e.tls != nil && !script.hard {
			v.broke = wasReset(e.tls.CloseWrite()) || v.broke
		}
		if e.tls == nil || script.hard || script.piece%2 == 0 {
			v.broke = wasReset(e.raw.CloseWrite()) || v.broke
		}
	case "reset":
		_ = e.raw.SetLinger(0)
		_ = e.raw.Close()
	case "close":
		_ = e.raw.Close()
	}
}

// read reads all that the other end sends, and compares it.
func (v *combineView) read(c *combined, e combineEnd, script, peer *combineScript) {
	toClient := peer == &c.down
	want, skip := c.stream(!toClient), combineTag
	banner := ""
	if toClient {
		skip = 0
		if c.upstream != nil && c.upstream.banner {
			banner = combineBanner
		}
	}
	buf := make([]byte, 32<<10)
	for at := skip; ; {
		n, err := e.stream.Read(buf)
		got := buf[:n]
		if k := min(len(banner), n); k > 0 {
			if string(got[:k]) != banner[:k] && v.wrong == "" {
				v.wrong = fmt.Sprintf("banner %q", got[:k])
			}
			got, banner = got[k:], banner[k:]
		}
		for len(got) > 0 {
			k := min(len(got), len(want)-at%len(want))
			if part := want[at%len(want):]; !bytes.Equal(got[:k], part[:k]) && v.wrong == "" {
				v.wrong = fmt.Sprintf("from byte %d on", at)
			}
			at += k
			got = got[k:]
		}
		v.got = at
		if err != nil {
			v.end = combineEndOf(err)
			return
		}
		if script.reads == "slow" {
			<-time.After(time.Millisecond)
			buf = buf[:8<<10]
		}
	}
}

// stream is what an end sends, again and again.
func (c *combined) stream(byClient bool) []byte {
	const length = 65521
	seed, size := uint64(2), c.down.size
	if byClient {
		seed, size = 1, c.up.size
	}
	var h uint64
	for _, b := range []byte(c.tag) {
		h = h*1099511628211 + uint64(b)
	}
	rnd := rand.New(rand.NewPCG(h, seed)) //nolint:gosec // for tests
	b := make([]byte, max(1, min(size, length)))
	for i := range b {
		b[i] = byte(rnd.Uint32())
	}
	if byClient {
		copy(b, c.tag)
	}
	return b
}
