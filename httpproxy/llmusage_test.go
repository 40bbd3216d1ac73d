package httpproxy_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/httpproxy"
)

// usageBackend answers as a server of OpenAI's completions: with the usage if it is asked for. It returns the body that it
// got in the header Got, if that is short, with | for ends of lines.
func usageBackend(t *testing.T) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		var asked struct {
			Stream        bool
			StreamOptions *struct {
				IncludeUsage bool `json:"include_usage"`
			} `json:"stream_options"`
		}
		_ = json.Unmarshal(body, &asked)
		if len(body) < 500 {
			w.Header().Set("Got", strings.TrimSpace(strings.ReplaceAll(string(body), "\n", "|")))
		}
		w.Header().Set("Got-Length", fmt.Sprint(r.ContentLength, " ", len(body)))
		w.Header().Set("Content-Type", "text/event-stream")
		answer := llmMessage + llmMessage
		if asked.StreamOptions != nil && asked.StreamOptions.IncludeUsage {
			answer += "data: {\"choices\":[]," + llmUsage + "}\n\n"
		}
		answer += "data: [DONE]\n\n"
		if strings.HasPrefix(r.URL.RawQuery, "length") {
			w.Header().Set("Content-Length", fmt.Sprint(len(answer)))
		}
		for _, b := range []byte(answer) {
			_, _ = w.Write([]byte{b})
			if b == '\n' || b == 'u' {
				_ = http.NewResponseController(w).Flush()
			}
		}
	}
}

// TestIncludeUsage: the gateway asks for the usage in place of clients that do not, which do not see it; whatever the
// framing and the versions of HTTP.
func TestIncludeUsage(t *testing.T) {
	backend := serveEither(t, usageBackend(t))
	lines := &logLines{t: t}
	cfg := httpproxy.Config{AccessLog: &httpproxy.AccessLog{To: lines}}
	for path, protocol := range map[string]httpproxy.Protocol{"/h1": httpproxy.ProtocolH1, "/h2": httpproxy.ProtocolH2C} {
		u := newUpstreamWith(t, httpproxy.UpstreamOptions{Protocol: protocol}, backend)
		cfg.Routes = append(cfg.Routes, httpproxy.Route{Path: path, Upstream: u, LLM: &httpproxy.LLM{IncludeUsage: true}})
	}
	p := startProxy(t, cfg)
	const silent = llmMessage + llmMessage + "data: [DONE]\n\n"
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		client := clientFor(t, proto)
		for i, tc := range []struct{ path, body, got, usage, answer string }{
			{"/completions", `{"model":"m","stream":true}`, `{"stream_options":{"include_usage":true},"model":"m","stream":true}`, "known", silent},
			{"/v1/chat/completions?x", " {\"stream\" : true }\n", " {\"stream_options\":{\"include_usage\":true},\"stream\" : true }|", "known", silent},
			{"/completions", `{"stream":true,"stream_options":{}}`, `{"stream":true,"stream_options":{"include_usage":true}}`, "known", silent},
			{"/completions", `{"stream":true,"stream_options":null}`, `{"stream":true,"stream_options":{"include_usage":true}}`, "known", silent},
			{"/completions", `{"stream_options":{"include_usage":false},"stream":true}`, `{"stream_options":{"include_usage":true},"stream":true}`, "known", silent},
			{"/completions", `{"stream":true,"stream_options":{"include_obfuscation":false}}`, `{"stream":true,"stream_options":{"include_usage":true,"include_obfuscation":false}}`, "known", silent},
			{"/completions", `{"stream":true,"stream_options":{"include_usage":true}}`, "", "known", llmStream},
			{"/completions", `{"stream":true,"stream_options":[]}`, "", "estimated", silent},
			{"/completions", `{"stream":true,"stream_options":{"include_usage":[]}}`, "", "estimated", silent},
			{"/completions", `{"stream":true,"stream_options":"x"}`, "", "estimated", silent},
			{"/completions", `{"stream":false}`, "", "estimated", silent},
			{"/completions", `{"n":{"stream":true}}`, "", "estimated", silent},
			{"/completions", `[{"stream":true}]`, "", "estimated", silent},
			{"/completions", `{"stream":true`, "", "estimated", silent},
			{"/messages", `{"stream":true}`, "", "estimated", silent},
			{"/responses", `{"stream":true}`, "", "estimated", silent},
		} {
			for _, target := range []string{"/h1", "/h2"} {
				for _, pieces := range []int{0, 1, 7} {
					resp, answer := askInPieces(t, client, p.url+target+tc.path, tc.body, pieces)
					name := fmt.Sprintf("%s %s, %d, in pieces of %d", proto, target, i, pieces)
					if want := map[bool]string{true: tc.body, false: tc.got}[tc.got == ""]; resp.Header.Get("Got") != strings.TrimSpace(want) {
						t.Errorf("%s: the server got %q, want %q", name, resp.Header.Get("Got"), want)
					}
					if answer != tc.answer {
						t.Errorf("%s: the client got %q, want %q", name, answer, tc.answer)
					}
					if f := lines.fields(); f["usage"] != tc.usage || tc.usage == "known" && f["output_tokens"] != 5.0 || tc.usage != "known" && f["output_tokens"] != 2.0 {
						t.Errorf("%s: the log has %v, %v", name, f["usage"], f["output_tokens"])
					}
				}
			}
		}
	}
}

// TestIncludeUsageLength: the client does not see the usage in an answer with a length either, which stays true.
func TestIncludeUsageLength(t *testing.T) {
	backend := serveEither(t, usageBackend(t))
	for _, protocol := range []httpproxy.Protocol{httpproxy.ProtocolH1, httpproxy.ProtocolH2C} {
		u := newUpstreamWith(t, httpproxy.UpstreamOptions{Protocol: protocol}, backend)
		p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Upstream: u, LLM: &httpproxy.LLM{IncludeUsage: true}}}})
		for i, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
			client := clientFor(t, proto)
			resp, answer := askInPieces(t, client, p.url+"/completions?length", `{"stream":true}`, 0)
			name := fmt.Sprint(proto, " to ", protocol)
			if strings.Contains(answer, "usage") || strings.Join(strings.Fields(answer), " ") != strings.Join(strings.Fields(llmMessage+llmMessage+"data: [DONE]"), " ") {
				t.Errorf("%s: %q", name, answer)
			}
			if resp.ContentLength != int64(len(answer)) {
				t.Errorf("%s: %d bytes, with a length of %d", name, len(answer), resp.ContentLength)
			}
			eventually(t, name+" is counted", func() bool { return len(p.Models()) == 1 && p.Models()[0].Known == uint64(2*i+1) })
			if _, answer := askInPieces(t, client, p.url+"/completions?length", `{"stream":true,"stream_options":{"include_usage":true}}`, 0); answer != llmStream {
				t.Errorf("%s: asked for, %q", name, answer)
			}
			eventually(t, name+" is counted", func() bool { return p.Models()[0].Known == uint64(2*i+2) })
		}
	}
}

// askInPieces posts a body in chunks of some bytes; 0 = with a length.
func askInPieces(t *testing.T, client *http.Client, url, body string, pieces int) (*http.Response, string) {
	t.Helper()
	var from io.Reader = strings.NewReader(body)
	if pieces > 0 {
		r, w := io.Pipe()
		go func() {
			for b := []byte(body); len(b) > 0; b = b[min(pieces, len(b)):] {
				_, _ = w.Write(b[:min(pieces, len(b))])
			}
			_ = w.Close()
		}()
		from = r
	}
	req, err := http.NewRequest(http.MethodPost, url, from)
	if err != nil {
		t.Fatal(err)
	}
	return doWith(t, client, req)
}

// TestIncludeUsageSizes: bodies about the sizes of buffers and of the limit arrive whole.
func TestIncludeUsageSizes(t *testing.T) {
	p := startProxy(t, httpproxy.Config{PeekBytes: 40_000, Routes: []httpproxy.Route{{
		Upstream: newUpstream(t, serveHTTP(t, usageBackend(t))), LLM: &httpproxy.LLM{IncludeUsage: true}, Retries: httpproxy.Retries{},
	}}})
	const added = len(`"stream_options":{"include_usage":true},`)
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		client := clientFor(t, proto)
		for _, around := range []int{16 << 10, 32 << 10, 40_000} {
			for size := around - 320; size < around+60; size += 19 {
				for _, pieces := range []int{0, 5000} {
					body := `{"stream":true,"pad":"` + strings.Repeat("x", size) + `"}`
					resp, answer := askInPieces(t, client, p.url+"/completions", body, pieces)
					var length, got int
					_, _ = fmt.Sscan(resp.Header.Get("Got-Length"), &length, &got)
					if got != len(body) && got != len(body)+added || got == len(body) && len(body) < 39_500 || pieces == 0 && length != got {
						t.Errorf("%s, %d bytes in pieces of %d: the server got %d, with a length of %d", proto, len(body), pieces, got, length)
					}
					if strings.Contains(answer, "usage") {
						t.Errorf("%s, %d bytes: %q", proto, len(body), answer)
					}
				}
			}
		}
		client.CloseIdleConnections()
	}
	eventually(t, "nothing is held any more", func() bool { return p.Stats().Buffered == 0 })
}

// TestIncludeUsageSigned: a body that has a digest or is encoded does not change, and neither does one that is pipelined
// behind another.
func TestIncludeUsageSigned(t *testing.T) {
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Upstream: newUpstream(t, serveHTTP(t, usageBackend(t))), LLM: &httpproxy.LLM{IncludeUsage: true}}}})
	const body = `{"stream":true}`
	for field, value := range map[string]string{
		"Content-Encoding": "identity", "Content-Digest": "sha-256=:x:", "Content-Type": "text/plain", "Authorization": "AWS4-HMAC-SHA256 x", "": "",
	} {
		req, err := http.NewRequest(http.MethodPost, p.url+"/completions", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if field != "" {
			req.Header.Set(field, value)
		}
		if resp, _ := doWith(t, clientFor(t, "HTTP/1.1"), req); (resp.Header.Get("Got") == body) != (field != "") {
			t.Errorf("%s: %q", field, resp.Header.Get("Got"))
		}
	}
	c, answers := dialRaw(t, p.addr)
	ask := "POST /completions HTTP/1.1\r\nHost: x\r\nContent-Length: 15\r\n\r\n" + body
	chunked := "POST /completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\ne\r\n\"stream\":true}\r\n0\r\n\r\n"
	if _, err := io.WriteString(c, ask+chunked+ask); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		resp, err := http.ReadResponse(answers, nil)
		if err != nil {
			t.Fatal(i, err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		if got := resp.Header.Get("Got"); got != `{"stream_options":{"include_usage":true},"stream":true}` {
			t.Errorf("%d: %q", i, got)
		}
	}
}

// TestTokensEstimated: the tokens of streams that do not tell them are estimated, and count for limits.
func TestTokensEstimated(t *testing.T) {
	more := make(chan struct{})
	backend := serveEither(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, llmMessage+llmMessage+llmMessage)
		_ = http.NewResponseController(w).Flush()
		switch r.URL.Path {
		case "/left":
			select {
			case <-more:
			case <-r.Context().Done():
			}
		case "/broken":
			panic(http.ErrAbortHandler)
		}
	})
	for _, protocol := range []httpproxy.Protocol{httpproxy.ProtocolH1, httpproxy.ProtocolH2C} {
		for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
			for _, path := range []string{"/whole", "/left", "/broken"} {
				limit := httpproxy.TokenLimit{Tokens: 13, Per: 24 * time.Hour}
				p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{
					Upstream: newUpstreamWith(t, httpproxy.UpstreamOptions{Protocol: protocol}, backend), LLM: &httpproxy.LLM{Limits: []httpproxy.TokenLimit{limit}},
				}}})
				client := clientFor(t, proto)
				body := `{"model":"m","stream":true,"messages":[{"role":"user","content":"` + strings.Repeat("word", 10) + `"}]}`
				resp, err := client.Post(p.url+path, "application/json", strings.NewReader(body))
				if err != nil {
					t.Fatal(err)
				}
				first := make([]byte, 3*len(llmMessage))
				if _, err := io.ReadFull(resp.Body, first); err != nil && path != "/broken" {
					t.Fatal(err)
				}
				if path == "/left" {
					_ = resp.Body.Close()
				} else {
					_, _ = io.Copy(io.Discard, resp.Body)
				}
				name := fmt.Sprint(proto, " to ", protocol, path)
				eventually(t, name+" is counted", func() bool {
					return len(p.Models()) == 1 && p.Models()[0].Input > 0 && (p.Models()[0].Output > 0 || path == "/broken")
				})
				if m := p.Models()[0]; m.Estimated != 1 || m.Known+m.Unknown != 0 || m.Input != 10 || m.Output != 3 && path != "/broken" {
					t.Errorf("%s: %+v", name, m)
				}
				if resp, _ := askModel(t, client, p.url+path); resp.StatusCode != 429 && path != "/broken" {
					t.Errorf("%s: the limit lets %s", name, resp.Status)
				}
			}
		}
	}
	close(more)
}

// TestIncludeUsageRetried: a request that is sent again is the changed one.
func TestIncludeUsageRetried(t *testing.T) {
	tries := 0
	var bodies [][]byte
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		bodies = append(bodies, b)
		if tries++; tries == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(s.Close)
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{
		Upstream: newUpstream(t, s.Listener.Addr().String()), LLM: &httpproxy.LLM{IncludeUsage: true},
		Retries: httpproxy.Retries{On: []httpproxy.Failure{httpproxy.Failed503}, Methods: []string{http.MethodPost}},
	}}})
	if resp, _ := askInPieces(t, clientFor(t, "HTTP/1.1"), p.url+"/completions", `{"stream":true}`, 3); resp.StatusCode != 200 {
		t.Error(resp.Status)
	}
	if want := []byte(`{"stream_options":{"include_usage":true},"stream":true}`); len(bodies) != 2 || !bytes.Equal(bodies[0], want) || !bytes.Equal(bodies[1], want) {
		t.Errorf("%q", bodies)
	}
}
