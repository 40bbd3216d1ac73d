package mux_test

import (
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headpond/headpond/mux"
)

// TestDrainWithoutConnection: Drain waits for a session without a connection while a channel is open here, or while the
// other side lacks data; not for channels that are only open at the other side.
func TestDrainWithoutConnection(t *testing.T) {
	for name, unacknowledged := range map[string]bool{"all is acknowledged": false, "some is not": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { drainWithoutConnection(t, unacknowledged) })
		})
	}
}

func drainWithoutConnection(t *testing.T, unacknowledged bool) {
	n := newLine(t, true, mux.Config{Resume: &mux.Resume{Window: time.Hour}})
	c, s := n.join(mux.Config{Resume: &mux.Resume{Window: time.Hour}})
	defer n.end(c, s)
	var here, there [2]*mux.Stream
	for i := range here {
		var err error
		if here[i], err = c.OpenStream(bg, "drained"); err != nil {
			t.Fatal(err)
		}
		if _, err = io.WriteString(here[i], "before"); err != nil {
			t.Fatal(err)
		}
		if there[i], err = s.AcceptStream(bg); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(time.Second) // for the acknowledgements
	n.set(errors.New("no network"))
	n.cut(0)
	drained := make(chan error, 1)
	go func() { drained <- c.Drain(bg) }()
	waits := func(why string) {
		t.Helper()
		synctest.Wait()
		select {
		case err := <-drained:
			t.Fatalf("%s, and the drain is over: %v", why, err)
		default:
		}
	}
	waits("two channels are open")
	_ = here[0].Close()
	waits("a channel is open")
	if unacknowledged {
		if _, err := io.WriteString(here[1], ", and after"); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	_ = here[1].Close()
	if unacknowledged {
		waits("the other side lacks data")
		n.set(nil)
		if got, err := io.ReadAll(there[1]); err != nil || string(got) != "before, and after" {
			t.Errorf("%q, %v", got, err)
		}
		_, _ = there[0].Close(), there[1].Close()
	}
	if err := <-drained; err != nil {
		t.Error(err)
	}
	if waited := time.Since(began); !unacknowledged && waited > 0 {
		t.Errorf("the drain took %v", waited)
	}
}
