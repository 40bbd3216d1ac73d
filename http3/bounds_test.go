package http3_test

import (
	"context"
	"strings"
	"testing"

	"github.com/quic-go/quic-go"

	"github.com/headpond/headpond/internal/conntest"
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
