package mux_test

import (
	"errors"
	"testing"

	"github.com/headpond/headpond/mux"
	"github.com/headpond/headpond/mux/frame"
)

// FuzzInput feeds a core with the frames of a hostile peer, between calls of an application. The
// core's memory always stays within its bounds, and when the core gives up, its error is a protocol
// violation.
func FuzzInput(f *testing.F) {
	f.Add(concat(open(1, frame.KindMessages), data(1, 3, 5, 3), data(1, 0, 0, 2)))
	f.Add(concat(open(1, frame.KindStream), data(1, 0, 0, 9), data(1, frame.FlagFin, 0, 0), frame.Stop{Channel: 1}.Append(nil)))
	f.Add(concat(open(1, frame.KindMessages), data(1, 3, 30_000, 4000), data(1, frame.FlagAbort, 0, 0), (&frame.Reset{Channel: 1}).Append(nil)))
	f.Add(concat(open(3, frame.KindMessages), frame.Window{Channel: 3, Limit: 1 << 60}.Append(nil), (&frame.GoAway{}).Append(nil)))
	const budget, largest = 64 << 10, 32 << 10
	f.Fuzz(func(t *testing.T, wire []byte) {
		cfg := mux.Config{ChannelWindow: 8 << 10, SessionWindow: budget, MaxMessage: largest, MaxChannels: 4, AcceptBacklog: 4}
		_, core := mux.NewCorePair(cfg, true)
		var chans []mux.CoreChannel
		for step := 0; len(wire) >= frame.HeaderSize; step++ {
			h, err := frame.ParseHeader(wire)
			if err != nil || int(h.Length) > len(wire)-frame.HeaderSize {
				return
			}
			body := wire[frame.HeaderSize:][:h.Length]
			wire = wire[frame.HeaderSize+len(body):]
			if err := core.Input(h, body, step%2 == 0); err != nil {
				if !errors.Is(err, mux.ErrProtocol) && !errors.Is(err, frame.ErrInvalid) && !errors.Is(err, mux.ErrSessionLost) {
					t.Fatalf("%v: error %v", h.Type, err)
				}
				return
			}
			channels, buffered, assembly := core.Held()
			if channels > 5 || buffered > 2*budget || assembly > largest || core.Windows() > budget {
				t.Fatalf("holds %d channels, %d bytes, %d reserved, windows of %d", channels, buffered, assembly, core.Windows())
			}
			if ch, ok := core.Accept(); ok {
				core.Send(ch, make([]byte, 100*(step%64)))
				chans = append(chans, ch)
			}
			for _, ch := range chans {
				core.Receive(ch)
			}
			if step%5 == 4 {
				core.Output()
			}
			if step%13 == 12 && len(chans) > 0 {
				core.Close(chans[0])
				chans = chans[1:]
			}
		}
	})
}
