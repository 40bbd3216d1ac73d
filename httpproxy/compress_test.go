package httpproxy_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/headpond/headpond/httpproxy"
)

// decoded reads content in an encoding.
func decoded(t testing.TB, encoding string, from io.Reader) io.Reader {
	t.Helper()
	switch encoding {
	case "gzip":
		r, err := gzip.NewReader(from)
		if err != nil {
			t.Fatal(err)
		}
		return r
	case "zstd":
		r, err := zstd.NewReader(from, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(8<<20), zstd.WithDecoderLowmem(true))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.Close)
		return r
	}
	return from
}

// compressible is content of about n bytes, some of it random.
func compressible(n int) []byte {
	r := rand.New(rand.NewPCG(1, 2))
	var b bytes.Buffer
	for b.Len() < n {
		_, _ = fmt.Fprintf(&b, `{"id":%d,"name":"user","text":"some of this text comes again"},`, r.Uint64())
	}
	return b.Bytes()
}

var (
	plainContent = compressible(5000)
	largeContent = compressible(300_000)
	noise        = func() []byte {
		b, rng := make([]byte, 200_000), rand.NewChaCha8([32]byte{})
		_, _ = rng.Read(b)
		return b
	}()
)

// answersToCompress is a backend whose answers are named by the path.
func answersToCompress(w http.ResponseWriter, r *http.Request) {
	h, body, status := w.Header(), plainContent, 200
	h.Set("Content-Type", "application/json; charset=utf-8")
	h.Set("ETag", `"v1"`)
	h.Set("Accept-Ranges", "bytes")
	switch r.URL.Path {
	case "/small":
		body = body[:1023]
	case "/least":
		body = body[:1024]
	case "/large":
		body = largeContent
	case "/noise":
		body = noise
	case "/image":
		h.Set("Content-Type", "image/png")
	case "/untyped":
		h["Content-Type"] = nil
	case "/events":
		h.Set("Content-Type", "text/event-stream")
	case "/encoded":
		h.Set("Content-Encoding", "br")
	case "/fixed":
		h.Set("Cache-Control", "max-age=1, No-Transform")
	case "/digest":
		h.Set("Repr-Digest", "sha-256=:x:")
	case "/varies":
		h.Set("Vary", "Cookie, accept-encoding")
	case "/weak":
		h.Set("ETag", `W/"v1"`)
	case "/part":
		h.Set("Content-Range", "bytes 0-4999/9999")
		status = 206
	case "/same":
		status, body = 304, nil
	case "/none":
		status, body = 204, nil
	case "/error":
		status = 500
	case "/empty":
		_ = http.NewResponseController(w).Flush()
		return
	case "/trailer":
		h.Set("Trailer", "Repr-Digest, X-Took")
		_, _ = w.Write(body)
		h.Set("Repr-Digest", "sha-256=:x:")
		h.Set("X-Took", "1s")
		return
	case "/pieces":
		for i := 0; i < len(body); i += 700 {
			_, _ = w.Write(body[i:min(i+700, len(body))])
			_ = http.NewResponseController(w).Flush()
		}
		return
	}
	if status != 204 && status != 304 {
		h.Set("Content-Length", strconv.Itoa(len(body)))
	}
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(body)
	}
}

// compressionCases are requests of TestCompression. No encoding: the answer passes unchanged, with the ETag "v1".
var compressionCases = []struct {
	path, accept, encoding string
	method, cache, has     string // of the request; has is its If-None-Match
	vary, etag             string // of the answer
}{
	{path: "/", accept: "gzip", encoding: "gzip"},
	{path: "/", accept: "zstd", encoding: "zstd"},
	{path: "/", accept: "gzip, deflate, br, zstd", encoding: "zstd"},
	{path: "/", accept: "GZip;Q=1.000 , zstd; q=0.999", encoding: "gzip"},
	{path: "/", accept: "x-gzip", encoding: "gzip"},
	{path: "/", accept: "*", encoding: "zstd"},
	{path: "/", accept: "*;q=0.1, zstd;q=0", encoding: "gzip"},
	{path: "/", accept: "identity;q=0.5, gzip;q=0.5", encoding: "gzip"},
	{path: "/", accept: "identity, gzip;q=0.5", vary: "Accept-Encoding"},
	{path: "/", accept: "gzip;q=0, *;q=0", vary: "Accept-Encoding"},
	{path: "/", accept: "gzip;q=2, zstd;q=0.1234, br", vary: "Accept-Encoding"},
	{path: "/", accept: "gzip;level=1", vary: "Accept-Encoding"},
	{path: "/", vary: "Accept-Encoding"},
	{path: "/", accept: "gzip", cache: "no-transform", vary: "Accept-Encoding"},
	{path: "/", accept: "gzip", method: "HEAD", encoding: "gzip"},
	{path: "/small", accept: "gzip", method: "HEAD", vary: "Accept-Encoding"},
	{path: "/small", accept: "gzip", vary: "Accept-Encoding"},
	{path: "/least", accept: "gzip", encoding: "gzip"},
	{path: "/large", accept: "gzip", encoding: "gzip"},
	{path: "/large", accept: "zstd", encoding: "zstd"},
	{path: "/noise", accept: "gzip", encoding: "gzip"},
	{path: "/noise", accept: "zstd", encoding: "zstd"},
	{path: "/pieces", accept: "zstd", encoding: "zstd"},
	{path: "/pieces", accept: "gzip", encoding: "gzip"},
	{path: "/error", accept: "gzip", encoding: "gzip"},
	{path: "/weak", accept: "gzip", encoding: "gzip"},
	{path: "/weak", vary: "Accept-Encoding", etag: `W/"v1"`},
	{path: "/varies", accept: "gzip", encoding: "gzip", vary: "Cookie, accept-encoding"},
	{path: "/image", accept: "gzip"},
	{path: "/untyped", accept: "gzip"},
	{path: "/events", accept: "gzip"},
	{path: "/encoded", accept: "gzip"},
	{path: "/fixed", accept: "gzip"},
	{path: "/digest", accept: "gzip"},
	{path: "/part", accept: "gzip"},
	{path: "/none", accept: "gzip"},
	{path: "/empty", accept: "gzip", encoding: "gzip"},
	{path: "/empty", accept: "zstd", encoding: "zstd"},
	{path: "/trailer", accept: "gzip", encoding: "gzip"},
	{path: "/same", accept: "gzip", has: `W/"v1"`, etag: `W/"v1"`, vary: "Accept-Encoding"},
	{path: "/same", accept: "gzip", has: `"v0", W/"v1"`, etag: `W/"v1"`, vary: "Accept-Encoding"},
	{path: "/same", has: `W/"v1"`, etag: `W/"v1"`, vary: "Accept-Encoding"},
	{path: "/same", accept: "gzip", has: `"v1"`},
	{path: "/same", accept: "gzip", has: `W/"v1", "v1"`},
	{path: "/same", accept: "gzip", has: `*`},
	{path: "/same", accept: "gzip"},
	{path: "/same"},
	{path: "/rules/varies", accept: "gzip", encoding: "gzip"},
	{path: "/off/", accept: "gzip"},
}

// TestCompression of answers of servers of both protocols for clients of both: which are compressed, how, and what their header says.
func TestCompression(t *testing.T) {
	backends := map[string]*httpproxy.Upstream{
		"HTTP/1.1": newUpstream(t, serveHTTP(t, answersToCompress)),
		"HTTP/2":   serveHTTP2(t, answersToCompress).upstream(t, httpproxy.ProtocolH2C),
	}
	for server, up := range backends {
		p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{
			{Upstream: up, Compression: &httpproxy.Compression{Types: []string{"text/*", "Application/JSON"}}},
			{Path: "/off", Upstream: up, StripPrefix: true},
			{Path: "/rules", Upstream: up, StripPrefix: true, Compression: &httpproxy.Compression{}, ResponseHeaders: httpproxy.HeaderRules{Remove: []string{"Vary"}}},
		}})
		for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
			client := clientFor(t, proto)
			client.Transport.(*http.Transport).DisableCompression = true
			for i := range compressionCases {
				tc := &compressionCases[i]
				t.Run(fmt.Sprint(proto, " to ", server, " ", tc.method, tc.path, " ", tc.accept), func(t *testing.T) {
					method := tc.method
					if method == "" {
						method = http.MethodGet
					}
					req, err := http.NewRequest(method, p.url+tc.path, nil)
					if err != nil {
						t.Fatal(err)
					}
					if tc.accept != "" {
						req.Header.Set("Accept-Encoding", tc.accept)
					}
					if tc.cache != "" {
						req.Header.Set("Cache-Control", tc.cache)
					}
					req.Header.Set("TE", "trailers")
					if tc.has != "" {
						req.Header.Set("If-None-Match", tc.has)
					}
					checkCompressed(t, client, req, i)
				})
			}
		}
		eventually(t, "all compressors are given back", func() bool { return httpproxy.CompressorsInUse() == 0 })
		if got := counted(p.Stats().Traffic[0]); got["/ http_compressed_total gzip"] == 0 || got["/ http_compressed_bytes_total before"] <= got["/ http_compressed_bytes_total after"] {
			t.Errorf("counted %v", got)
		}
	}
}

// checkCompressed sends the request of a case.
func checkCompressed(t *testing.T, client *http.Client, req *http.Request, i int) {
	tc := compressionCases[i]
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	encoding, etag, vary := tc.encoding, tc.etag, tc.vary
	if encoding != "" {
		etag = `W/"v1"`
		if vary == "" {
			vary = "Accept-Encoding"
		}
	} else if etag == "" {
		etag = `"v1"`
	}
	if tc.path == "/encoded" {
		encoding = "br"
	}
	h := resp.Header
	if h.Get("Content-Encoding") != encoding || h.Get("ETag") != etag || strings.Join(h["Vary"], "|") != vary {
		t.Errorf("Content-Encoding %q, ETag %q, Vary %q", h.Get("Content-Encoding"), h.Get("ETag"), h["Vary"])
	}
	whole := tc.encoding == "" && resp.StatusCode != 204 && resp.StatusCode != 304
	if (h.Get("Content-Length") != "") != whole || whole && h.Get("Accept-Ranges") == "" || tc.encoding != "" && h.Get("Accept-Ranges") != "" {
		t.Errorf("Content-Length %q, Accept-Ranges %q", h.Get("Content-Length"), h.Get("Accept-Ranges"))
	}
	if tc.method == http.MethodHead || !whole && tc.encoding == "" {
		return
	}
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if tc.path == "/trailer" && (resp.Trailer.Get("X-Took") != "1s" || resp.Trailer.Get("Repr-Digest") != "") {
		t.Errorf("trailers %v", resp.Trailer)
	}
	if tc.encoding != "" && len(raw) == 0 { // which this package's decoder takes for empty content, and others for broken
		t.Error("no frame")
	}
	got, err := io.ReadAll(decoded(t, tc.encoding, bytes.NewReader(raw)))
	if err != nil {
		t.Fatal(err)
	}
	w := &recorded{header: http.Header{}}
	answersToCompress(w, req)
	if want := w.body.Bytes(); !bytes.Equal(got, want) && tc.path != "/off/" {
		t.Errorf("%d bytes of content, want %d", len(got), len(want))
	}
}

// recorded is what a handler answers.
type recorded struct {
	header http.Header
	body   bytes.Buffer
}

func (w *recorded) Header() http.Header         { return w.header }
func (w *recorded) WriteHeader(int)             {}
func (w *recorded) Write(b []byte) (int, error) { return w.body.Write(b) }

// TestCompressionFlushes: each piece of an answer reaches the client before the server writes the next.
func TestCompressionFlushes(t *testing.T) {
	next := make(chan struct{})
	handler := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		for i := range 5 {
			_, _ = fmt.Fprintf(w, "piece %d\n", i)
			_ = http.NewResponseController(w).Flush()
			<-next
		}
	}
	for server, up := range map[string]*httpproxy.Upstream{
		"HTTP/1.1": newUpstream(t, serveHTTP(t, handler)),
		"HTTP/2":   serveHTTP2(t, handler).upstream(t, httpproxy.ProtocolH2C),
	} {
		p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Upstream: up, Compression: &httpproxy.Compression{}}}})
		for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
			for _, encoding := range httpproxy.Compressions() {
				t.Run(fmt.Sprint(proto, " to ", server, " ", encoding), func(t *testing.T) {
					req, err := http.NewRequest(http.MethodGet, p.url, nil)
					if err != nil {
						t.Fatal(err)
					}
					req.Header.Set("Accept-Encoding", encoding)
					resp, err := clientFor(t, proto).Do(req)
					if err != nil || resp.Header.Get("Content-Encoding") != encoding {
						t.Fatal(resp, err)
					}
					defer resp.Body.Close()
					from := decoded(t, encoding, resp.Body)
					for i := range 5 {
						got := make([]byte, len("piece 0\n"))
						if _, err := io.ReadFull(from, got); err != nil || string(got) != fmt.Sprintf("piece %d\n", i) {
							t.Fatalf("%q %v", got, err)
						}
						next <- struct{}{}
					}
					if rest, err := io.ReadAll(from); err != nil || len(rest) > 0 {
						t.Errorf("%q %v", rest, err)
					}
				})
			}
		}
	}
}

// TestCompressionOfABrokenAnswer: the client must not take the received part for the whole.
func TestCompressionOfABrokenAnswer(t *testing.T) {
	const head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
	part := compressible(100_000)
	for name, answer := range map[string]string{
		"length":  head + "Content-Length: 1000000\r\n\r\n" + string(part),
		"chunks":  head + "Transfer-Encoding: chunked\r\n\r\n" + fmt.Sprintf("%x\r\n%s\r\n", len(part), part),
		"chunk":   head + "Transfer-Encoding: chunked\r\n\r\n" + fmt.Sprintf("%x\r\n%s", len(part)+1, part),
		"framing": head + "Transfer-Encoding: chunked\r\n\r\n" + fmt.Sprintf("%x\r\n%s\r\nxyz\r\n", len(part), part),
	} {
		up := newUpstream(t, serveRaw(t, func(c net.Conn) {
			_ = readRequest(bufio.NewReader(c))
			_, _ = io.WriteString(c, answer)
		}))
		p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Upstream: up, Compression: &httpproxy.Compression{}}}})
		for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
			for _, encoding := range httpproxy.Compressions() {
				t.Run(fmt.Sprint(name, " ", proto, " ", encoding), func(t *testing.T) {
					req, err := http.NewRequest(http.MethodGet, p.url, nil)
					if err != nil {
						t.Fatal(err)
					}
					req.Header.Set("Accept-Encoding", encoding)
					resp, err := clientFor(t, proto).Do(req)
					if err != nil {
						return // broken off before the head was sent, of HTTP/2
					}
					defer resp.Body.Close()
					if n, err := io.Copy(io.Discard, resp.Body); err == nil {
						t.Errorf("%d bytes end well", n)
					}
				})
			}
		}
	}
	eventually(t, "all compressors are given back", func() bool { return httpproxy.CompressorsInUse() == 0 })
}

// TestCompressionForHTTP10: a client of HTTP/1.0 gets the answer unchanged.
func TestCompressionForHTTP10(t *testing.T) {
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Upstream: newUpstream(t, serveHTTP(t, answersToCompress)), Compression: &httpproxy.Compression{}}}})
	c, br := dialRaw(t, p.addr)
	resp, body := roundTrip(t, c, br, "GET / HTTP/1.0\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n")
	if resp.Header.Get("Content-Encoding") != "" || resp.Header.Get("Vary") != "Accept-Encoding" || body != string(plainContent) {
		t.Errorf("%s %q and %d bytes", resp.Status, resp.Header, len(body))
	}
}

// TestCompressionOfUnframedAnswers: the end of the server's connection is that of the answer.
func TestCompressionOfUnframedAnswers(t *testing.T) {
	up := newUpstream(t, serveRaw(t, func(c net.Conn) {
		_ = readRequest(bufio.NewReader(c))
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n"+string(plainContent))
	}))
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Upstream: up, Compression: &httpproxy.Compression{}}}})
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		req, err := http.NewRequest(http.MethodGet, p.url, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept-Encoding", "zstd")
		resp, err := clientFor(t, proto).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if got, err := io.ReadAll(decoded(t, resp.Header.Get("Content-Encoding"), resp.Body)); err != nil || !bytes.Equal(got, plainContent) || resp.Header.Get("Content-Encoding") == "" {
			t.Errorf("%s: %d bytes, %v", proto, len(got), err)
		}
	}
}

// TestCompressionWithinItsMemory: without a free compressor an answer passes unchanged, and is counted.
func TestCompressionWithinItsMemory(t *testing.T) {
	next := map[string]chan struct{}{"/1": make(chan struct{}), "/2": make(chan struct{}), "/3": make(chan struct{})}
	up := newUpstream(t, serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		_, _ = io.WriteString(w, "begins ")
		_ = http.NewResponseController(w).Flush()
		<-next[r.URL.Path]
		_, _ = io.WriteString(w, "ends")
	}))
	p := startProxy(t, httpproxy.Config{ // for one
		Memory: httpproxy.NewMemory(16 << 20), Routes: []httpproxy.Route{{Upstream: up, Compression: &httpproxy.Compression{}}},
	})
	client := clientFor(t, "HTTP/2.0")
	begin := func(path, want string) *http.Response {
		t.Helper()
		req, err := http.NewRequest(http.MethodGet, p.url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept-Encoding", "zstd")
		resp, err := client.Do(req)
		if err != nil || resp.Header.Get("Content-Encoding") != want {
			t.Fatalf("%v %v, want the encoding %q", resp, err, want)
		}
		return resp
	}
	end := func(resp *http.Response) {
		t.Helper()
		close(next[resp.Request.URL.Path])
		got, err := io.ReadAll(decoded(t, resp.Header.Get("Content-Encoding"), resp.Body))
		if resp.Body.Close(); err != nil || string(got) != "begins ends" {
			t.Errorf("%q %v", got, err)
		}
	}
	eventually(t, "earlier tests have given theirs back", func() bool { return httpproxy.CompressorsInUse() == 0 })
	first := begin("/1", "zstd")
	if held := p.Stats().Buffered; held < 1<<20 {
		t.Errorf("%d bytes are held, with a compressor", held)
	}
	end(begin("/2", ""))
	end(first)
	eventually(t, "the compressor is given back", func() bool { return httpproxy.CompressorsInUse() == 0 })
	end(begin("/3", "zstd"))
	if got := counted(p.Stats().Traffic[0]); got["/ http_compression_busy_total "] != 1 || got["/ http_compressed_total zstd"] != 2 {
		t.Errorf("counted %v", got)
	}
}

// TestCompressionMistakes: what a route's Compression cannot be.
func TestCompressionMistakes(t *testing.T) {
	up := newUpstream(t, "127.0.0.1:1")
	for want, c := range map[string]httpproxy.Compression{
		"encoding":     {Encodings: []string{"br"}},
		"twice":        {Encodings: []string{"gzip", "gzip"}},
		"media type":   {Types: []string{"json"}},
		"*/*":          {Types: []string{"*/*"}},
		"one by one":   {Types: []string{"text/Event-Stream"}},
		"gRPC":         {Types: []string{"application/grpc+proto"}},
		"negative Min": {MinBytes: -1},
	} {
		_, err := httpproxy.New(httpproxy.Config{Routes: []httpproxy.Route{{Upstream: up, Compression: &c}}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// TestCompressionOfNginx: its answers are compressed, unless nginx does that; conditions and ranges work.
func TestCompressionOfNginx(t *testing.T) {
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Upstream: newUpstream(t, startNginx(t)), Compression: &httpproxy.Compression{}}}})
	content := bytes.Repeat([]byte("0123456789"), 100_000)
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		client, etag := clientFor(t, proto), ""
		for _, tc := range []struct {
			accept, name, encoding string
			status                 int
			want                   []byte
		}{
			{accept: "zstd", encoding: "zstd", status: 200, want: content},
			{accept: "gzip", encoding: "gzip", status: 200, want: content}, // by nginx
			{accept: "zstd", name: "If-None-Match", status: 304},
			{accept: "zstd", name: "Range", status: 206, want: content[5:15]},
		} {
			req, err := http.NewRequest(http.MethodGet, p.url+"/file", nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Accept-Encoding", tc.accept)
			switch tc.name {
			case "If-None-Match":
				req.Header.Set(tc.name, etag)
			case "Range":
				req.Header.Set(tc.name, "bytes=5-14")
			}
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(decoded(t, resp.Header.Get("Content-Encoding"), resp.Body))
			resp.Body.Close()
			if err != nil || resp.StatusCode != tc.status || resp.Header.Get("Content-Encoding") != tc.encoding || !bytes.Equal(got, tc.want) {
				t.Errorf("%s %s %s: %s %q and %d bytes, %v", proto, tc.accept, tc.name, resp.Status, resp.Header, len(got), err)
			}
			if tc.status == 304 && resp.Header.Get("ETag") != etag {
				t.Errorf("%s: the ETag of 304 is %q, want %q", proto, resp.Header.Get("ETag"), etag)
			}
			if etag = resp.Header.Get("ETag"); tc.encoding != "" && !strings.HasPrefix(etag, "W/") {
				t.Errorf("%s: the ETag is %q", proto, etag)
			}
		}
	}
}

// TestCompressionOfNotModified: the length and the ranges that a server states in a 304 are not those of the compressed answer that
// the client has.
func TestCompressionOfNotModified(t *testing.T) {
	backend := serveRaw(t, func(c net.Conn) {
		for br := bufio.NewReader(c); ; {
			if _, err := http.ReadRequest(br); err != nil {
				return
			}
			_, _ = io.WriteString(c, "HTTP/1.1 304 Not Modified\r\nETag: \"e\"\r\nContent-Length: 5000\r\nAccept-Ranges: bytes\r\n\r\n")
		}
	})
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Upstream: newUpstream(t, backend), Compression: &httpproxy.Compression{}}}})
	for etag, want := range map[string]string{`"e"`: "5000 bytes", `W/"e"`: " "} {
		c, br := dialRaw(t, p.addr)
		resp, _ := roundTrip(t, c, br, "GET / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\nIf-None-Match: "+etag+"\r\n\r\n")
		if got := resp.Header.Get("Content-Length") + " " + resp.Header.Get("Accept-Ranges"); got != want || resp.Header.Get("ETag") != etag {
			t.Errorf("asked about %s: %q and the ETag %s", etag, got, resp.Header.Get("ETag"))
		}
	}
}
