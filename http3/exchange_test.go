package http3_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync"
	"testing"

	quichttp3 "github.com/quic-go/quic-go/http3"
)

var engines = []string{"uring", "epoll", "goroutine"}

// everywhere runs a test on each engine, before a server of HTTP/1.1 and one of HTTP/2.
func everywhere(t *testing.T, test func(t *testing.T, w *world)) {
	for _, engine := range engines {
		for _, version := range []string{"h1", "h2c"} {
			t.Run(engine+" "+version, func(t *testing.T) {
				test(t, run(t, standard, "{engine}", engine, "{version}", version))
			})
		}
	}
}

func TestSmallRequests(t *testing.T) {
	everywhere(t, func(t *testing.T, w *world) {
		tr := w.transport()
		body, resp := get(t, tr, w.url("/a?b=c"))
		if !strings.HasPrefix(body, "GET HTTP/") || !strings.HasSuffix(body, w.gw.Addr("web")+" /a?b=c https ") {
			t.Errorf("the server has seen %q", body)
		}
		if resp.Proto != "HTTP/3.0" || resp.Header.Get("Alt-Svc") != "" || resp.Header["Content-Type"] != nil || len(resp.Header["Date"]) != 1 {
			t.Errorf("answer %s %v", resp.Proto, resp.Header)
		}
		r, _ := http.NewRequest(http.MethodPost, w.url("/"), strings.NewReader("some text"))
		if body, _ = do(t, tr, r); !strings.HasSuffix(body, " / https some text") {
			t.Errorf("the server has seen %q", body)
		}
		r, _ = http.NewRequest(http.MethodHead, w.url("/large"), nil)
		r.Header.Set("Size", "1000")
		if body, resp = do(t, tr, r); body != "" || resp.ContentLength != 1000 {
			t.Errorf("HEAD: %q, %v", body, resp.Header)
		}
	})
}

func TestLargeBodies(t *testing.T) {
	large := int64(20 << 20) // more than QUIC's largest window of a connection, 15 MiB
	everywhere(t, func(t *testing.T, w *world) {
		defer func() { large = 4 << 20 }() // once is enough for what takes so long
		tr := w.transport()
		sum := sha256.New()
		for _, length := range []int64{large, -1} {
			sum.Reset()
			large := large
			if length < 0 {
				large = 4 << 20
			}
			r, _ := http.NewRequest(http.MethodPost, w.url("/sum"), io.TeeReader(io.LimitReader(pattern{}, large), sum))
			r.ContentLength = length
			said := fmt.Sprint(length)
			if length < 0 {
				said = ""
				r.Trailer = http.Header{"Check": {" checked"}}
			}
			body, resp := do(t, tr, r)
			want := hex.EncodeToString(sum.Sum(nil))
			if length < 0 {
				want += "checked"
			}
			if body != fmt.Sprintf("%d <nil> %s", large, said) || resp.StatusCode != http.StatusCreated || resp.Trailer.Get("Sum") != want {
				t.Errorf("length %d: %s, %q, trailers %v", length, resp.Status, body, resp.Trailer)
			}
		}
		r, _ := http.NewRequest(http.MethodGet, w.url("/large"), nil)
		r.Header.Set("Size", fmt.Sprint(large))
		resp, err := tr.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		sum.Reset()
		got := sha256.New()
		_, _ = io.Copy(sum, io.LimitReader(pattern{}, large))
		if n, err := io.Copy(got, resp.Body); n != large || err != nil || hex.EncodeToString(got.Sum(nil)) != hex.EncodeToString(sum.Sum(nil)) {
			t.Errorf("%d bytes came, %v", n, err)
		}
	})
}

// TestNothingCrosses: each of many requests at once on few connections gets its own answer.
func TestNothingCrosses(t *testing.T) {
	most := 250
	everywhere(t, func(t *testing.T, w *world) {
		defer func() { most = 50 }() // once is enough for what takes so long
		var all sync.WaitGroup
		var clients []*quichttp3.Transport
		for range 4 {
			tr := w.transport()
			get(t, tr, w.url("/")) // 1,000 requests could delay a handshake for longer than the server waits for its end
			clients = append(clients, tr)
		}
		for _, tr := range clients {
			for i := range most {
				all.Go(func() {
					tag := fmt.Sprintf("%p-%d", tr, i)
					r, _ := http.NewRequest(http.MethodPut, w.url("/"+tag), strings.NewReader(strings.Repeat(tag, i)))
					resp, err := tr.RoundTrip(r)
					if err != nil {
						t.Error(err)
						return
					}
					defer resp.Body.Close()
					body, err := io.ReadAll(resp.Body)
					if err != nil || !strings.HasSuffix(string(body), " /"+tag+" https "+strings.Repeat(tag, i)) {
						t.Errorf("%s: %s, %d bytes, %.200q, %v", tag, resp.Status, len(body), body, err)
					}
				})
			}
		}
		all.Wait()
	})
}

func TestEventsComeAtOnceAndCancelReachesTheServer(t *testing.T) {
	everywhere(t, func(t *testing.T, w *world) {
		ctx, cancel := context.WithCancel(context.Background())
		r, _ := http.NewRequestWithContext(ctx, http.MethodGet, w.url("/events"), nil)
		resp, err := w.transport().RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		for _, event := range []string{"data: 1\n\n", "data: two\n\n"} {
			w.next <- event
			b := make([]byte, len(event))
			if _, err := io.ReadFull(resp.Body, b); err != nil || string(b) != event {
				t.Errorf("%q, %v", b, err)
			}
		}
		cancel()
		<-w.gone
	})
}

func TestClientLeavesInItsUpload(t *testing.T) {
	everywhere(t, func(t *testing.T, w *world) {
		ctx, cancel := context.WithCancel(context.Background())
		up, body := io.Pipe()
		_ = body
		r, _ := http.NewRequestWithContext(ctx, http.MethodPost, w.url("/wait"), up)
		failed := make(chan error, 1)
		tr := w.transport()
		go func() {
			resp, err := tr.RoundTrip(r)
			if err == nil {
				resp.Body.Close()
			}
			failed <- err
		}()
		if _, err := io.WriteString(body, "a part"); err != nil {
			t.Fatal(err)
		}
		<-w.started
		cancel()
		if err := <-failed; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		<-w.gone
		if body, _ := get(t, tr, w.url("/")); !strings.HasPrefix(body, "GET ") { // the connection is as good as before
			t.Errorf("%q", body)
		}
	})
}

// TestAnswerBeforeTheEndOfTheUpload: the client stops its upload without an error.
func TestAnswerBeforeTheEndOfTheUpload(t *testing.T) {
	everywhere(t, func(t *testing.T, w *world) {
		up, body := io.Pipe()
		r, _ := http.NewRequest(http.MethodPost, w.url("/early"), up)
		go func() { _, _ = io.Copy(body, pattern{}) }()
		defer up.Close()
		tr := w.transport()
		if body, resp := do(t, tr, r); resp.StatusCode != http.StatusForbidden || body != "no" {
			t.Errorf("%s %q", resp.Status, body)
		}
		if body, _ := get(t, tr, w.url("/")); !strings.HasPrefix(body, "GET ") {
			t.Errorf("%q", body)
		}
	})
}

func TestInterimAnswers(t *testing.T) {
	everywhere(t, func(t *testing.T, w *world) {
		var links []string
		trace := &httptrace.ClientTrace{Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
			links = append(links, fmt.Sprint(code, h.Get("Link")))
			return nil
		}}
		r, _ := http.NewRequestWithContext(httptrace.WithClientTrace(context.Background(), trace), http.MethodGet, w.url("/hints"), nil)
		body, resp := do(t, w.transport(), r)
		if body != "ok" || resp.Header.Get("Link") != "" || len(links) != 1 || links[0] != "103</a.css>; rel=preload" {
			t.Errorf("%q, %v, interim %q", body, resp.Header, links)
		}
	})
}

// TestConnectIsRefused at once, although its client keeps the stream open.
func TestConnectIsRefused(t *testing.T) {
	w := run(t, standard)
	stream, err := w.dialRaw().OpenStreamSync(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	_, _ = stream.Write(appendFrame(nil, frameHeaders, fields(t, ":method", "CONNECT", ":authority", "elsewhere.example:22")))
	if answer, err := io.ReadAll(stream); err != nil || !refusal(t, answer) || !strings.Contains(string(answer), "CONNECT is not supported") {
		t.Errorf("%q, %v", answer, err)
	}
	select {
	case path := <-w.started:
		t.Errorf("the server has got %s", path)
	default:
	}
}

// TestBothWaysAtOnce: as in gRPC's calls with two streams, each message is answered before the next one is sent, and trailers end the
// answer.
func TestBothWaysAtOnce(t *testing.T) {
	for _, engine := range engines {
		t.Run(engine, func(t *testing.T) {
			w := run(t, standard, "{engine}", engine, "{version}", "h2c")
			up, out := io.Pipe()
			r, _ := http.NewRequest(http.MethodPost, w.url("/echo"), up)
			r.Header.Set("Content-Type", "application/grpc")
			r.Header.Set("Te", "trailers")
			resp, err := w.transport().RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			for i := range 100 {
				message := fmt.Sprintf("message %d", i)
				if _, err := io.WriteString(out, message); err != nil {
					t.Fatal(err)
				}
				b := make([]byte, len(message))
				if _, err := io.ReadFull(resp.Body, b); err != nil || string(b) != message {
					t.Fatalf("%q, %v", b, err)
				}
			}
			_ = out.Close()
			if rest, err := io.ReadAll(resp.Body); err != nil || len(rest) > 0 || resp.Trailer.Get("Grpc-Status") != "0" {
				t.Errorf("%q, %v, trailers %v", rest, err, resp.Trailer)
			}
		})
	}
}

// TestServerBreaksOff: an answer that ends too soon is an error for the client.
func TestServerBreaksOff(t *testing.T) {
	everywhere(t, func(t *testing.T, w *world) {
		r, _ := http.NewRequest(http.MethodGet, w.url("/broken"), nil)
		resp, err := w.transport().RoundTrip(r)
		if err == nil {
			_, err = io.ReadAll(resp.Body)
			resp.Body.Close()
		}
		if e, ok := errors.AsType[*quichttp3.Error](err); !ok || !e.Remote {
			t.Errorf("error %v", err)
		}
	})
}

// TestEarlyAnswerAsTheBodyEnds has the server answer at the moment at which the body ends, on two goroutines.
func TestEarlyAnswerAsTheBodyEnds(t *testing.T) {
	w := run(t, standard, "{engine}", "goroutine", "{version}", "h2c")
	client := w.transport()
	for range 150 {
		upload, body := io.Pipe()
		go func() {
			for range 3 {
				_, _ = io.WriteString(body, strings.Repeat("x", 3000))
			}
			_ = body.Close()
		}()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url("/early"), upload)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusForbidden {
			t.Errorf("status %d, %v", resp.StatusCode, err)
		}
		_ = resp.Body.Close()
		_ = upload.Close()
	}
}
