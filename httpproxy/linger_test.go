package httpproxy_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/internal/conntest"
)

// patientPipe is an end of a net.Pipe that waits for reads as long as they take, on however slow a machine.
type patientPipe struct{ net.Conn }

func (patientPipe) SetReadDeadline(time.Time) error { return nil }

func (p patientPipe) SetDeadline(at time.Time) error { return p.SetWriteDeadline(at) }

func (patientPipe) CloseWrite() error { return nil }

// TestAnswerDuringAnUpload: a client that is answered while it sends a long body can go on for some MiB. Many clients look for an answer only
// when they have sent, and to those a reset in the middle hides it.
func TestAnswerDuringAnUpload(t *testing.T) {
	const length = 15 << 20
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Upstream: newUpstream(t, "127.0.0.1:1"), MaxBody: 1 << 20}}})
	client, server := net.Pipe()
	l := &pipeListener{Listener: conntest.Listen(t), conn: patientPipe{server}}
	served := make(chan error, 1)
	go func() { served <- p.Serve(l) }()
	t.Cleanup(func() { _ = client.Close(); _ = l.Close(); <-served })
	_ = client.SetDeadline(time.Now().Add(patience))
	_, _ = fmt.Fprintf(client, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", length)
	resp, err := http.ReadResponse(bufio.NewReader(client), nil)
	if err != nil || resp.StatusCode != http.StatusRequestEntityTooLarge {
		t.Fatalf("%+v, %v", resp, err)
	}
	if n, err := io.CopyN(client, flood{}, length); err != nil {
		t.Errorf("the connection is closed after %d bytes more: %v", n, err)
	}
}

// flood is an endless body.
type flood struct{}

func (flood) Read(p []byte) (int, error) { return len(p), nil }
