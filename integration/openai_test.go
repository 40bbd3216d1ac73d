package integration

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headpond/headpond/internal/clienttest"
	"github.com/headpond/headpond/internal/mockllm"
)

// openAIClients are the clients of OpenAI, and what each reports for a broken connection.
var openAIClients = []struct {
	name, program, broken string
	run                   func(t testing.TB, args ...string) *exec.Cmd
}{
	{"python", "openai_chat.py", "APIConnectionError Connection error.", clienttest.Python},
	{"node", "openai_chat.cjs", "TypeError terminated", func(t testing.TB, args ...string) *exec.Cmd { return clienttest.Node(t, args[0], args[1:]...) }},
}

// openAISees is what a client of OpenAI prints with examples/llm.yaml; %s is its report of a broken connection.
const openAISees = `models llama3
whole I am the model llama3 .  9
streamed I am the model llama3 . 
whole I am the model qwen3 .  9
streamed I am the model qwen3 . 
long 100001 words 
held one two three
usage 8
canceled
fallback qwen I am the model unknown . 
exact llama I am the model llama3 . 
limit RateLimitError 429 slow down
limit RateLimitError 429 slow down
error InternalServerError 500 out of memory
before half 
middle APIError out of memory
before half 
broken %s
tokens 5 5
tokens RateLimitError 429 the limit of 5 tokens in 24h0m0s is used up; try again later
key I am the model qwen3 . 
key AuthenticationError 401 unknown API key
budget 7 7
budget RateLimitError 429 the limit of 7 tokens in 24h0m0s is used up; try again later
no model NotFoundError 404 of the gateway
no fallback InternalServerError 503 of the gateway
`

// TestOpenAIClients: the clients of OpenAI work through the gateway with the configuration in examples/llm.yaml. They
// get each word as soon as the model sends it. The model sees their disconnects, and errors of the model are exceptions
// in the clients. A client that has used up its tokens, or has a wrong key, is refused, and so is one whose user has used up the budget. The gateway knows
// the tokens of all answers, also of streams that do not tell them to the client, and estimates those of streams that break off.
func TestOpenAIClients(t *testing.T) {
	models := &openAIModels{held: map[string]chan struct{}{}}
	for _, c := range openAIClients {
		models.held[c.name] = make(chan struct{})
	}
	listen := address(t)
	gw := startGateway(t, models.config(t, listen))
	running := map[string]*process{}
	for _, c := range openAIClients { // concurrently, because they are slow to start
		running[c.name] = start(t, c.run(t, clienttest.Program(t, c.program), listen))
	}
	for _, c := range openAIClients {
		p := running[c.name]
		code := p.awaitEnd(t, patience)
		want := fmt.Sprintf(openAISees, c.broken)
		if out := p.out.String(); code != 0 || out != want {
			t.Errorf("%s: exit code %d, it prints\n%s\nwant\n%s", c.name, code, out, want)
		}
	}
	for series, want := range map[[3]string]float64{
		{"llm_tokens_total", "qwen3", `kind="input"`}: 3 + 3 + 2, {"llm_tokens_total", "qwen3", `kind="output"`}: 6 + 6 + 6, // a whole answer, and two streams
		{"llm_answers_total", "llama3", `usage="estimated"`}: 3, {"llm_answers_total", "llama3", `usage="unknown"`}: 0, // the endless answer, and two that fail
	} {
		want *= float64(len(openAIClients))
		eventually(t, fmt.Sprintf("sum of %v", series), func() error {
			if got := gw.scrape().sum("headpond_"+series[0], `model="`+series[1]+`"`, series[2], `route="/v1`); got != want {
				return fmt.Errorf("%v, want %v", got, want)
			}
			return nil
		})
	}
	for kind, want := range map[string]int{"input": 3, "output": 6} { // of one answer for each client
		eventually(t, "tokens of ann: "+kind, func() error {
			got := gw.scrape().sum("headpond_llm_user_tokens_total", `user="ann"`, `kind="`+kind+`"`, `route="/keyed"`)
			if got != float64(want*len(openAIClients)) {
				return fmt.Errorf("%v", got)
			}
			return nil
		})
	}
	eventually(t, "each endless answer is canceled", func() error {
		if n := models.canceled(); n != len(openAIClients) {
			return fmt.Errorf("%d of %d", n, len(openAIClients))
		}
		return nil
	})
}

// openAIModels are the servers of examples/llm.yaml.
type openAIModels struct {
	held    map[string]chan struct{} // by client: its answer continues with each value sent
	servers []*mockllm.Server
}

// config returns the example's configuration for servers that it starts.
func (m *openAIModels) config(t *testing.T, listen string) string {
	t.Helper()
	text := readFile(t, "../examples/llm.yaml")
	replace := func(old, with string) {
		if !strings.Contains(text, old) {
			t.Fatalf("examples/llm.yaml has no %q", old)
		}
		text = strings.ReplaceAll(text, old, with)
	}
	replace("admin: 127.0.0.1:9090\n", "") // startGateway adds one
	replace("127.0.0.1:8080", listen)
	replace("      routes:\n", "      routes:\n        - {path: /limited, strip_prefix: true, upstream: qwen, llm: {token_limits: [{tokens: 5, per: 24h, header: Authorization}]}}\n"+
		fmt.Sprintf("        - {path: /keyed, strip_prefix: true, upstream: qwen, llm: true, bearer_auth: %q}\n", keysFile(t, "ann", "right"))+
		fmt.Sprintf("        - {path: /budget, strip_prefix: true, upstream: qwen, bearer_auth: %q, llm: {token_limits: [{tokens: 1000, per: 24h, by: user, budgets: {python: 7, node: 7}}]}}\n",
			keysFile(t, "python", "of python", "node", "of node")))
	for i, served := range [][]string{{"llama3"}, {"llama3"}, nil} {
		server := &mockllm.Server{Models: served, Answer: m.answer}
		m.servers = append(m.servers, server)
		web := httptest.NewServer(server)
		t.Cleanup(web.Close)
		replace(fmt.Sprintf("127.0.0.1:%d", 9001+i), web.Listener.Addr().String())
	}
	return text
}

// keysFile returns a file with the API keys of users, each name before its key.
func keysFile(t *testing.T, pairs ...string) string {
	t.Helper()
	var text []byte
	for i := 0; i+1 < len(pairs); i += 2 {
		text = fmt.Appendf(text, "%s:%x\n", pairs[i], sha256.Sum256([]byte(pairs[i+1])))
	}
	path := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func (m *openAIModels) canceled() (n int) {
	for _, s := range m.servers {
		n += int(s.Stats().Canceled)
	}
	return n
}

// answer does what the first word of the last message asks for.
func (m *openAIModels) answer(r *mockllm.Request) iter.Seq2[string, error] {
	what, rest, _ := strings.Cut(r.Last(), " ")
	switch what {
	case "count":
		return mockllm.Say(fmt.Sprintf("%d words", len(strings.Fields(r.Last()))))
	case "hold":
		return mockllm.InTurns(r.Context, m.held[rest])
	case "release":
		select {
		case m.held[rest] <- struct{}{}:
		case <-r.Context.Done():
		}
		return mockllm.Say("released")
	case "endless":
		return func(yield func(string, error) bool) {
			for yield("on ", nil) {
			}
		}
	case "limit":
		return mockllm.Fail(&mockllm.Error{Status: http.StatusTooManyRequests, Type: "requests", Code: "rate_limit_exceeded", Message: "slow down"})
	case "error":
		return mockllm.Fail(errors.New("out of memory"))
	case "middle":
		return half(errors.New("out of memory"))
	case "broken":
		return half(mockllm.ErrBreak)
	}
	return mockllm.Introduce(r)
}

// half sends a word and fails.
func half(err error) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		if yield("half ", nil) {
			yield("", err)
		}
	}
}
