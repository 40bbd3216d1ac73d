package mockllm_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/leaktest"
	"github.com/headpond/headpond/internal/mockllm"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// serve runs a server for a test.
func serve(t *testing.T, s *mockllm.Server) (url string, client *http.Client) {
	t.Helper()
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	return server.URL, server.Client()
}

const chat = "/v1/chat/completions"

func TestAnswers(t *testing.T) {
	s := &mockllm.Server{Models: []string{"a", "b"}, Answer: func(r *mockllm.Request) iter.Seq2[string, error] {
		switch r.Last() {
		case "limit":
			return mockllm.Fail(&mockllm.Error{Status: http.StatusTooManyRequests, Type: "requests", Code: "rate_limit_exceeded", Message: "slow down"})
		case "error":
			return mockllm.Fail(errors.New("out of memory"))
		}
		return mockllm.Say(r.Last())
	}}
	url, client := serve(t, s)
	for _, x := range []struct {
		method, path, body string
		status             int
		text               string
	}{
		{"GET", "/health", "", 200, "ok\n"},
		{"GET", "/v1/models", "", 200, `"data":[{"id":"a","object":"model","created":1700000000,"owned_by":"mockllm"},{"id":"b"`},
		{"GET", "/v1/embeddings", "", 404, `"message":"unknown request: GET /v1/embeddings"`},
		{"POST", chat, `{"model": "a", "messages": [{"content": "one two"}]}`, 200,
			`{"id":"chatcmpl-mock","object":"chat.completion","created":1700000000,"model":"a","choices":[{"index":0,"message":{"role":"assistant","content":"one two "},` +
				`"finish_reason":"stop"}],"usage":{"prompt_tokens":2,"completion_tokens":2,"total_tokens":4,"prompt_tokens_details":{"cached_tokens":0}}}`},
		{"POST", chat, `{"model": "a", "messages": [{"content": [{"type": "text", "text": "part"}]}]}`, 200, `"content":"part "`},
		{"POST", chat, `{"model": "a", "messages": [{"content": 1}]}`, 400, `want text, or a list of parts`},
		{"POST", chat, `{"model": "c"}`, 404, `"code":"model_not_found"`},
		{"POST", chat, `{`, 400, `"type":"invalid_request_error"`},
		{"POST", chat, `{"model": "a", "messages": [{"content": "limit"}]}`, 429, `{"error":{"message":"slow down","type":"requests","code":"rate_limit_exceeded"}}`},
		{"POST", chat, `{"model": "a", "stream": true, "messages": [{"content": "error"}]}`, 500, `{"error":{"message":"out of memory","type":"server_error"}}`},
		{"POST", chat, `{"model": "b", "stream": true, "stream_options": {"include_usage": true}, "messages": [{"content": "one"}]}`, 200,
			`data: {"id":"chatcmpl-mock","object":"chat.completion.chunk","created":1700000000,"model":"b","choices":[{"index":0,"delta":{"role":"assistant","content":"one "},"finish_reason":null}],"usage":null}` + "\n\n" +
				`data: {"id":"chatcmpl-mock","object":"chat.completion.chunk","created":1700000000,"model":"b","choices":[{"index":0,"delta":{"content":""},"finish_reason":"stop"}],"usage":null}` + "\n\n" +
				`data: {"id":"chatcmpl-mock","object":"chat.completion.chunk","created":1700000000,"model":"b","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2,"prompt_tokens_details":{"cached_tokens":0}}}` + "\n\n" +
				"data: [DONE]\n\n"},
	} {
		r, err := http.NewRequestWithContext(t.Context(), x.method, url+x.path, strings.NewReader(x.body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != x.status || !strings.Contains(string(text), x.text) {
			t.Errorf("%s %s %s: %d %s, %v\nwant %d %s", x.method, x.path, x.body, resp.StatusCode, text, err, x.status, x.text)
		}
	}
	if got, want := s.Stats(), (mockllm.Stats{Requests: 8, Finished: 3, Failed: 5}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestFailuresInTheMiddle: an error after the first word is an event, ErrBreak ends the connection, and a client's
// disconnect is noticed.
func TestFailuresInTheMiddle(t *testing.T) {
	s := &mockllm.Server{Answer: func(r *mockllm.Request) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			if !yield("first", nil) {
				return
			}
			switch r.Last() {
			case "error":
				yield("", errors.New("failed"))
			case "break":
				yield("", mockllm.ErrBreak)
			default:
				<-r.Context.Done()
			}
		}
	}}
	url, client := serve(t, s)
	ask := func(ctx context.Context, what string) *bufio.Reader {
		t.Helper()
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, url+chat, strings.NewReader(`{"stream": true, "messages": [{"content": "`+what+`"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = resp.Body.Close() })
		events := bufio.NewReader(resp.Body)
		if line, err := events.ReadString('\n'); err != nil || !strings.Contains(line, `"content":"first"`) {
			t.Fatalf("%s: %s, %v", what, line, err)
		}
		return events
	}
	if rest, err := io.ReadAll(ask(t.Context(), "error")); err != nil || string(rest) != "\ndata: {\"error\":{\"message\":\"failed\",\"type\":\"server_error\"}}\n\n" {
		t.Errorf("%q, %v", rest, err)
	}
	if rest, err := io.ReadAll(ask(t.Context(), "break")); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%q, %v", rest, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ask(ctx, "stay")
	cancel()
	want := mockllm.Stats{Requests: 3, Canceled: 1, Failed: 2}
	conntest.Eventually(t, "the client's leaving is noticed", func() bool { return s.Stats() == want })
}
