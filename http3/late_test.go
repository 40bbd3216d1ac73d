package http3_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/quic-go/quic-go"
)

// TestLateInAnInterimAnswer: the time of a request ends while its client has room for a part of an interim answer only. The stream is reset
// then: what followed would be taken for the other part.
func TestLateInAnInterimAnswer(t *testing.T) {
	w := run(t, strings.ReplaceAll(standard, "http3: true", "http3: true, routes: [{path: /hints, upstream: app, request_timeout: 300ms}, {path: /, upstream: app}]"))
	conn, err := quic.DialAddr(context.Background(), w.gw.Addr("web"), w.tls(), &quic.Config{InitialStreamReceiveWindow: 10, MaxStreamReceiveWindow: 10})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.CloseWithError(0, "") })
	stream := begin(t, conn, ":method", "GET", ":scheme", "https", ":authority", "localhost", ":path", "/hints/wait")
	_ = stream.Close()
	<-w.gone
	answer, err := io.ReadAll(stream)
	if e, reset := errors.AsType[*quic.StreamError](err); !reset || !e.Remote {
		t.Errorf("%q, %v; want a reset", answer, err)
	}
	stream = begin(t, conn, ":method", "GET", ":scheme", "https", ":authority", "localhost", ":path", "/")
	_ = stream.Close()
	if answer, err := io.ReadAll(stream); err != nil || !strings.Contains(string(answer), "GET HTTP/1.1") {
		t.Errorf("after it: %q, %v", answer, err)
	}
}
