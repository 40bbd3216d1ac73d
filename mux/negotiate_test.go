package mux_test

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/headpond/headpond/mux"
	"github.com/headpond/headpond/mux/frame"
)

// TestHandshakeViolations: a HELLO that cannot be agreed to is refused with a reason,
// and a peer that speaks another protocol without a word.
func TestHandshakeViolations(t *testing.T) {
	good := frame.Hello{MinVersion: 1, MaxVersion: 1, MaxFrame: 32 << 10, MaxChannels: 10, ChannelWindow: 64 << 10, SessionWindow: 1 << 20}
	hello := func(change func(*frame.Hello)) string {
		h := good
		change(&h)
		return frame.Magic + string(h.Append(nil))
	}
	cut := hello(func(*frame.Hello) {})
	for name, c := range map[string]struct {
		wire string
		code frame.Code // CodeNone: not a word
		says string
	}{
		"a later version":       {hello(func(h *frame.Hello) { h.MinVersion, h.MaxVersion = 2, 3 }), frame.CodeVersion, "versions 2 to 3"},
		"an unknown feature":    {hello(func(h *frame.Hello) { h.Required, h.Offered = 1<<30, 1<<30 }), frame.CodeVersion, "requires features"},
		"LINKS required":        {hello(func(h *frame.Hello) { h.Required, h.Offered = 4, 4 }), frame.CodeVersion, "requires features"},
		"PSK required":          {hello(func(h *frame.Hello) { h.Required, h.Offered = frame.FeaturePSK, frame.FeaturePSK }), frame.CodeDenied, "failed"},
		"a window of nothing":   {hello(func(h *frame.Hello) { h.ChannelWindow = 0 }), frame.CodeProtocol, "windows of 0"},
		"a session of nothing":  {hello(func(h *frame.Hello) { h.SessionWindow = 4095 }), frame.CodeProtocol, "4095"},
		"no channels to speak":  {hello(func(h *frame.Hello) { h.MaxChannels = 1<<31 + 1 }), frame.CodeProtocol, "channels allowed"},
		"versions upside down":  {hello(func(h *frame.Hello) { h.MinVersion, h.MaxVersion = 2, 1 }), frame.CodeProtocol, ""},
		"version 0":             {hello(func(h *frame.Hello) { h.MinVersion = 0 }), frame.CodeProtocol, ""},
		"required, not offered": {hello(func(h *frame.Hello) { h.Required = frame.FeatureResume }), frame.CodeProtocol, ""},
		"frames of nothing":     {hello(func(h *frame.Hello) { h.MaxFrame = 10 }), frame.CodeProtocol, ""},
		"frames of 4 GiB":       {hello(func(h *frame.Hello) { h.MaxFrame = 1<<32 - 1 }), frame.CodeProtocol, ""},
		"HTTP":                  {"GET / HTTP/1.1\r\nHost: a\r\n\r\n", frame.CodeNone, ""},
		"the magic twice":       {frame.Magic + frame.Magic + frame.Magic, frame.CodeNone, ""},
		"a ping":                {frame.Magic + string(frame.Ping{}.Append(nil)), frame.CodeNone, ""},
		"half a HELLO":          {cut[:len(cut)/2], frame.CodeNone, ""},
		"nothing":               {"", frame.CodeNone, ""},
	} {
		t.Run(name, func(t *testing.T) {
			here, there := tcpPair(t)
			defer here.Close()
			done := make(chan error, 1)
			go func() {
				_, err := mux.Server(bg, there, mux.Config{})
				done <- err
			}()
			if _, err := io.WriteString(here, c.wire); err != nil {
				t.Fatal(err)
			}
			_ = here.(*net.TCPConn).CloseWrite() // the other side may have closed already
			if err := <-done; !errors.Is(err, mux.ErrHandshake) && !errors.Is(err, mux.ErrDenied) {
				t.Errorf("the server: %v", err)
			}
			answer, _ := io.ReadAll(here) // a reset ends it too
			if c.code == frame.CodeNone {
				if len(answer) > 0 {
					t.Errorf("it was answered %q", answer)
				}
				return
			}
			var bye frame.GoAway
			if rest, ok := strings.CutPrefix(string(answer), frame.Magic); !ok {
				t.Fatalf("it was answered %q", answer)
			} else if head, err := frame.ParseHeader([]byte(rest)); err != nil {
				t.Fatal(err)
			} else if err := bye.Decode(head, []byte(rest[frame.HeaderSize:])); err != nil {
				t.Fatal(err)
			}
			if bye.Code != c.code || !strings.Contains(string(bye.Reason), c.says) {
				t.Errorf("it got %v %q", bye.Code, bye.Reason)
			}
		})
	}
}

// TestServerThatChoosesWrong: a client takes no answer that it did not offer.
func TestServerThatChoosesWrong(t *testing.T) {
	good := frame.Hello{MinVersion: 1, MaxVersion: 1, MaxFrame: 32 << 10, MaxChannels: 10, ChannelWindow: 64 << 10, SessionWindow: 1 << 20, Session: [16]byte{1}}
	for name, change := range map[string]func(*frame.Hello){
		"another version":         func(h *frame.Hello) { h.MinVersion, h.MaxVersion = 2, 2 },
		"a feature not offered":   func(h *frame.Hello) { h.Offered, h.Replay = frame.FeatureResume, frame.MinReplay },
		"the session of a client": func(h *frame.Hello) { h.Session = [16]byte{} },
		"no window":               func(h *frame.Hello) { h.ChannelWindow = 1 },
	} {
		t.Run(name, func(t *testing.T) {
			here, there := tcpPair(t)
			defer there.Close()
			h := good
			change(&h)
			if _, err := there.Write(h.Append([]byte(frame.Magic))); err != nil {
				t.Fatal(err)
			}
			if _, err := mux.Client(bg, here, mux.Config{}); !errors.Is(err, mux.ErrHandshake) {
				t.Errorf("the client: %v", err)
			}
			all, _ := io.ReadAll(there)
			last := all[max(0, len(all)-frame.MaxControl):]
			at := strings.LastIndex(string(last), string([]byte{byte(frame.TypeGoAway), 0, 0, 0}))
			if at < 0 || frame.Code(binary.BigEndian.Uint32(last[at+frame.HeaderSize+4:])) == frame.CodeNone {
				t.Errorf("the server got %q", last)
			}
		})
	}
}

// TestEchoIsNoServer: a client at the wrong port, where a server repeats what it gets, has no session with itself.
func TestEchoIsNoServer(t *testing.T) {
	here, there := tcpPair(t)
	defer there.Close()
	go io.Copy(there, there)
	if _, err := mux.Client(bg, here, mux.Config{}); !errors.Is(err, mux.ErrHandshake) || !strings.Contains(err.Error(), "repeats what it gets") {
		t.Error(err)
	}
}
