package tcpproxy_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/enginetest"
	"github.com/headpond/headpond/tcpproxy"
	"github.com/headpond/headpond/upstream"
)

// says is a server that says its name and a colon, and then what it gets.
func says(name string) func(*net.TCPConn) {
	return func(c *net.TCPConn) {
		_, _ = io.WriteString(c, name+":")
		conntest.Echo(c)
	}
}

// to is an upstream before one server.
func to(t testing.TB, name string, handle func(*net.TCPConn)) *upstream.Upstream[net.Conn] {
	t.Helper()
	backend := conntest.Serve(t, handle)
	up, err := tcpproxy.NewUpstream(name, tcpproxy.UpstreamOptions{
		Settings: upstream.Settings{Endpoints: upstream.Endpoints(backend)}, Logger: quiet, Dial: enginetest.Dial, Go: fiber.Go,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), conntest.Patience)
		defer cancel()
		if err := up.Drain(ctx); err != nil {
			t.Error(err)
		}
	})
	return up
}

// startRoutes runs a proxy with a route for a.test, one for all below b.test, one for ALPN h2, and an upstream for the
// others. They are called a, b, h2 and others, and say so.
func startRoutes(t *testing.T, change func(*tcpproxy.Config)) (p *tcpproxy.Proxy, addr string) {
	t.Helper()
	routes := []tcpproxy.Route{
		{SNI: []string{"a.test"}, Upstream: to(t, "a", says("a"))},
		{SNI: []string{"*.b.test"}, Upstream: to(t, "b", says("b"))},
		{ALPN: []string{"h2"}, Upstream: to(t, "h2", says("h2"))},
	}
	return start(t, []string{conntest.Serve(t, says("others"))}, tcpproxy.UpstreamOptions{}, func(c *tcpproxy.Config) {
		c.Routes = routes
		if change != nil {
			change(c)
		}
	})
}

var errCaught = errors.New("caught")

// catcher keeps what is written first.
type catcher struct {
	net.Conn
	caught []byte
}

func (c *catcher) Write(p []byte) (int, error) {
	c.caught = bytes.Clone(p)
	return 0, errCaught
}

// helloOf returns a ClientHello as crypto/tls sends it, in one record.
func helloOf(t testing.TB, name string, protocols ...string) []byte {
	t.Helper()
	c := &catcher{}
	err := tls.Client(c, &tls.Config{ServerName: name, NextProtos: protocols, InsecureSkipVerify: name == ""}).Handshake()
	if !errors.Is(err, errCaught) {
		t.Fatal(err)
	}
	return c.caught
}

// record returns a TLS record with handshake messages.
func record(content []byte) []byte {
	return append(binary.BigEndian.AppendUint16([]byte{22, 3, 1}, uint16(len(content))), content...)
}

// records splits the only record of a ClientHello into many with n bytes each.
func records(hello []byte, n int) (out []byte) {
	for content := hello[5:]; len(content) > 0; {
		k := min(n, len(content))
		out = append(out, record(content[:k])...)
		content = content[k:]
	}
	return out
}

// withExtensions adds extensions before the others of a ClientHello in one record. They have their types and lengths.
func withExtensions(hello, extensions []byte) []byte {
	body := bytes.Clone(hello[9:])
	at := 2 + 32
	at += 1 + int(body[at])                               // session ID
	at += 2 + int(binary.BigEndian.Uint16(body[at:at+2])) // cipher suites
	at += 1 + int(body[at])                               // compression methods
	size := binary.BigEndian.Uint16(body[at : at+2])
	binary.BigEndian.PutUint16(body[at:], size+uint16(len(extensions)))
	body = append(body[:at+2:at+2], append(bytes.Clone(extensions), body[at+2:]...)...)
	message := append([]byte{1, 0, 0, 0}, body...)
	binary.BigEndian.PutUint16(message[2:], uint16(len(body)))
	if len(message) < 1<<14 {
		return record(message)
	}
	return records(append(make([]byte, 5), message...), 1<<14)
}

// extension returns one with a type and content.
func extension(kind uint16, content ...byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, kind)
	return append(binary.BigEndian.AppendUint16(b, uint16(len(content))), content...)
}

// deadOptions are those of an upstream at which nobody listens.
func deadOptions(t testing.TB) tcpproxy.UpstreamOptions {
	return tcpproxy.UpstreamOptions{
		Settings: upstream.Settings{Endpoints: upstream.Endpoints(conntest.FreeAddress(t))}, Logger: quiet, Dial: enginetest.Dial, Go: fiber.Go,
	}
}
