package listener_test

import (
	"testing"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/listener"
)

// TestRoomIsShared: without room clients of both listeners wait, none is rejected, and a client that disconnects makes
// room.
func TestRoomIsShared(t *testing.T) {
	var room listener.Room
	room.Resize(1)
	one, first := start(t, listener.Config{Room: &room}, echo)
	two, second := start(t, listener.Config{Room: &room}, echo)
	c := conntest.Dial(t, first)
	conntest.Exchange(t, c, "hello")
	next := conntest.Dial(t, second)
	conntest.Eventually(t, "it is not accepted", func() bool { return two.Stats().Errors[listener.ReasonAccept] > 0 || two.Stats().Active > 0 })
	_ = c.Close()
	conntest.Exchange(t, next, "hello")
	room.Resize(0)
	conntest.Exchange(t, conntest.Dial(t, first), "hello")
	if a, b := one.Stats(), two.Stats(); a.Rejected+b.Rejected > 0 {
		t.Errorf("%+v, %+v", a, b)
	}
}
