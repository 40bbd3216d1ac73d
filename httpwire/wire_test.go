package httpwire_test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httputil"
	"net/textproto"
	"strings"
	"testing"

	"github.com/headpond/headpond/httpwire"
)

// requestCase is a head and the result of parsing it.
type requestCase struct {
	name, head string
	want       error // nil = accepted
	length     int64
	check      func(r *httpwire.Request) bool
}

func (tc requestCase) run(t *testing.T) {
	t.Helper()
	var r httpwire.Request
	n, err := r.Parse([]byte(tc.head + "rest"[:min(4, len(tc.head)/20)]))
	if !errors.Is(err, tc.want) || err == nil && (n != len(tc.head) || r.Length != tc.length) {
		t.Errorf("%s: %d, %v, length %d", tc.name, n, err, r.Length)
	}
	if err == nil && tc.check != nil && !tc.check(&r) {
		t.Errorf("%s: %+v", tc.name, r)
	}
}

func TestRequest(t *testing.T) {
	for _, tc := range []requestCase{
		{name: "plain", head: "GET / HTTP/1.1\r\nHost: a\r\n\r\n", length: 0},
		{name: "length", head: "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 12\r\n\r\n", length: 12},
		{name: "length 0", head: "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n", length: 0,
			check: func(r *httpwire.Request) bool { return r.HasLength }},
		{name: "the same length twice", head: "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 12\r\nContent-Length: 12\r\n\r\n", length: 12},
		{name: "chunked", head: "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n", length: httpwire.Chunked},
		{name: "spaces around a value", head: "GET / HTTP/1.1\r\nHost: \t a \t\r\n\r\n", length: 0,
			check: func(r *httpwire.Request) bool { return string(r.Host) == "a" }},
		{name: "close", head: "GET / HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Close\r\n\r\n", length: 0,
			check: func(r *httpwire.Request) bool { return r.Close }},
		{name: "listed field", head: "GET / HTTP/1.1\r\nHost: a\r\nConnection: x, y\r\nY: 1\r\n\r\n", length: 0,
			check: func(r *httpwire.Request) bool { return r.Listed(&r.Fields[2]) && !r.Listed(&r.Fields[0]) }},
		{name: "leave", head: "GET / HTTP/1.1\r\nHost: a\r\nExpect: 100-Continue\r\n\r\n", length: 0,
			check: func(r *httpwire.Request) bool { return r.Continue && !r.Demands }},
		{name: "nothing expected", head: "GET / HTTP/1.1\r\nHost: a\r\nExpect:\r\n\r\n", length: 0,
			check: func(r *httpwire.Request) bool { return !r.Continue && !r.Demands }},
		{name: "more than leave", head: "GET / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nExpect: , x=\"100-continue\"\r\n\r\n", length: 0,
			check: func(r *httpwire.Request) bool { return r.Continue && r.Demands }},
		{name: "trailers taken", head: "GET / HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, TE\r\nTE: Trailers\r\n\r\n", length: 0,
			check: func(r *httpwire.Request) bool { return r.Trailers }},
		{name: "codings taken", head: "GET / HTTP/1.1\r\nHost: a\r\nConnection: TE\r\nTE: gzip, trailers\r\n\r\n", length: 0,
			check: func(r *httpwire.Request) bool { return r.Trailers }},
		{name: "only codings", head: "GET / HTTP/1.1\r\nHost: a\r\nConnection: TE\r\nTE: gzip\r\n\r\n", length: 0,
			check: func(r *httpwire.Request) bool { return !r.Trailers }},
		{name: "upgrade", head: "GET / HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: x, y\r\n\r\n", length: 0,
			check: func(r *httpwire.Request) bool { return string(r.Upgrade) == "x, y" && !r.Close }},
		{name: "upgrade of another connection", head: "GET / HTTP/1.1\r\nHost: a\r\nUpgrade: x\r\n\r\n", length: 0,
			check: func(r *httpwire.Request) bool { return r.Upgrade == nil }},
		{name: "two upgrades", head: "GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: x\r\nUpgrade: y\r\n\r\n", length: 0,
			check: func(r *httpwire.Request) bool { return r.Upgrade == nil }},
		{name: "HTTP/1.0", head: "GET / HTTP/1.0\r\nConnection: Upgrade\r\nUpgrade: x\r\nExpect: 100-continue, y\r\n\r\n", length: 0,
			check: func(r *httpwire.Request) bool {
				return r.Close && r.Upgrade == nil && !r.Continue && !r.Demands && r.Hosts == 0
			}},
		{name: "HTTP/1.0 kept", head: "GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", length: 0,
			check: func(r *httpwire.Request) bool { return !r.Close }},
		{name: "NTLM", head: "GET / HTTP/1.1\r\nHost: a\r\nAuthorization: NTLM TlRM\r\n\r\n", length: 0,
			check: func(r *httpwire.Request) bool { return r.ConnectionAuth }},
		{name: "two hosts", head: "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", length: 0,
			check: func(r *httpwire.Request) bool { return r.Hosts == 2 }},
	} {
		tc.run(t)
	}
}

func TestRequestRefused(t *testing.T) {
	for _, tc := range []requestCase{
		{name: "half a line", head: "GET / HT", want: httpwire.ErrIncomplete},
		{name: "half a head", head: "GET / HTTP/1.1\r\nHost: a\r\n", want: httpwire.ErrIncomplete},
		{name: "nothing", head: "", want: httpwire.ErrIncomplete},
		{name: "TLS", head: "\x16\x03\x01", want: httpwire.ErrMalformed},
		{name: "both framings", head: "POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", want: httpwire.ErrBothFramings},
		{name: "both, the other way", head: "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n", want: httpwire.ErrBothFramings},
		{name: "two lengths", head: "POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", want: httpwire.ErrMalformed},
		{name: "a list of lengths", head: "POST / HTTP/1.1\r\nContent-Length: 1, 1\r\n\r\n", want: httpwire.ErrMalformed},
		{name: "signed length", head: "POST / HTTP/1.1\r\nContent-Length: +1\r\n\r\n", want: httpwire.ErrMalformed},
		{name: "huge length", head: "POST / HTTP/1.1\r\nContent-Length: 9223372036854775808\r\n\r\n", want: httpwire.ErrMalformed},
		{name: "other coding", head: "POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", want: httpwire.ErrMalformed},
		{name: "coding in HTTP/1.0", head: "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", want: httpwire.ErrMalformed},
		{name: "two codings", head: "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", want: httpwire.ErrMalformed},
		{name: "space before colon", head: "GET / HTTP/1.1\r\nHost : a\r\n\r\n", want: httpwire.ErrMalformed},
		{name: "folded", head: "GET / HTTP/1.1\r\nHost: a\r\n b\r\n\r\n", want: httpwire.ErrMalformed},
		{name: "bare LF", head: "GET / HTTP/1.1\nHost: a\n\n", want: httpwire.ErrMalformed},
		{name: "bare CR", head: "GET / HTTP/1.1\r\nHost: a\rb\r\n\r\n", want: httpwire.ErrMalformed},
		{name: "NUL", head: "GET / HTTP/1.1\r\nHost: a\x00\r\n\r\n", want: httpwire.ErrMalformed},
		{name: "no colon", head: "GET / HTTP/1.1\r\nHost\r\n\r\n", want: httpwire.ErrMalformed},
		{name: "version", head: "GET / HTTP/2.0\r\n\r\n", want: httpwire.ErrMalformed},
		{name: "space in the target", head: "GET /a b HTTP/1.1\r\n\r\n", want: httpwire.ErrMalformed},
		{name: "many fields", head: "GET / HTTP/1.1\r\n" + strings.Repeat("a: b\r\n", 257) + "\r\n", want: httpwire.ErrTooMany},
	} {
		tc.run(t)
	}
}

// TestLenientResponse: a message framed twice has one meaning, or is refused.
func TestLenientResponse(t *testing.T) {
	const ok, length, chunked = "HTTP/1.1 200 OK\r\n", "Content-Length: 3\r\n", "Transfer-Encoding: chunked\r\n"
	for _, tc := range []struct {
		head     string
		toHead   bool
		want     error
		length   int64
		reusable bool
		fields   string
	}{
		{head: ok + length + length + "A: b\r\n\r\n", length: 3, reusable: true, fields: "Content-Length A"},
		{head: ok + length + "Content-Length: 4\r\n\r\n", want: httpwire.ErrMalformed},
		{head: ok + "Content-Length: 3, 3\r\n\r\n", want: httpwire.ErrMalformed},
		{head: ok + length + chunked + "\r\n", length: httpwire.Chunked, fields: "Transfer-Encoding"},
		{head: ok + chunked + "A: b\r\n" + length + length + "\r\n", length: httpwire.Chunked, fields: "Transfer-Encoding A"},
		{head: ok + length + chunked + "\r\n", toHead: true, fields: "Transfer-Encoding"},
		{head: ok + length + "Transfer-Encoding: gzip\r\n\r\n", want: httpwire.ErrMalformed},
		{head: ok + length + chunked + chunked + "\r\n", want: httpwire.ErrMalformed},
		{head: "HTTP/1.0 200 OK\r\n" + length + chunked + "\r\n", want: httpwire.ErrMalformed},
		{head: "HTTP/1.1 304 Not Modified\r\n" + length + length + "\r\n", reusable: true, fields: "Content-Length"},
	} {
		var r httpwire.Response
		n, err := r.ParseLenient([]byte(tc.head), tc.toHead)
		if !errors.Is(err, tc.want) || err == nil && (n != len(tc.head) || r.Length != tc.length || r.Reusable != tc.reusable) {
			t.Errorf("%q: %d, %v, length %d, reusable %v", tc.head, n, err, r.Length, r.Reusable)
		}
		var names []string
		for _, f := range r.Fields {
			names = append(names, string(f.Name))
		}
		if err == nil && strings.Join(names, " ") != tc.fields {
			t.Errorf("%q: the fields are %q", tc.head, names)
		}
		if _, err := r.Parse([]byte(tc.head), tc.toHead); !errors.Is(err, httpwire.ErrMalformed) {
			t.Errorf("%q is accepted by Parse: %v", tc.head, err)
		}
	}
}

func TestResponse(t *testing.T) {
	for _, tc := range []struct {
		head     string
		toHead   bool
		want     error
		length   int64
		reusable bool
	}{
		{head: "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", length: 3, reusable: true},
		{head: "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", toHead: true, length: 0, reusable: true},
		{head: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", length: httpwire.Chunked, reusable: true},
		{head: "HTTP/1.1 200 OK\r\n\r\n", length: httpwire.Unframed},
		{head: "HTTP/1.1 204\r\n\r\n", length: 0, reusable: true},
		{head: "HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n", length: 0, reusable: true},
		{head: "HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n", length: 0},
		{head: "HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n", length: 0},
		{head: "HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", length: 0, reusable: true},
		{head: "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", length: 0},
		{head: "HTTP/1.0 200 OK\r\nContent-Length: 0\r\nConnection: keep-alive\r\n\r\n", length: 0},
		{head: "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nWWW-Authenticate: Negotiate\r\n\r\n", length: 0},
		{head: "HTTP/1.1 101 Switching Protocols\r\n\r\n", length: 0},
		{head: "HTTP/1.1 20", want: httpwire.ErrIncomplete},
		{head: "SSH-2.0-OpenSSH", want: httpwire.ErrMalformed},
		{head: "HTTP/1.1 2000 OK\r\n\r\n", want: httpwire.ErrMalformed},
		{head: "HTTP/1.1 099 OK\r\n\r\n", want: httpwire.ErrMalformed},
		{head: "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", want: httpwire.ErrMalformed},
		{head: "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", want: httpwire.ErrBothFramings},
	} {
		var r httpwire.Response
		n, err := r.Parse([]byte(tc.head), tc.toHead)
		if !errors.Is(err, tc.want) || err == nil && (n != len(tc.head) || r.Length != tc.length || r.Reusable != tc.reusable) {
			t.Errorf("%q: %d, %v, length %d, reusable %v", tc.head, n, err, r.Length, r.Reusable)
		}
	}
}

// The fields with a meaning are found in any case, and nothing else is taken for one.
func TestKnownFields(t *testing.T) {
	for name, want := range map[string]httpwire.Known{
		"Authorization": httpwire.Authorization, "Connection": httpwire.Connection, "Content-Length": httpwire.ContentLength,
		"Date": httpwire.Date, "Expect": httpwire.Expect, "Forwarded": httpwire.ForwardedRFC, "X-Real-Ip": httpwire.Forwarded,
		"Host": httpwire.Host, "Keep-Alive": httpwire.KeepAlive, "Proxy-Connection": httpwire.HopByHop,
		"Proxy-Authenticate": httpwire.HopByHop, "Proxy-Authorization": httpwire.HopByHop,
		"Proxy-Authentication-Info": httpwire.HopByHop, "Http2-Settings": httpwire.HopByHop, "Upgrade": httpwire.Upgrade,
		"Te": httpwire.TE, "Trailer": httpwire.Trailer, "Transfer-Encoding": httpwire.TransferEncoding, "Via": httpwire.Via,
		"Www-Authenticate": httpwire.Challenge, "X-Forwarded-For": httpwire.XForwardedFor, "X-Forwarded-Host": httpwire.XForwardedHost,
		"X-Forwarded-Proto": httpwire.XForwardedProto, "X-Forwarded-Port": httpwire.Forwarded, "X-Request-Id": httpwire.XRequestID,
		"Content-Type": httpwire.Other, "Transfer-Encodinx": httpwire.Other, "X-Forwarded": httpwire.Other, "Hosts": httpwire.Other,
	} {
		for _, spelled := range []string{name, strings.ToLower(name), strings.ToUpper(name)} {
			var r httpwire.Response
			if _, err := r.Parse([]byte("HTTP/1.1 200 OK\r\n"+spelled+": 0\r\n\r\n"), false); err != nil && want != httpwire.TransferEncoding {
				t.Errorf("%s: %v", spelled, err)
			}
			if len(r.Fields) != 1 || r.Fields[0].Known != want {
				t.Errorf("%s is taken for %v", spelled, r.Fields)
			}
		}
	}
}

// decode reads a chunked body in pieces of the given size.
func decode(body []byte, piece int) (content []byte, rest int, trailer int, err error) {
	var c httpwire.Chunks
	c.Reset()
	at := 0
	for limit := piece; ; {
		got, n, done, err := c.Next(body[at:min(limit, len(body))])
		content = append(content, got...)
		at += n
		switch {
		case errors.Is(err, httpwire.ErrIncomplete) || err == nil && n == 0 && !done:
			if limit >= len(body) {
				return content, at, 0, io.ErrUnexpectedEOF
			}
			limit += piece
		case err != nil:
			return content, at, 0, err
		case done:
			return content, at, len(c.Trailer), nil
		}
	}
}

func TestChunks(t *testing.T) {
	for body, want := range map[string]string{
		"0\r\n\r\n":                              "",
		"5\r\nhello\r\n0\r\n\r\n":                "hello",
		"5;a=b\r\nhello\r\n1 \r\n!\r\n0\r\n\r\n": "hello!",
		"A\r\n0123456789\r\n0\r\nSum: 1\r\n\r\n": "0123456789",
	} {
		for piece := 1; piece <= len(body); piece++ {
			got, n, _, err := decode([]byte(body+"next"), piece)
			if string(got) != want || n != len(body) || err != nil {
				t.Errorf("%q in pieces of %d: %q, %d, %v", body, piece, got, n, err)
			}
		}
	}
	for _, body := range []string{
		"\r\n", "g\r\n", "-1\r\n", "1\r\nab\r\n", "1\r\nab", "1\nab", "10000000000000000\r\n", "1;\nx\r\na\r\n", "1;\x00\r\na\r\n",
		strings.Repeat("1;"+strings.Repeat("x", 900)+"\r\na\r\n", 40) + "0\r\n\r\n", strings.Repeat("1", 2000), "0\r\nA b\r\n\r\n",
	} {
		if got, _, _, err := decode([]byte(body), len(body)); !errors.Is(err, httpwire.ErrMalformed) {
			t.Errorf("%.30q: %q, %v; want ErrMalformed", body, got, err)
		}
	}
}

// Whatever is accepted is read alike by net/http.
func FuzzRequest(f *testing.F) {
	f.Add([]byte("GET /a?b HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"))
	f.Add([]byte("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"))
	f.Add([]byte("GET / HTTP/1.0\r\nConnection: close, x\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var r httpwire.Request
		n, err := r.Parse(b)
		if err != nil {
			return
		}
		std, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(b[:n])))
		if err != nil {
			return // stricter about names and targets
		}
		length := r.Length
		if length == httpwire.Chunked {
			length = -1
		}
		if std.Method != string(r.Method) || std.RequestURI != string(r.Target) || std.ContentLength != length {
			t.Errorf("%q is %+v, net/http reads %+v", b, r, std)
		}
		for _, field := range r.Fields {
			switch name := textproto.CanonicalMIMEHeaderKey(string(field.Name)); name {
			case "Host", "Transfer-Encoding", "Trailer", "Content-Length":
			default:
				found := false
				for _, v := range std.Header[name] {
					found = found || v == string(field.Value)
				}
				if !found {
					t.Errorf("%q: %s: %q, net/http has %q", b, name, field.Value, std.Header[name])
				}
			}
		}
	})
}

// Whatever is accepted is the same content for net/http, in pieces of any size.
func FuzzChunks(f *testing.F) {
	f.Add([]byte("5\r\nhello\r\n0\r\n\r\n"), uint8(3))
	f.Add([]byte("5;a=b\r\nhello\r\n0\r\nA: b\r\n\r\n"), uint8(1))
	f.Fuzz(func(t *testing.T, b []byte, piece uint8) {
		content, n, _, err := decode(b, max(int(piece), 1))
		if err != nil {
			return
		}
		std, err := io.ReadAll(httputil.NewChunkedReader(bytes.NewReader(b[:n])))
		if err != nil || !bytes.Equal(std, content) {
			t.Errorf("%q: %q, net/http reads %q, %v", b, content, std, err)
		}
	})
}

var usualHead = []byte("GET /api/users/17?full=1 HTTP/1.1\r\nHost: app.example\r\nUser-Agent: bench/1.0\r\nAccept: */*\r\nAccept-Encoding: gzip\r\n\r\n")

// Heads and chunks are read where they lie.
func TestNoAllocations(t *testing.T) {
	var req httpwire.Request
	var resp httpwire.Response
	var chunks httpwire.Chunks
	answer := []byte("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\nDate: Sat, 21 Nov 2026 00:00:00 GMT\r\n\r\n")
	body := []byte("5\r\nhello\r\n0\r\n\r\n")
	if n := testing.AllocsPerRun(100, func() {
		_, err := req.Parse(usualHead)
		if err == nil {
			_, err = resp.Parse(answer, false)
		}
		chunks.Reset()
		for at, done := 0, false; err == nil && !done; {
			var n int
			_, n, done, err = chunks.Next(body[at:])
			at += n
		}
		if err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("%v allocations for an exchange", n)
	}
}

func BenchmarkRequest(b *testing.B) {
	var r httpwire.Request
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.Parse(usualHead); err != nil {
			b.Fatal(err)
		}
	}
}

// TestChunksSkip: content that goes another way counts as content, and the chunk's end is still checked.
func TestChunksSkip(t *testing.T) {
	for rest, want := range map[string]error{"\r\n0\r\n\r\n": nil, "x\r\n0\r\n\r\n": httpwire.ErrMalformed} {
		var c httpwire.Chunks
		if c.Left() != 0 {
			t.Errorf("%d bytes are left of no chunk", c.Left())
		}
		if content, n, _, err := c.Next([]byte("a\r\nhi")); err != nil || n != 5 || string(content) != "hi" || c.Left() != 8 {
			t.Fatalf("%q in %d bytes, %v, %d left", content, n, err, c.Left())
		}
		c.Skip(3)
		c.Skip(c.Left())
		if _, _, done, err := c.Next([]byte(rest)); !errors.Is(err, want) || done != (want == nil) || c.Left() != 0 {
			t.Errorf("%q: done %v, %v", rest, done, err)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("more was skipped than is left")
		}
	}()
	new(httpwire.Chunks).Skip(1)
}
