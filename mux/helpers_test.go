package mux_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"net"
	"path/filepath"
	"testing"

	"github.com/headpond/headpond/internal/certs"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/enginetest"
	"github.com/headpond/headpond/internal/leaktest"
	"github.com/headpond/headpond/mux"
)

func TestMain(m *testing.M) { leaktest.Main(enginetest.Runner(m)) }

var bg = context.Background()

// transports are the kinds of connection a session runs on.
var transports = map[string]func(t testing.TB) (client, server net.Conn){
	"tcp": tcpPair,
	"unix": func(t testing.TB) (client, server net.Conn) {
		return conntest.Pair(t, "unix", filepath.Join(t.TempDir(), "s"))
	},
	"pipe":  func(testing.TB) (client, server net.Conn) { return net.Pipe() },
	"tls":   tlsPair,
	"fiber": fiberPair,
}

// fiberPair is a pair of connected connections of an engine (HEADPOND_ENGINE).
func fiberPair(t testing.TB) (client, server net.Conn) {
	t.Helper()
	inner := conntest.Listen(t)
	l, err := enginetest.Listener(inner)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if client, err = enginetest.Dial(bg, l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if server, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	return client, server
}

func tcpPair(t testing.TB) (client, server net.Conn) { return conntest.Pair(t, "tcp", "127.0.0.1:0") }

func tlsPair(t testing.TB) (client, server net.Conn) {
	s, c := certs.New().Configs()
	client, server = tcpPair(t)
	return tls.Client(client, c), tls.Server(server, s)
}

// sessions joins two over the transport and closes them when the test ends.
func sessions(t testing.TB, transport string, client, server mux.Config) (c, s *mux.Session) {
	t.Helper()
	cc, sc := transports[transport](t)
	return join(t, cc, sc, client, server)
}

func join(t testing.TB, cc, sc net.Conn, client, server mux.Config) (c, s *mux.Session) {
	t.Helper()
	type result struct {
		s   *mux.Session
		err error
	}
	done := make(chan result, 1)
	go func() {
		s, err := mux.Server(bg, sc, server)
		done <- result{s, err}
	}()
	c, err := mux.Client(bg, cc, client)
	r := <-done
	if err != nil || r.err != nil {
		t.Fatalf("client: %v; server: %v", err, r.err)
	}
	t.Cleanup(func() {
		closed := make(chan struct{})
		go func() {
			c.Close()
			close(closed)
		}()
		r.s.Close()
		<-closed
	})
	return c, r.s
}

// channels opens one channel for messages and returns both ends.
func channels(t testing.TB, c, s *mux.Session, opts ...mux.Option) (here, there *mux.Channel) {
	t.Helper()
	here, err := c.Open(bg, t.Name(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	if there, err = s.Accept(bg); err != nil {
		t.Fatal(err)
	}
	return here, there
}

// pattern is n bytes that differ from place to place.
func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8 + i>>16)
	}
	return b
}

// expect receives one message and compares it.
func expect(t testing.TB, ch *mux.Channel, want []byte) {
	t.Helper()
	m, err := ch.Receive(bg)
	if err != nil {
		t.Fatalf("Receive: %v", err)
	}
	defer m.Release()
	if !bytes.Equal(m.Bytes(), want) {
		t.Fatalf("received %d bytes, not the %d sent", m.Len(), len(want))
	}
}
