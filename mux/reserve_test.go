package mux_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headpond/headpond/mux"
	"github.com/headpond/headpond/mux/frame"
)

// TestMessageNotTakenHoldsNobodyUp: a large message whose receiver stopped waiting lets messages of
// other channels be assembled.
func TestMessageNotTakenHoldsNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 1 << 20
		cc, sc := net.Pipe()
		cfg := mux.Config{MaxMessage: size, MaxChannelWindow: 64 << 10}
		c, s := join(t, cc, sc, cfg, cfg)
		here, there := channels(t, c, s)
		go here.Send(bg, pattern(size))
		if n, err := there.ReceiveInto(bg, make([]byte, 10)); n != size || !errors.Is(err, mux.ErrShortBuffer) {
			t.Fatal(n, err)
		}
		ctx, cancel := context.WithTimeout(bg, time.Minute)
		defer cancel()
		for range 3 {
			other, away := channels(t, c, s)
			go other.Send(bg, pattern(size))
			m, err := away.Receive(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(m.Bytes(), pattern(size)) {
				t.Error("damaged")
			}
			m.Release()
		}
		if b := s.Stats().Buffered; b != size {
			t.Errorf("%d bytes buffered", b)
		}
		expect(t, there, pattern(size))
		if b := s.Stats().Buffered; b != 0 {
			t.Errorf("%d bytes buffered", b)
		}
		c.Close()
		s.Close()
	})
}

// peer feeds a core with frames as a peer may send them, and takes its output.
type peer struct {
	*testing.T
	core *mux.Core
}

func (p *peer) send(wire ...[]byte) {
	p.Helper()
	frames(p, concat(wire...), func(h frame.Header, body []byte) {
		if err := p.core.Input(h, body, true); err != nil {
			p.Fatal(err)
		}
	})
	p.core.Output()
}

// begin opens a channel, sends the beginning of a message of size bytes and makes a receiver wait
// for it.
func (p *peer) begin(num uint32, size int) mux.CoreChannel {
	p.Helper()
	p.send(open(num, frame.KindMessages))
	ch, ok := p.core.Accept()
	if !ok {
		p.Fatal("refused")
	}
	p.send(data(num, frame.FlagMore|frame.FlagSized, uint32(size), 1024))
	p.core.Wait(ch)
	p.core.Output()
	return ch
}

// end sends the rest of it.
func (p *peer) end(num uint32, size int) {
	p.Helper()
	for left := size - 1024; left > 0; left -= 16 << 10 {
		fl := frame.FlagMore
		if left <= 16<<10 {
			fl = 0
		}
		p.send(data(num, fl, 0, min(left, 16<<10)))
	}
}

func reserving(t *testing.T) *peer {
	_, core := mux.NewCorePair(mux.Config{MaxMessage: 1 << 20, MaxChannelWindow: 64 << 10}, true)
	return &peer{t, core}
}

// TestLargeMessagesTakeTurns: smaller ones that come later do not keep one waiting forever.
func TestLargeMessagesTakeTurns(t *testing.T) {
	p := reserving(t)
	first, large, later := p.begin(1, 512<<10), p.begin(3, 1<<20), p.begin(5, 512<<10)
	if !first.Reserved() || large.Reserved() || later.Reserved() {
		t.Errorf("reserved: %v, %v, %v", first.Reserved(), large.Reserved(), later.Reserved())
	}
	p.end(1, 512<<10)
	if !large.Reserved() || later.Reserved() {
		t.Errorf("reserved: %v, %v", large.Reserved(), later.Reserved())
	}
	p.end(3, 1<<20)
	if !later.Reserved() {
		t.Error("the last one has none")
	}
	p.end(5, 512<<10)
	for _, ch := range []mux.CoreChannel{first, large, later} {
		if m, ok := p.core.Receive(ch); !ok || len(m) < 512<<10 {
			t.Errorf("%d bytes, %v", len(m), ok)
		}
	}
	if _, buffered, assembly := p.core.Held(); buffered != 0 || assembly != 0 {
		t.Errorf("%d bytes buffered, %d reserved", buffered, assembly)
	}
}

// TestUntakenMessagesHoldUpLargeOnesOnly: where SessionWindow has no room for an untaken message,
// smaller ones pass a message that waits for room.
func TestUntakenMessagesHoldUpLargeOnesOnly(t *testing.T) {
	_, core := mux.NewCorePair(mux.Config{MaxMessage: 1 << 20, MaxChannelWindow: 64 << 10, SessionWindow: 256 << 10}, true)
	p := &peer{t, core}
	first, large, later := p.begin(1, 512<<10), p.begin(3, 1<<20), p.begin(5, 256<<10)
	p.end(1, 512<<10)
	if large.Reserved() || !later.Reserved() {
		t.Errorf("reserved: %v, %v", large.Reserved(), later.Reserved())
	}
	p.end(5, 256<<10)
	for _, ch := range []mux.CoreChannel{first, later} {
		if _, ok := core.Receive(ch); !ok {
			t.Error("nothing came")
		}
	}
	if !large.Reserved() {
		t.Error("the large one waits still")
	}
}

// TestWhoGoesLetsOthersIn: one that waits in front of others and is given up leaves no gap.
func TestWhoGoesLetsOthersIn(t *testing.T) {
	p := reserving(t)
	first, large, later := p.begin(1, 512<<10), p.begin(3, 1<<20), p.begin(5, 512<<10)
	p.send((&frame.Reset{Channel: 3}).Append(nil))
	if !first.Reserved() || large.Reserved() || !later.Reserved() {
		t.Errorf("reserved: %v, %v, %v", first.Reserved(), large.Reserved(), later.Reserved())
	}
}

// TestSecondReceiverIsServed: of two receivers on a channel the remaining one gets the large
// message behind the small one.
func TestSecondReceiverIsServed(t *testing.T) {
	p := reserving(t)
	p.send(open(1, frame.KindMessages), data(1, 0, 0, 10))
	ch, _ := p.core.Accept()
	p.core.Wait(ch) // the second
	p.send(data(1, frame.FlagMore|frame.FlagSized, 1<<20, 60<<10))
	if m, ok := p.core.Receive(ch); !ok || len(m) != 10 {
		t.Fatal(len(m), ok)
	}
	if !ch.Reserved() {
		t.Error("it has no more room than the window")
	}
}

// TestWaitingIsForgottenWithItsChannel: a peer that resets channels which wait, again and
// again, does not make the session remember them.
func TestWaitingIsForgottenWithItsChannel(t *testing.T) {
	p := reserving(t)
	p.begin(1, 1<<20)
	for num := uint32(3); num < 4000; num += 2 {
		p.begin(num, 512<<10)
		p.send((&frame.Reset{Channel: num}).Append(nil))
	}
	if n := p.core.Queued(); n > 1 {
		t.Errorf("%d channels wait for a reservation", n)
	}

	core, _ := mux.NewCorePair(mux.Config{SessionWindow: 256 << 10}, true)
	p = &peer{t, core}
	for num := uint32(1); num < 4000; num += 2 {
		ch, err := core.Open(mux.PriorityNormal, 0)
		if err != nil {
			t.Fatal(err)
		}
		core.Send(ch, make([]byte, 40<<10))
		core.Output()
		p.send((&frame.Reset{Channel: num}).Append(nil))
	}
	if n := core.Queued(); n > 1 {
		t.Errorf("%d channels wait for credit", n)
	}
}

// TestAcceptsNotRead: frames that this side sends because the application accepts are bounded, too,
// when a peer opens and resets channels and reads nothing.
func TestAcceptsNotRead(t *testing.T) {
	_, core := mux.NewCorePair(mux.Config{}, true)
	err := error(nil)
	for num := uint32(1); num < 400_000 && err == nil; num += 2 {
		frames(t, open(num, frame.KindMessages), func(h frame.Header, body []byte) { err = core.Input(h, body, true) })
		core.Accept()
		frames(t, (&frame.Reset{Channel: num}).Append(nil), func(h frame.Header, body []byte) {
			err = errors.Join(err, core.Input(h, body, true))
		})
	}
	if n := core.Pending(); n > 2<<20 || !errors.Is(err, mux.ErrProtocol) {
		t.Errorf("%d bytes wait to be read; %v", n, err)
	}
}
