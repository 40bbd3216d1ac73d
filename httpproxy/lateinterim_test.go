package httpproxy_test

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/internal/conntest"
)

// pipeListener accepts one end of a net.Pipe: what is written to it is sent when the other end reads, and no sooner.
type pipeListener struct {
	net.Listener
	conn net.Conn
}

func (l *pipeListener) Accept() (net.Conn, error) {
	if c := l.conn; c != nil {
		l.conn = nil
		return c, nil
	}
	return l.Listener.Accept()
}

// TestLateInAnInterimResponse: the time of a request ends while its client has taken a part of an interim response. Nothing that would be taken
// for the other part follows.
func TestLateInAnInterimResponse(t *testing.T) {
	ended := make(chan struct{})
	backend := serveRaw(t, func(c net.Conn) {
		defer close(ended)
		_, _ = io.ReadAtLeast(c, make([]byte, 4096), 1)
		_, _ = io.WriteString(c, "HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n")
		_, _ = io.Copy(io.Discard, c)
	})
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Upstream: newUpstream(t, backend), Timeout: 300 * time.Millisecond}}})
	client, server := net.Pipe()
	l := &pipeListener{Listener: conntest.Listen(t), conn: server}
	served := make(chan error, 1)
	go func() { served <- p.Serve(l) }()
	t.Cleanup(func() { _ = client.Close(); _ = l.Close(); <-served })
	_ = client.SetDeadline(time.Now().Add(patience))
	_, _ = io.WriteString(client, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	part := make([]byte, 40)
	if _, err := io.ReadFull(client, part); err != nil {
		t.Fatal(err)
	}
	waitOrEnd(t, ended)
	rest, err := io.ReadAll(client)
	if got := string(part) + string(rest); err != nil || strings.Contains(got[1:], "HTTP/") {
		t.Errorf("the client gets %q, %v", got, err)
	}
}
