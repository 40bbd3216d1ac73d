package http3_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/quic-go/quic-go"

	"github.com/headpond/headpond/listener"
)

// refusedAtOnce reports whether an error is that of a client that was refused before its handshake.
func refusedAtOnce(err error) bool {
	e, ok := errors.AsType[*quic.TransportError](err)
	return ok && e.Remote && e.ErrorCode == quic.ConnectionRefused
}

// counted returns how many clients the listener has refused, for all reasons and for one.
func (w *world) counted(reason string) (all, one uint64) {
	s := w.gw.Snapshot().Listeners[0]
	return s.Rejected, s.Errors[reason]
}

// TestSourceRefused: a client whose address may not connect, connects too often or has too many connections is refused before its handshake,
// and counted once. Connections by TCP count, too.
func TestSourceRefused(t *testing.T) {
	for name, c := range map[string]struct {
		keys, reason string
		served       int // of the first clients
		byTCP        bool
	}{
		"denied":       {`deny: ["127.0.0.0/8"]`, listener.ReasonDenied, 0, false},
		"not allowed":  {`allow: ["192.0.2.0/24"]`, listener.ReasonDenied, 0, false},
		"full":         {"max_connections_per_source: 2", listener.ReasonSourceFull, 2, false},
		"full by TCP":  {"max_connections_per_source: 1", listener.ReasonSourceFull, 1, true},
		"too often":    {"connection_rate: {connections: 2, per: 1h}", listener.ReasonSourceRate, 2, false},
		"often by TCP": {"connection_rate: {connections: 1, per: 1h}", listener.ReasonSourceRate, 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := run(t, strings.ReplaceAll(standard, "upstream: app, tls", "upstream: app, "+c.keys+", tls"))
			for range c.served {
				if c.byTCP {
					w.answers(w.overTCP(), w.url("/"))
				} else {
					w.answers(w.transport(), w.url("/"))
				}
			}
			for i := range 3 {
				resp, err := w.transport().RoundTrip(request(t, w.url("/")))
				if err == nil {
					resp.Body.Close()
				}
				if !refusedAtOnce(err) {
					t.Errorf("error %v", err)
				}
				if all, one := w.counted(c.reason); all != uint64(i+1) || one != uint64(i+1) {
					t.Errorf("refusal %d: %d are counted, %d with the reason", i+1, all, one)
				}
			}
			if conns, _ := w.sessions(); len(conns) != c.served {
				t.Errorf("connections %v", conns)
			}
		})
	}
}
