package tunnel_test

import (
	"testing"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/mux"
)

// TestKilledBeforeItsSession kills a connection that has not become a session yet: it becomes none.
func TestKilledBeforeItsSession(t *testing.T) {
	e := start(t, options{})
	conn := conntest.Dial(t, e.address)
	var row listener.Info
	conntest.Eventually(t, "the connection is listed", func() bool {
		for _, s := range e.server.Sessions() {
			if s.Client == conn.LocalAddr().String() && s.State == listener.StateStarting {
				row = s
			}
		}
		return row.ID != ""
	})
	if id, stream, ok := listener.ParseID(row.ID); !ok || !e.server.Kill(id, stream) || e.server.Kill(id, stream) {
		t.Errorf("%+v cannot be killed, or twice", row)
	}
	if _, err := join(t, conn, mux.Config{Name: "other", PSK: key}); err == nil {
		t.Error("the connection was killed, and a session began on it")
	}
	if n := e.server.Stats().Errors[listener.ReasonKilled]; n != 1 {
		t.Errorf("%d were counted as killed", n)
	}
}
