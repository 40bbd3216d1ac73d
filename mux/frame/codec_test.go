package frame_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/headpond/headpond/mux/frame"
)

// reencode decodes one whole frame and encodes it again.
func reencode(h frame.Header, body []byte) (out []byte, err error) {
	switch h.Type {
	case frame.TypeHello:
		var f frame.Hello
		err = f.Decode(h, body)
		out = f.Append(nil)
	case frame.TypeAuth:
		var f frame.Auth
		err = f.Decode(h, body)
		out = f.Append(nil)
	case frame.TypeResume:
		var f frame.Resume
		err = f.Decode(h, body)
		out = f.Append(nil)
	case frame.TypeResumed:
		var f frame.Resumed
		err = f.Decode(h, body)
		out = f.Append(nil)
	case frame.TypeTicket:
		var f frame.Ticket
		err = f.Decode(h, body)
		out = f.Append(nil)
	case frame.TypeAck:
		var f frame.Ack
		err = f.Decode(h, body)
		out = f.Append(nil)
	case frame.TypePing:
		var f frame.Ping
		err = f.Decode(h, body)
		out = f.Append(nil)
	case frame.TypePong:
		var f frame.Pong
		err = f.Decode(h, body)
		out = f.Append(nil)
	case frame.TypeGoAway:
		var f frame.GoAway
		err = f.Decode(h, body)
		out = f.Append(nil)
	default:
		return reencodeChannel(h, body)
	}
	return out, err
}

func reencodeChannel(h frame.Header, body []byte) (out []byte, err error) {
	switch h.Type {
	case frame.TypeOpen:
		var f frame.Open
		err = f.Decode(h, body)
		out = f.Append(nil)
	case frame.TypeAccept:
		var f frame.Accept
		err = f.Decode(h, body)
		out = f.Append(nil)
	case frame.TypeData:
		var f frame.Data
		err = f.Decode(h, body)
		out = f.Append(nil)
	case frame.TypeWindow:
		var f frame.Window
		err = f.Decode(h, body)
		out = f.Append(nil)
	case frame.TypeReset:
		var f frame.Reset
		err = f.Decode(h, body)
		out = f.Append(nil)
	case frame.TypeStop:
		var f frame.Stop
		err = f.Decode(h, body)
		out = f.Append(nil)
	case frame.TypeOpens:
		var f frame.Opens
		err = f.Decode(h, body)
		out = f.Append(nil)
	default:
		err = errors.New("type without a codec")
	}
	return out, err
}

// FuzzFrame: every accepted frame encodes to the bytes it was decoded from.
func FuzzFrame(f *testing.F) {
	for _, v := range vectors(f) {
		f.Add(v.wire)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := frame.ParseHeader(b)
		if err != nil {
			if !errors.Is(err, frame.ErrInvalid) {
				t.Fatalf("error %v is not ErrInvalid", err)
			}
			return
		}
		if h.Length > frame.MaxData || (h.Type != frame.TypeData && h.Length > frame.MaxControl) {
			t.Fatalf("accepted length %d for %v", h.Length, h.Type)
		}
		rest := b[frame.HeaderSize:]
		if int(h.Length) > len(rest) {
			return
		}
		body := rest[:h.Length]
		out, err := reencode(h, body)
		if err != nil {
			if !errors.Is(err, frame.ErrInvalid) {
				t.Fatalf("%v: error %v is not ErrInvalid", h.Type, err)
			}
			return
		}
		want := bytes.Clone(b[:frame.HeaderSize+int(h.Length)])
		if h.Type != frame.TypeAck {
			copy(want[12:16], []byte{0, 0, 0, 0}) // the writer fills in the acknowledgement
		}
		if !bytes.Equal(out, want) {
			t.Fatalf("%v: decoded and encoded\n got %x\nwant %x", h.Type, out, want)
		}
	})
}

func TestVectors(t *testing.T) {
	seen := map[frame.Type]bool{}
	for _, v := range vectors(t) {
		h, err := frame.ParseHeader(v.wire)
		if v.invalid {
			if err == nil && int(h.Length) == len(v.wire)-frame.HeaderSize {
				_, err = reencode(h, v.wire[frame.HeaderSize:])
			}
			if !errors.Is(err, frame.ErrInvalid) {
				t.Errorf("%s: got %v, want ErrInvalid", v.name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", v.name, err)
			continue
		}
		seen[h.Type] = true
		out, err := reencode(h, v.wire[frame.HeaderSize:])
		if err != nil || !bytes.Equal(out, v.wire) {
			t.Errorf("%s: %v\n got %x\nwant %x", v.name, err, out, v.wire)
		}
	}
	for _, typ := range []frame.Type{
		frame.TypeHello, frame.TypeAuth, frame.TypePing, frame.TypePong, frame.TypeGoAway, frame.TypeOpen,
		frame.TypeResume, frame.TypeResumed, frame.TypeTicket, frame.TypeAck, frame.TypeAccept, frame.TypeData, frame.TypeWindow, frame.TypeReset, frame.TypeStop, frame.TypeOpens,
	} {
		if !seen[typ] {
			t.Errorf("no vector for %v", typ)
		}
	}
}

func TestFieldsOverTheirBoundAreCut(t *testing.T) {
	long := bytes.Repeat([]byte("x"), 4096)
	hello := frame.Hello{MinVersion: 1, MaxVersion: 1, MaxFrame: 1 << 15, Name: long, Token: long}
	for _, b := range [][]byte{
		hello.Append(nil),
		(&frame.GoAway{Reason: long}).Append(nil),
		(&frame.Reset{Channel: 1, Reason: long}).Append(nil),
		(&frame.Open{Channel: 1, Kind: frame.KindStream, Name: long}).Append(nil),
	} {
		h, err := frame.ParseHeader(b)
		if err != nil {
			t.Fatalf("%v: %v", h.Type, err)
		}
		if _, err := reencode(h, b[frame.HeaderSize:]); err != nil {
			t.Errorf("%v: %v", h.Type, err)
		}
	}
}

func TestNothingAllocates(t *testing.T) {
	buf := make([]byte, 0, 4096)
	payload := make([]byte, 1024)
	n := testing.AllocsPerRun(100, func() {
		d := frame.Data{Channel: 3, Payload: payload}
		buf = d.Append(buf[:0])
		buf = frame.Window{Channel: 3, Limit: 1 << 40}.Append(buf)
		h, err := frame.ParseHeader(buf)
		if err != nil || d.Decode(h, buf[frame.HeaderSize:][:h.Length]) != nil {
			panic("vector refused")
		}
	})
	if n != 0 {
		t.Errorf("%v allocations per frame", n)
	}
}

func TestFlagsHaveNames(t *testing.T) {
	for flags, want := range map[frame.Flags]string{
		0: "", frame.FlagFin: "FIN", frame.FlagMore | frame.FlagSized: "MORE|SIZED", frame.FlagAbort | 0x30: "ABORT|0x30",
	} {
		if got := flags.String(); got != want {
			t.Errorf("%#x is %q, want %q", uint8(flags), got, want)
		}
	}
}
