package http3_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/quic-go/qpack"
	"github.com/quic-go/quic-go"
	quichttp3 "github.com/quic-go/quic-go/http3"
	"github.com/quic-go/quic-go/quicvarint"
)

// Types of frames, and of the stream that begins with SETTINGS (RFC 9114, sections 6.2.1 and 7.2).
const (
	frameData     = 0
	frameHeaders  = 1
	frameSettings = 4
	streamControl = 0
)

func appendFrame(dst []byte, kind uint64, payload []byte) []byte {
	return append(quicvarint.Append(quicvarint.Append(dst, kind), uint64(len(payload))), payload...)
}

// fields encodes names and values.
func fields(t *testing.T, pairs ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	enc := qpack.NewEncoder(&b)
	for i := 0; i < len(pairs); i += 2 {
		if err := enc.WriteField(qpack.HeaderField{Name: pairs[i], Value: pairs[i+1]}); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

// dialRaw connects, and sends SETTINGS.
func (w *world) dialRaw() *quic.Conn {
	w.t.Helper()
	conn, err := quic.DialAddr(context.Background(), w.gw.Addr("web"), w.tls(), &quic.Config{})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = conn.CloseWithError(0, "") })
	control, err := conn.OpenUniStream()
	if err == nil {
		_, err = control.Write(appendFrame([]byte{streamControl}, frameSettings, nil))
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return conn
}

// TestMalformedRequests: none of them reaches the server as it was sent, and the connection lives on.
func TestMalformedRequests(t *testing.T) {
	w := run(t, standard)
	conn := w.dialRaw()
	usual := []string{":method", "POST", ":scheme", "https", ":authority", "localhost", ":path", "/sum"}
	for name, c := range map[string]struct {
		head []string
		body string
	}{
		"upper case":                   {append(usual[:8:8], "Name", "x"), ""},
		"no path":                      {usual[:6], ""},
		"pseudo field behind a field":  {append([]string{"a", "b"}, usual...), ""},
		"path twice":                   {append(usual[:8:8], ":path", "/"), ""},
		"unknown pseudo field":         {append(usual[:8:8], ":name", "x"), ""},
		"two lengths":                  {append(usual[:8:8], "content-length", "1", "content-length", "2"), "ab"},
		"no number":                    {append(usual[:8:8], "content-length", "+2"), "ab"},
		"less content than length":     {append(usual[:8:8], "content-length", "3"), "ab"},
		"more content than length":     {append(usual[:8:8], "content-length", "1"), "ab"},
		"more content, in frames":      {append(usual[:8:8], "content-length", "2"), "ab|c"},
		"connection":                   {append(usual[:8:8], "connection", "close"), ""},
		"transfer-encoding":            {append(usual[:8:8], "transfer-encoding", "chunked"), "0\r\n\r\n"},
		"upgrade":                      {append(usual[:8:8], "upgrade", "websocket"), ""},
		"te":                           {append(usual[:8:8], "te", "gzip"), ""},
		"line break":                   {append(usual[:8:8], "a", "b\r\nc: d"), ""},
		"two hosts":                    {append(usual[:8:8], "host", "other"), ""},
		"blank in the path":            {[]string{":method", "POST", ":scheme", "https", ":authority", "localhost", ":path", "/a b"}, ""},
		"absolute path":                {[]string{":method", "POST", ":scheme", "https", ":authority", "localhost", ":path", "http://other/"}, ""},
		"no method":                    {[]string{":method", "PO ST", ":scheme", "https", ":authority", "localhost", ":path", "/"}, ""},
		"CONNECT with a path":          {[]string{":method", "CONNECT", ":authority", "localhost", ":path", "/"}, ""},
		"user in the authority":        {[]string{":method", "POST", ":scheme", "https", ":authority", "a@localhost", ":path", "/"}, ""},
		"dot segment":                  {[]string{":method", "POST", ":scheme", "https", ":authority", "localhost", ":path", "/a/../b"}, ""},
		"extended CONNECT, no path":    {[]string{":method", "CONNECT", ":protocol", "websocket", ":scheme", "https", ":authority", "localhost"}, ""},
		"extended CONNECT with length": {[]string{":method", "CONNECT", ":protocol", "websocket", ":scheme", "https", ":authority", "localhost", ":path", "/", "content-length", "2"}, "ab"},
		"extended CONNECT to nothing":  {[]string{":method", "CONNECT", ":protocol", "", ":scheme", "https", ":authority", "localhost", ":path", "/"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			stream, err := conn.OpenStreamSync(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			b := appendFrame(nil, frameHeaders, fields(t, c.head...))
			for part := range strings.SplitSeq(c.body, "|") {
				if part != "" {
					b = appendFrame(b, frameData, []byte(part))
				}
			}
			_, _ = stream.Write(b)
			_ = stream.Close()
			answer, err := io.ReadAll(stream)
			e, reset := errors.AsType[*quic.StreamError](err)
			switch {
			case reset && e.Remote:
			case err == nil && refusal(t, answer):
			default:
				t.Errorf("%q, %v", answer, err)
			}
		})
	}
	for len(w.started) > 0 { // the head of a request may have reached the server before its end was wrong
		if path := <-w.started; path != "/sum" {
			t.Errorf("the server has got %s", path)
		}
	}
	stream, err := conn.OpenStreamSync(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	_, _ = stream.Write(appendFrame(nil, frameHeaders, fields(t, ":method", "GET", ":scheme", "https", ":authority", "localhost", ":path", "/")))
	_ = stream.Close()
	if answer, err := io.ReadAll(stream); err != nil || !strings.Contains(string(answer), "GET HTTP/1.1") {
		t.Errorf("after them: %q, %v", answer, err)
	}
}

// TestLengthBeyondAllBounds: a head that QUIC's package lets pass and the gateway does not is refused, before the server gets to know of it.
func TestLengthBeyondAllBounds(t *testing.T) {
	w := run(t, standard)
	stream := begin(t, w.dialRaw(), ":method", "POST", ":scheme", "https", ":authority", "localhost", ":path", "/early",
		"content-length", "9223372036854775807")
	if answer, err := io.ReadAll(stream); err != nil || !refusal(t, answer) {
		t.Errorf("%q, %v", answer, err)
	}
	if len(w.started) > 0 {
		t.Errorf("the server has got %s", <-w.started)
	}
}

// refusal reports whether an answer begins with a status of 4xx.
func refusal(t *testing.T, answer []byte) bool {
	t.Helper()
	r := bytes.NewReader(answer)
	kind, err := quicvarint.Read(r)
	if err != nil || kind != frameHeaders {
		return false
	}
	n, err := quicvarint.Read(r)
	if err != nil || n > uint64(r.Len()) {
		return false
	}
	block := make([]byte, n)
	_, _ = io.ReadFull(r, block)
	f, err := qpack.NewDecoder().Decode(block)()
	return err == nil && f.Name == ":status" && f.Value[0] == '4'
}

// TestLargeHead: a head beyond the limit is answered 431, and so is one of too many fields.
func TestLargeHead(t *testing.T) {
	w := run(t, standard)
	tr := w.transport()
	for name, add := range map[string]func(h map[string][]string){
		"bytes":  func(h map[string][]string) { h["Long"] = []string{strings.Repeat("x", 2<<20)} },
		"fields": func(h map[string][]string) { h["Many"] = strings.Split(strings.Repeat("x,", 300), ",") },
	} {
		r := request(t, w.url("/"))
		add(r.Header)
		if _, resp := do(t, tr, r); resp.StatusCode != 431 {
			t.Errorf("%s: %s", name, resp.Status)
		}
	}
}

// TestNoEarlyData: a client that resumes a session sends nothing in its first flight.
func TestNoEarlyData(t *testing.T) {
	w := run(t, standard)
	w.client.ClientSessionCache = tls.NewLRUClientSessionCache(10)
	for i := range 2 {
		tr := w.transport()
		r := request(t, w.url("/"))
		r.Method = quichttp3.MethodGet0RTT
		if body, resp := do(t, tr, r); !strings.HasPrefix(body, "GET ") || resp.TLS.DidResume != (i > 0) {
			t.Errorf("%q, resumed %v", body, resp.TLS.DidResume)
		}
		conns, _ := w.sessions()
		if len(conns) != i+1 {
			t.Errorf("%d connections", len(conns))
		}
	}
}
