package pgwire_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/headpond/headpond/pgwire"
)

var startups = []pgwire.Startup{
	&pgwire.SSLRequest{}, &pgwire.GSSENCRequest{},
	&pgwire.CancelRequest{ProcessID: 5, Key: []byte{1, 2, 3, 4}},
	&pgwire.CancelRequest{ProcessID: 5, Key: bytes.Repeat([]byte{1}, 256)},
	&pgwire.StartupMessage{Version: pgwire.Version30, Params: []pgwire.Param{{Name: "user", Value: "u"}, {Name: "options", Value: ""}}},
	&pgwire.StartupMessage{Version: pgwire.Version32, Params: []pgwire.Param{{Name: "user", Value: "u"}}},
}

func TestStartupRoundTrip(t *testing.T) {
	for _, m := range startups {
		wire := m.Append(nil)
		if int(binary.BigEndian.Uint32(wire)) != len(wire) {
			t.Fatalf("length word of % x", wire)
		}
		got, err := pgwire.DecodeStartup(wire[4:])
		if err != nil || !reflect.DeepEqual(got, m) {
			t.Errorf("%+v became %+v: %v", m, got, err)
		}
		packet, err := pgwire.NewReader(bytes.NewReader(wire)).Startup()
		if err != nil || !bytes.Equal(packet, wire[4:]) {
			t.Errorf("Reader.Startup: % x %v", packet, err)
		}
	}
}

func TestStartupRefuses(t *testing.T) {
	for _, packet := range []string{
		"", "\x00\x03\x00", "\x00\x03\x00\x00", "\x00\x03\x00\x00user\x00u\x00", "\x00\x03\x00\x00user", "\x00\x02\x00\x00\x00",
		"\x00\x03\x00\x00user\x00u\x00\x00more", "\x04\xd2\x16\x2fmore", "\x04\xd2\x16\x2e\x00\x00\x00\x01abc",
	} {
		if m, err := pgwire.DecodeStartup([]byte(packet)); !errors.Is(err, pgwire.ErrMalformed) {
			t.Errorf("%q: %+v %v", packet, m, err)
		}
	}
	var m pgwire.StartupMessage
	if m.Params = []pgwire.Param{{Name: "a", Value: "1"}, {Name: "a", Value: "2"}}; m.Get("a") != "2" || m.Get("b") != "" {
		t.Error("Get")
	}
	for _, size := range []uint32{0, 7, pgwire.MaxStartup + 1, 1 << 31} {
		_, err := pgwire.NewReader(bytes.NewReader(binary.BigEndian.AppendUint32(nil, size))).Startup()
		if !errors.Is(err, pgwire.ErrLength) {
			t.Errorf("length %d: %v", size, err)
		}
	}
}

// FuzzStartup checks the round trip, and that pgproto3's backend accepts the same packets.
func FuzzStartup(f *testing.F) {
	for _, m := range startups {
		f.Add(m.Append(nil)[4:])
	}
	f.Fuzz(func(t *testing.T, packet []byte) {
		if len(packet) > pgwire.MaxStartup-4 {
			return
		}
		m, err := pgwire.DecodeStartup(packet)
		if err != nil {
			if !errors.Is(err, pgwire.ErrMalformed) {
				t.Fatalf("%v does not wrap ErrMalformed", err)
			}
			return
		}
		wire := m.Append(nil)
		if !bytes.Equal(wire[4:], packet) {
			t.Fatalf("% x became % x", packet, wire[4:])
		}
		theirs, err := pgproto3.NewBackend(bytes.NewReader(wire), nil).ReceiveStartupMessage()
		if sm, ok := m.(*pgwire.StartupMessage); ok && err == nil {
			other := theirs.(*pgproto3.StartupMessage)
			for name, value := range other.Parameters {
				if sm.Get(name) != value {
					t.Fatalf("%q is %q, pgproto3 has %q", name, sm.Get(name), value)
				}
			}
		}
	})
}

// TestOtherProtocolsAreNamed: an operator who reads the log learns that a client has the wrong port.
func TestOtherProtocolsAreNamed(t *testing.T) {
	for first, want := range map[string]string{
		"GET / HTTP/1.1\r\n": "HTTP", "PRI * HTTP/2.0\r\n": "HTTP", "\x16\x03\x01\x02\x00\x01": "TLS", "SSH-2.0-OpenSSH_9": "SSH",
	} {
		_, err := pgwire.NewReader(strings.NewReader(first)).Startup()
		if !errors.Is(err, pgwire.ErrLength) || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%q: %v", first, err)
		}
	}
}
