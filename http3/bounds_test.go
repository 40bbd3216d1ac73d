package http3_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	quichttp3 "github.com/quic-go/quic-go/http3"

	"github.com/headpond/headpond/http3"
	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/internal/certs"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/upstream"
)

// begin opens a stream and sends a head, but not its end.
func begin(t *testing.T, conn *quic.Conn, pairs ...string) *quic.Stream {
	t.Helper()
	stream, err := conn.OpenStreamSync(context.Background())
	if err == nil {
		_, err = stream.Write(appendFrame(nil, frameHeaders, fields(t, pairs...)))
	}
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

// TestGivenUpBeforeItsEnd: a client sends a head, and never says whether a body follows. When it wants no answer any more, nothing is left of
// the request.
func TestGivenUpBeforeItsEnd(t *testing.T) {
	w := run(t, strings.ReplaceAll(standard, "http3: true", "http3: true, routes: [{path: /, upstream: app}, {path: /, body: {model: x}, upstream: app}]"))
	conn := w.dialRaw()
	stream := begin(t, conn, ":method", "GET", ":scheme", "https", ":authority", "localhost", ":path", "/")
	conntest.Eventually(t, "the request is there", func() bool { _, requests := w.sessions(); return len(requests) == 1 })
	stream.CancelRead(0x10c)
	conntest.Eventually(t, "the request is over", func() bool { _, requests := w.sessions(); return len(requests) == 0 })
}

// TestResets: as with HTTP/2, a client may not give up 1,000 requests more than it waits for.
func TestResets(t *testing.T) {
	w := run(t, standard)
	conn := w.dialRaw()
	for i := range 1001 {
		if err := conn.Context().Err(); err != nil {
			t.Fatalf("after %d resets: %v", i, context.Cause(conn.Context()))
		}
		stream := begin(t, conn, ":method", "GET", ":scheme", "https", ":authority", "localhost", ":path", "/wait")
		_ = stream.Close()
		<-w.started
		stream.CancelRead(quic.StreamErrorCode(quichttp3.ErrCodeRequestCanceled))
		<-w.gone
	}
	conntest.Eventually(t, "the connection is over", func() bool { return conn.Context().Err() != nil })
	err := context.Cause(conn.Context())
	if e, ok := errors.AsType[*quic.ApplicationError](err); !ok || e.ErrorCode != quic.ApplicationErrorCode(quichttp3.ErrCodeExcessiveLoad) {
		t.Error(err)
	}
	if body, _ := get(t, w.transport(), w.url("/")); !strings.HasPrefix(body, "GET ") {
		t.Errorf("another client: %q", body)
	}
}

// TestMaxStreams: a new connection may have as many requests at a time as the last reload says.
func TestMaxStreams(t *testing.T) {
	limited := func(n string) string {
		return strings.ReplaceAll(standard, "http3: true", "http3: true, max_streams: "+n)
	}
	w := run(t, limited("1"))
	opens := func(conn *quic.Conn, want int) {
		t.Helper()
		for range want {
			begin(t, conn, ":method", "GET", ":scheme", "https", ":authority", "localhost", ":path", "/wait")
		}
		if _, err := conn.OpenStream(); err == nil {
			t.Errorf("a client could begin more than %d requests", want)
		}
	}
	opens(w.dialRaw(), 1)
	if err := w.gw.Reload(w.parse(limited("3"))); err != nil {
		t.Fatal(err)
	}
	opens(w.dialRaw(), 3)
}

// TestIdleConnection: ClientIdleTimeout ends a connection without requests. A stream of which only the first bytes come is none, and a request that
// takes longer is one.
func TestIdleConnection(t *testing.T) {
	for clientIdle := 100 * time.Millisecond; !idleConnection(t, clientIdle); clientIdle *= 5 {
		if clientIdle > 10*time.Second {
			t.Fatalf("a request was not begun within %v", clientIdle)
		}
	}
}

// idleConnection is TestIdleConnection with a time. It returns false if the machine was so busy that a connection had ended before its
// request began.
func idleConnection(t *testing.T, clientIdle time.Duration) bool {
	begun, release := make(chan struct{}, 1), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		begun <- struct{}{}
		<-release
	}))
	defer server.Close()
	app, err := httpproxy.NewUpstream("app", httpproxy.UpstreamOptions{Settings: upstream.Settings{Endpoints: upstream.Endpoints(server.Listener.Addr().String())}})
	if err != nil {
		t.Fatal(err)
	}
	defer app.Close()
	serverTLS, clientTLS := certs.New().Configs()
	p, err := httpproxy.New(httpproxy.Config{TLS: serverTLS, ClientIdleTimeout: clientIdle, Routes: []httpproxy.Route{{Path: "/", Upstream: app}}})
	if err != nil {
		t.Fatal(err)
	}
	l, err := http3.Listen(context.Background(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- p.Serve(l) }()
	clientTLS.NextProtos, clientTLS.ServerName = []string{quichttp3.NextProtoH3}, "localhost"
	head := appendFrame(nil, frameHeaders, fields(t, ":method", "POST", ":scheme", "https", ":authority", "localhost", ":path", "/"))
	open := func(sent int) (*quic.Conn, *quic.Stream) {
		conn, err := quic.DialAddr(context.Background(), l.Addr().String(), clientTLS, &quic.Config{})
		if err != nil {
			t.Fatal(err)
		}
		stream, err := conn.OpenStreamSync(context.Background()) // fails if the connection is over already
		if err == nil && sent > 0 {
			_, _ = stream.Write(head[:sent])
		}
		return conn, stream
	}
	long, request := open(len(head))
	if request != nil {
		_ = request.Close()
	}
	inTime := false
	select {
	case <-begun:
		inTime = true
	case <-long.Context().Done():
	}
	for _, sent := range []int{0, 1, 2, len(head) - 1} {
		conn, _ := open(sent)
		conntest.Eventually(t, "the connection is over", func() bool { return conn.Context().Err() != nil })
	}
	close(release)
	if inTime {
		if answer, err := io.ReadAll(request); err != nil || len(answer) == 0 {
			t.Errorf("%q, %v", answer, err)
		}
	}
	conntest.Eventually(t, "that with the request is over too", func() bool { return long.Context().Err() != nil })
	if err := errors.Join(p.Drain(context.Background()), <-served); err != nil {
		t.Error(err)
	}
	return inTime
}
