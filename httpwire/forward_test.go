package httpwire_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/headpond/headpond/httpwire"
)

// TestLost goes through all that a forwarder can know of a try.
func TestLost(t *testing.T) {
	for bits := range 1 << 7 {
		bit := func(i int) bool { return bits>>i&1 == 1 }
		l := httpwire.Lost{
			Idled: bit(0), Answered: bit(1), Whole: bit(2), Unsent: bit(3), Idempotent: bit(4), Reset: bit(5), NotBegun: bit(6),
		}
		again := l.Stale()
		switch {
		case again && !l.Whole:
			t.Errorf("%+v is sent again, which is not all there", l)
		case again && !l.NotBegun && !l.Unsent && !l.Idempotent:
			t.Errorf("%+v is sent again, which a server may have carried out", l)
		case again && !l.NotBegun && (l.Answered || !l.Idled || l.Reset):
			t.Errorf("%+v is sent again, whose connection was not stale", l)
		case !again && l.Whole && (l.NotBegun || l.Idled && !l.Answered && !l.Reset && (l.Idempotent || l.Unsent)):
			t.Errorf("%+v is not sent again", l)
		}
		if again && l.Blames() {
			t.Errorf("%+v counts against the endpoint, and is sent to it again", l)
		}
		if l.Blames() == (l.NotBegun || l.Idled && !l.Answered && !l.Reset) {
			t.Errorf("%+v: blames is %t", l, l.Blames())
		}
	}
}

func TestServerFailed(t *testing.T) {
	failed := map[int]bool{500: true, 502: true, 503: true, 504: true, 599: true}
	for _, status := range []int{200, 302, 400, 401, 403, 404, 429, 499, 501, 505, 600, 500, 502, 503, 504, 599} {
		if httpwire.ServerFailed(status) != failed[status] {
			t.Errorf("a status of %d is a failure: %t", status, !failed[status])
		}
	}
}

func TestCheckSwitch(t *testing.T) {
	for _, tc := range []struct {
		asked, to string
		upgrades  bool
		ok        bool
	}{
		{"websocket", "websocket", true, true},
		{"WebSocket", "websocket", true, true},
		{"a, b", "b", true, true},
		{"a, b", "c", true, false},
		{"a", "", true, false},
		{"", "websocket", true, false},
		{"websocket", "websocket", false, false},
	} {
		err := httpwire.CheckSwitch(tc.asked, tc.to, tc.upgrades)
		if (err == nil) != tc.ok || err != nil && !errors.Is(err, httpwire.ErrMalformed) {
			t.Errorf("%+v: %v", tc, err)
		}
	}
}

func TestCarriesRequests(t *testing.T) {
	for list, want := range map[string]bool{
		"websocket": false, "": false, "spdy/3.1": false, "tcp": false, "h": false,
		"h2c": true, "H2": true, "websocket, h2c": true, "HTTP/2.0": true, "TLS/1.2, HTTP/1.1": true, ",h2c": true,
	} {
		if httpwire.CarriesRequests(list) != want {
			t.Errorf("%q carries requests: %t", list, !want)
		}
	}
}

func TestConnectionAuth(t *testing.T) {
	for value, want := range map[string]bool{
		"NTLM TlRMTVNTUAAB": true, "negotiate": true, "Negotiate,": true, "Basic dTpw": false, "Bearer ntlm": false, "": false,
	} {
		if httpwire.ConnectionAuth(value) != want {
			t.Errorf("%q logs in the connection: %t", value, !want)
		}
	}
}

func TestAppendForwarded(t *testing.T) {
	for _, tc := range []struct{ addr, host, want string }{
		{"1.2.3.4", "a.example:80", `for=1.2.3.4;proto=https;host="a.example:80"`},
		{"2001:db8::1", "", `for="[2001:db8::1]";proto=https`},
		{"", "a", `for=unknown;proto=https;host="a"`},
		{"1.2.3.4", `a";by=b`, `for=1.2.3.4;proto=https`},
	} {
		addr, _ := netip.ParseAddr(tc.addr)
		if got := string(httpwire.AppendForwarded(nil, addr, "https", tc.host)); got != tc.want {
			t.Errorf("got %s, want %s", got, tc.want)
		}
	}
	if got := string(httpwire.AppendVia(nil, 2, 0, "edge")); got != "2.0 edge" {
		t.Errorf("got %q", got)
	}
}

func TestIdempotent(t *testing.T) {
	for method, want := range map[string]bool{"GET": true, "PUT": true, "DELETE": true, "POST": false, "PATCH": false, "get": false, "": false} {
		if httpwire.Idempotent(method) != want {
			t.Errorf("%q is idempotent: %t", method, !want)
		}
	}
	for name, want := range map[string]bool{"Idempotency-Key": true, "x-IDEMPOTENCY-key": true, "Idempotency": false} {
		if httpwire.MakesIdempotent(name) != want {
			t.Errorf("%q makes requests idempotent: %t", name, !want)
		}
	}
}

func TestValidRequestID(t *testing.T) {
	for id, want := range map[string]bool{"a-1": true, "": false, "a b": false, strings.Repeat("x", 128): true, strings.Repeat("x", 129): false} {
		if httpwire.ValidRequestID(id) != want {
			t.Errorf("%.20q is valid: %t", id, !want)
		}
	}
}

// TestRulesAllocateNothing: they run for each request.
func TestRulesAllocateNothing(t *testing.T) {
	token := "Bearer " + strings.Repeat("x", 1000)
	list, method := []byte("websocket"), []byte("GET")
	var buf [128]byte
	addr := netip.MustParseAddr("2001:db8::1")
	if n := testing.AllocsPerRun(100, func() {
		_ = httpwire.CarriesRequests(list)
		_ = httpwire.Idempotent(method)
		_ = httpwire.StatesLength(method)
		_ = httpwire.ConnectionAuth(list)
		_ = httpwire.ConnectionAuth(token)
		_ = httpwire.ValidRequestID(list)
		_ = httpwire.CheckSwitch(list, list, true)
		_ = httpwire.AppendVia(httpwire.AppendForwarded(buf[:0], addr, "http", "a"), 1, 1, "b")
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
