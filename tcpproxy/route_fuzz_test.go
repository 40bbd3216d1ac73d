package tcpproxy_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/headpond/headpond/tcpproxy"
)

// fit is a plain version of what a route means: the larger, the better it fits; 0 = not at all.
func fit(r tcpproxy.Route, name string, protocols []string) (best int) {
	if len(r.SNI) == 0 {
		best = 2
	}
	name = strings.ToLower(name)
	for _, want := range r.SNI {
		switch want := strings.ToLower(want); {
		case name == want:
			best = 2000
		case strings.HasPrefix(want, "*.") && strings.HasSuffix(name, want[1:]):
			best = max(best, 2*len(want))
		}
	}
	if best == 0 || len(r.ALPN) == 0 {
		return best
	}
	for _, want := range r.ALPN {
		if slices.Contains(protocols, want) {
			return best + 1
		}
	}
	return 0
}

// FuzzChoose compares the chosen route with the first of those that fit best. A route is a line of names and protocols, the latter behind a slash.
func FuzzChoose(f *testing.F) {
	for _, seed := range []struct{ routes, name, protocols string }{
		{"a\n*.b\n/h2", "x.b", "h2"},
		{"*.b /h2\nx.b\n*.x.b", "x.b", "http/1.1"},
		{"*.a.b.c\n*.b.c /x\n*.c a.b.c", "a.b.c", "x"},
		{"/a /b\n/b\nA", "a", "b"},
		{"*.b", ".b", ""},
		{"*.b\n/h2\nx.b\n*.x.b /h2\nX.B /h2", "x.b", "h2"},
		{"*.b\nb", "b", ""},
	} {
		f.Add(seed.routes, seed.name, seed.protocols)
	}
	f.Fuzz(func(t *testing.T, lines, name, offered string) {
		var routes []tcpproxy.Route
		for line := range strings.SplitSeq(lines, "\n") {
			var r tcpproxy.Route
			for _, word := range strings.Fields(line) {
				switch protocol, is := strings.CutPrefix(word, "/"); {
				case is && protocol != "":
					r.ALPN = append(r.ALPN, protocol)
				case !is && tcpproxy.CheckSNI(word) == nil:
					r.SNI = append(r.SNI, word)
				}
			}
			if len(r.SNI)+len(r.ALPN) > 0 {
				routes = append(routes, r)
			}
		}
		protocols := strings.Fields(offered)
		protocols = protocols[:min(len(protocols), 64)]
		if len(name) > 253 || strings.ToLower(strings.ToLower(name)) != strings.ToLower(name) {
			return // no name of a ClientHello
		}
		want, best := -1, 0
		for i, r := range routes {
			if n := fit(r, name, protocols); n > best {
				want, best = i, n
			}
		}
		if got := tcpproxy.Choose(routes, name, protocols); got != want {
			t.Errorf("%+v: %q %q goes to route %d, want %d", routes, name, protocols, got, want)
		}
	})
}

// FuzzHello: what the reader finds does not depend on the pieces in which it is sent, and what it has read is the beginning of it.
func FuzzHello(f *testing.F) {
	a := helloOf(f, "a.test", "h2", "http/1.1")
	for _, b := range [][]byte{a, records(a, 7), withExtensions(a, grease()), a[:90], []byte("GET / HTTP/1.1\r\n"), record([]byte("\x01\x00\x00\x04none")), {22, 3, 1, 0xff, 0xff}} {
		f.Add(b, uint16(1), uint16(100))
	}
	f.Fuzz(func(t *testing.T, sent []byte, n, m uint16) {
		one := tcpproxy.ReadHello(bytes.NewReader(sent), max(int(n), 1))
		other := tcpproxy.ReadHello(bytes.NewReader(sent), max(int(m), 1))
		for _, r := range []tcpproxy.HelloRead{one, other} {
			if !bytes.HasPrefix(sent, r.Read) || len(r.Read) > 16<<10 {
				t.Fatalf("read %d bytes that are not the beginning of %d", len(r.Read), len(sent))
			}
			if plain := len(sent) > 0 && sent[0] != 22; plain != (r.Problem == tcpproxy.ErrNoHello) {
				t.Fatalf("%q begins with %q", r.Problem, sent[:1])
			}
			if r.Found != (r.Problem == nil) {
				t.Fatalf("found: %v, error: %v", r.Found, r.Problem)
			}
		}
		if one.Found != other.Found || one.Name != other.Name || !slices.Equal(one.Protocols, other.Protocols) {
			t.Fatalf("in pieces of %d: %+v, of %d: %+v", n, one, m, other)
		}
	})
}
