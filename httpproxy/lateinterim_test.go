package httpproxy_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"net/http"
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

// TestLateInAnInterimResponse: the time of a request ends while its client has taken a part of an interim response. The other part follows, and
// then the answer that tells so. The connection stays open.
func TestLateInAnInterimResponse(t *testing.T) {
	const hints = "HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n"
	ended := make(chan struct{})
	backend := serveRaw(t, func(c net.Conn) {
		defer close(ended)
		_, _ = io.ReadAtLeast(c, make([]byte, 4096), 1)
		_, _ = io.WriteString(c, hints)
		_, _ = io.Copy(io.Discard, c)
	})
	lines := &logLines{t: t}
	p := startProxy(t, httpproxy.Config{
		AccessLog: &httpproxy.AccessLog{To: lines}, Routes: []httpproxy.Route{
			{Upstream: newUpstream(t, backend), Timeout: 300 * time.Millisecond}, {Path: "/next", Respond: httpproxy.Respond{Status: 204}},
		},
	})
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
	r := bufio.NewReader(io.MultiReader(bytes.NewReader(part), client))
	first := make([]byte, len(hints))
	if _, err := io.ReadFull(r, first); err != nil || string(first) != hints {
		t.Errorf("the client gets %q, %v", first, err)
	}
	for _, status := range []int{504, 204} {
		resp, err := http.ReadResponse(r, nil)
		if err != nil || resp.StatusCode != status {
			t.Fatalf("%+v, %v; want %d", resp, err, status)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		if status == 504 {
			wantFields(t, lines.fields(), map[string]any{"status": 504, "reason": "timeout"})
			_, _ = io.WriteString(client, "GET /next HTTP/1.1\r\nHost: x\r\n\r\n")
		}
	}
	lines.take(1)
}

// TestLateBeforeAnInterimResponse: the client has read nothing of an interim response when the time of its request ends. It gets the answer,
// in whole records with TLS.
func TestLateBeforeAnInterimResponse(t *testing.T) {
	for name, secure := range map[string]bool{"plain": false, "TLS": true} {
		t.Run(name, func(t *testing.T) {
			ended := make(chan struct{})
			backend := serveRaw(t, func(c net.Conn) {
				defer close(ended)
				_, _ = io.ReadAtLeast(c, make([]byte, 4096), 1)
				_, _ = io.WriteString(c, "HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n")
				_, _ = io.Copy(io.Discard, c)
			})
			cfg := httpproxy.Config{Routes: []httpproxy.Route{{Upstream: newUpstream(t, backend), Timeout: time.Second}}}
			client, server := net.Pipe()
			conn := client
			if secure {
				settings, trusts := certificates(t)
				cfg.TLS = settings.Clone()
				cfg.TLS.SessionTicketsDisabled = true // the client reads nothing behind the handshake
				conn = tls.Client(client, trusts)
			}
			p := startProxy(t, cfg)
			l := &pipeListener{Listener: conntest.Listen(t), conn: server}
			served := make(chan error, 1)
			go func() { served <- p.Serve(l) }()
			t.Cleanup(func() { _ = client.Close(); _ = l.Close(); <-served })
			_ = client.SetDeadline(time.Now().Add(patience))
			if _, err := io.WriteString(conn, getRoot); err != nil {
				t.Fatal(err)
			}
			waitOrEnd(t, ended)
			r := bufio.NewReader(conn)
			resp, err := http.ReadResponse(r, nil)
			if err == nil && resp.StatusCode == 103 {
				resp, err = http.ReadResponse(r, nil)
			}
			if err != nil || resp.StatusCode != 504 {
				t.Errorf("%+v, %v; want 504", resp, err)
			}
		})
	}
}
