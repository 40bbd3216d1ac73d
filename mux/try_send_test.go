package mux_test

import (
	"errors"
	"testing"

	"github.com/headpond/headpond/mux"
)

// TestTrySendLastCredit: a message of several frames that takes the last of the window, to the byte or a little
// less, goes as a whole or not at all.
func TestTrySendLastCredit(t *testing.T) {
	for slack := range 12 {
		c, s := sessions(t, "tcp", mux.Config{}, mux.Config{ChannelWindow: 64 << 10, MaxChannelWindow: 64 << 10})
		here, there := channels(t, c, s)
		if err := here.TrySend(pattern(100)); err != nil { // 164 of the 65,536 bytes of credit
			t.Fatal(err)
		}
		size := 65_536 - 164 - 2*64 - 4 - slack
		expect(t, there, pattern(100))
		switch err := here.TrySend(pattern(size)); {
		case err == nil:
			expect(t, there, pattern(size))
		case !errors.Is(err, mux.ErrBackpressure) || slack > 8:
			t.Error(slack, err)
		}
	}
}

// TestTrySendKeepsToBuffer: unacknowledged messages of TrySend stay within Resume.Buffer.
func TestTrySendKeepsToBuffer(t *testing.T) {
	n := newLine(t, false, mux.Config{ChannelWindow: 8 << 20, MaxChannelWindow: 8 << 20, Resume: &mux.Resume{}})
	c, s := n.join(mux.Config{Resume: &mux.Resume{Dial: n.dial, Buffer: 64 << 10}})
	defer n.end(c, s)
	here, _ := channels(t, c, s)
	if err := here.TrySend(pattern(1 << 20)); !errors.Is(err, mux.ErrBackpressure) {
		t.Errorf("1 MiB over a buffer of 64 KiB: %v, want ErrBackpressure", err)
	}
}
