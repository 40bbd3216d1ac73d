package extension_test

import (
	"iter"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/headpond/headpond/internal/clienttest"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/mockllm"
)

// TestOpenAIClient: the Python client of OpenAI finds a model beside another node by its name, gets each word when the model says it, and when
// it leaves, the model is told.
func TestOpenAIClient(t *testing.T) {
	next := make(chan struct{})
	model := &mockllm.Server{Models: []string{"llama3"}, Answer: func(r *mockllm.Request) iter.Seq2[string, error] {
		switch r.Last() {
		case "hold":
			return mockllm.InTurns(r.Context, next)
		case "release":
			select {
			case next <- struct{}{}:
			case <-r.Context.Done():
			}
		case "endless":
			return func(yield func(string, error) bool) {
				for yield("on ", nil) {
				}
			}
		}
		return mockllm.Introduce(r)
	}}
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	server := httptest.NewServer(model)
	t.Cleanup(server.Close)
	farKey, _ := keyOf(t)
	nearKey, nearID := keyOf(t)
	far := run(t, farKey, "", "services:\n  llm: {upstream: llm, allow: ["+nearID+"], models: /v1/models}\nupstreams:\n  llm: {endpoints: [\""+server.Listener.Addr().String()+"\"]}\n")
	near := run(t, nearKey, far.addrs(t), apiListener)
	conntest.Eventually(t, "its model is found", func() bool {
		status, _, _ := ask(t, near, "POST", "/v1/service/llm/v1/chat/completions", `{"model": "llama3", "messages": []}`)
		return status == http.StatusOK
	})

	out, err := clienttest.Python(t, clienttest.Program(t, "openai_peers.py"), near.Addr("api")).CombinedOutput()
	const want = "models llama3\nwhole I am the model llama3 . \nheld one two three\nleft\nunknown InternalServerError 503\n"
	if err != nil || string(out) != want {
		t.Errorf("%v, it prints\n%s\nwant\n%s", err, out, want)
	}
	conntest.Eventually(t, "the endless answer is canceled", func() bool { return model.Stats().Canceled == 1 })
}
