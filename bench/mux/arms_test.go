package mux

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/hashicorp/yamux"
	"github.com/xtaci/smux"

	"github.com/headpond/headpond/internal/certs"
	"github.com/headpond/headpond/mux"
)

var bg = context.Background()

// port is one end of a logical connection and exchanges whole messages. A received message is in p,
// or where the library stored it, until the next recv.
type port interface {
	send(p []byte) error
	recv(p []byte) ([]byte, error)
}

// arm opens n logical connections over some sockets; stop closes everything.
type arm struct {
	name string
	open func(b *testing.B, n, sockets int) (here, there []port, stop func())
}

var arms = []arm{
	{"raw", openRaw},
	{"headpond", openHeadpond},
	{"resumable", openResumable},
	{"yamux", openYamux},
	{"smux", openSmux},
	{"study", openStudy},
}

// congestion is the congestion control of all sockets: cubic, the kernel's default, even if the
// machine uses another. bbr paces packets by timers, also over loopback, at a rate that it
// estimates each time: the same bytes then cost twice as much in one run as in the next.
// HEADPOND_CONGESTION overrides it.
var congestion = cmp.Or(os.Getenv("HEADPOND_CONGESTION"), "cubic")

// control sets the congestion control before the socket is connected.
func control(_, _ string, c syscall.RawConn) error {
	var err error
	if e := c.Control(func(fd uintptr) {
		err = syscall.SetsockoptString(int(fd), syscall.IPPROTO_TCP, syscall.TCP_CONGESTION, congestion)
	}); e != nil {
		return e
	}
	return err
}

// socketPair is a connection, over TLS 1.3 with HEADPOND_TLS=1.
func socketPair(b *testing.B) (client, server net.Conn) {
	b.Helper()
	lc := net.ListenConfig{Control: control}
	l, err := lc.Listen(bg, "tcp", "127.0.0.1:0")
	must(b, err)
	defer l.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		c, _ := l.Accept()
		accepted <- c
	}()
	d := net.Dialer{Control: control}
	client, err = d.Dial("tcp", l.Addr().String())
	must(b, err)
	if os.Getenv("HEADPOND_TLS") != "" {
		return overTLS(b, client, <-accepted)
	}
	return client, <-accepted
}

// overTLS returns a pair over TLS 1.3 after the handshake.
func overTLS(b *testing.B, client, server net.Conn) (net.Conn, net.Conn) {
	b.Helper()
	server13, client13 := certs.New().Configs()
	server13.MinVersion = tls.VersionTLS13
	c, s := tls.Client(client, client13), tls.Server(server, server13)
	shaken := make(chan error, 1)
	go func() { shaken <- s.Handshake() }()
	must(b, c.Handshake())
	must(b, <-shaken)
	return c, s
}

func must(b *testing.B, err error) {
	if err != nil {
		b.Helper()
		b.Fatal(err)
	}
}

func openHeadpond(b *testing.B, n, sockets int) (here, there []port, stop func()) {
	return openMux(b, n, sockets, mux.Config{})
}

// openResumable is openHeadpond with sessions that keep unacknowledged data.
func openResumable(b *testing.B, n, sockets int) (here, there []port, stop func()) {
	never := func(context.Context) (net.Conn, error) { return nil, net.ErrClosed }
	return openMux(b, n, sockets, mux.Config{Resume: &mux.Resume{Dial: never}})
}

func openMux(b *testing.B, n, sockets int, cfg mux.Config) (here, there []port, stop func()) {
	var conns [][2]net.Conn
	for range sockets {
		cc, sc := socketPair(b)
		conns = append(conns, [2]net.Conn{cc, sc})
	}
	return openOver(b, n, conns, cfg)
}

// openOver opens n channels, distributed over sessions on the connections.
func openOver(b *testing.B, n int, conns [][2]net.Conn, cfg mux.Config) (here, there []port, stop func()) {
	var all [][2]*mux.Session
	for _, pair := range conns {
		c, s := join(b, pair[0], pair[1], cfg)
		all = append(all, [2]*mux.Session{c, s})
	}
	for i := range n {
		pair := all[i%len(all)]
		h, err := pair[0].Open(bg, "bench")
		must(b, err)
		t, err := pair[1].Accept(bg)
		must(b, err)
		here, there = append(here, channel{h}), append(there, channel{t})
	}
	return here, there, func() {
		for _, pair := range all {
			closeBoth(pair[0], pair[1])
		}
	}
}

// join makes a session on a connection.
func join(b *testing.B, cc, sc net.Conn, cfg mux.Config) (c, s *mux.Session) {
	b.Helper()
	made := make(chan *mux.Session)
	go func() {
		s, _ := mux.Server(bg, sc, cfg)
		made <- s
	}()
	c, err := mux.Client(bg, cc, cfg)
	must(b, err)
	return c, <-made
}

func closeBoth(c, s *mux.Session) {
	closed := make(chan struct{})
	go func() {
		c.Close()
		close(closed)
	}()
	s.Close()
	<-closed
}

// channel is a mux.Channel as a port.
type channel struct{ *mux.Channel }

func (c channel) send(p []byte) error { return c.Send(bg, p) }

func (c channel) recv(p []byte) ([]byte, error) {
	n, err := c.ReceiveInto(bg, p)
	return p[:n], err
}

// framed sends length-prefixed messages over a stream of a multiplexer. The multiplexers buffer
// received bytes themselves.
type framed struct {
	rw  io.ReadWriter
	buf []byte
	hdr [8]byte
}

func (f *framed) send(p []byte) error {
	f.buf = append(binary.BigEndian.AppendUint64(f.buf[:0], uint64(len(p))), p...)
	_, err := f.rw.Write(f.buf)
	return err
}

func (f *framed) recv(p []byte) ([]byte, error) {
	if _, err := io.ReadFull(f.rw, f.hdr[:]); err != nil {
		return nil, err
	}
	p = p[:binary.BigEndian.Uint64(f.hdr[:])]
	_, err := io.ReadFull(f.rw, p)
	return p, err
}

func openYamux(b *testing.B, n, sockets int) (here, there []port, stop func()) {
	var cs, ss []*yamux.Session
	for range sockets {
		cc, sc := socketPair(b)
		cfg := yamux.DefaultConfig()
		cfg.LogOutput = io.Discard
		cfg.MaxStreamWindowSize = 16 << 20
		c, err := yamux.Client(cc, cfg)
		must(b, err)
		s, err := yamux.Server(sc, cfg)
		must(b, err)
		cs, ss = append(cs, c), append(ss, s)
	}
	for i := range n {
		h, err := cs[i%sockets].Open()
		must(b, err)
		t, err := ss[i%sockets].Accept()
		must(b, err)
		here, there = append(here, &framed{rw: h}), append(there, &framed{rw: t})
	}
	return here, there, func() {
		for i := range cs {
			cs[i].Close()
			ss[i].Close()
		}
	}
}

func openSmux(b *testing.B, n, sockets int) (here, there []port, stop func()) {
	var cs, ss []*smux.Session
	for range sockets {
		cc, sc := socketPair(b)
		cfg := smux.DefaultConfig()
		cfg.Version = 2
		cfg.MaxReceiveBuffer, cfg.MaxStreamBuffer = 64<<20, 16<<20
		c, err := smux.Client(cc, cfg)
		must(b, err)
		s, err := smux.Server(sc, cfg)
		must(b, err)
		cs, ss = append(cs, c), append(ss, s)
	}
	for i := range n {
		h, err := cs[i%sockets].OpenStream()
		must(b, err)
		t, err := ss[i%sockets].AcceptStream()
		must(b, err)
		here, there = append(here, &framed{rw: h}), append(there, &framed{rw: t})
	}
	return here, there, func() {
		for i := range cs {
			cs[i].Close()
			ss[i].Close()
		}
	}
}
