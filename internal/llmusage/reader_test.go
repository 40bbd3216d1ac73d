package llmusage_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/headpond/headpond/internal/leaktest"
	"github.com/headpond/headpond/internal/llmusage"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// outcome is what a Reader tells about an answer.
type outcome struct {
	usage llmusage.Usage
	known bool
	model string
	began bool
}

// read reads an answer in pieces of size bytes.
func read(r *llmusage.Reader, answer string, events bool, size int) outcome {
	r.Reset(events)
	for b := []byte(answer); len(b) > 0; {
		n := min(size, len(b))
		r.Feed(b[:n])
		b = b[n:]
	}
	u, ok := r.Usage()
	return outcome{u, ok, string(r.Model()), r.Began()}
}

// event returns events as servers write them, each with the data given.
func events(data ...string) (text string) {
	for _, d := range data {
		text += "data: " + d + "\n\n"
	}
	return text
}

const (
	chunk     = `{"id":"c","object":"chat.completion.chunk","model":"gpt-4o","choices":[{"index":0,"delta":{"content":"Hi"}}],"usage":null}`
	firstRole = `{"id":"c","model":"gpt-4o","choices":[{"index":0,"delta":{"role":"assistant","content":"","refusal":null}}],"usage":null}`
	lastUsage = `{"id":"c","model":"gpt-4o","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3,"total_tokens":12,"prompt_tokens_details":{"cached_tokens":4}}}`
)

var answers = map[string]struct {
	text   string
	events bool
	want   outcome
}{
	"chat": {
		`{"id":"c","model":"gpt-4o","choices":[{"message":{"content":"usage"}}],"usage":{"prompt_tokens":19,"completion_tokens":10,"total_tokens":29,"prompt_tokens_details":{"cached_tokens":3,"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":2}}}`,
		false, outcome{llmusage.Usage{Input: 19, Cached: 3, Output: 10}, true, "gpt-4o", false},
	},
	"embeddings": {
		`{"object":"list","data":[{"embedding":[0.1,-2e-3]}],"model":"e","usage":{"prompt_tokens":8,"total_tokens":8}}`,
		false, outcome{llmusage.Usage{Input: 8}, true, "e", false},
	},
	"ranking": {
		`{"model":"r","usage":{"total_tokens":56},"results":[]}`, false, outcome{llmusage.Usage{Input: 56}, true, "r", false},
	},
	"response": {
		`{"id":"r","model":"gpt-4.1","output":[],"usage":{"input_tokens":36,"input_tokens_details":{"cached_tokens":30},"output_tokens":87,"total_tokens":123}}`,
		false, outcome{llmusage.Usage{Input: 36, Cached: 30, Output: 87}, true, "gpt-4.1", false},
	},
	"message": {
		`{"type":"message","model":"claude","content":[{"type":"text","text":"Hi"}],"usage":{"input_tokens":10,"cache_creation_input_tokens":20,"cache_read_input_tokens":300,"output_tokens":5}}`,
		false, outcome{llmusage.Usage{Input: 330, Cached: 300, Output: 5}, true, "claude", false},
	},
	"none":           {`{"error":{"message":"usage"}}`, false, outcome{}},
	"no JSON":        {`usage`, false, outcome{}},
	"broken off":     {`{"usage":{"prompt_tokens":19}`, false, outcome{}},
	"twice":          {`{"usage":{"prompt_tokens":1},"usage":{"prompt_tokens":2}}`, false, outcome{}},
	"beyond reason":  {`{"usage":{"prompt_tokens":99999999999999999999,"completion_tokens":-4,"total_tokens":1.5}}`, false, outcome{}},
	"elsewhere":      {`{"choices":[{"usage":{"prompt_tokens":1}}],"x":{"usage":{"prompt_tokens":1}}}`, false, outcome{}},
	"chat, streamed": {events(firstRole, chunk, chunk, lastUsage, "[DONE]"), true, outcome{llmusage.Usage{Input: 9, Cached: 4, Output: 3}, true, "gpt-4o", true}},
	"no usage":       {events(firstRole, chunk, "[DONE]"), true, outcome{model: "gpt-4o", began: true}},
	"no text":        {events(firstRole, lastUsage), true, outcome{llmusage.Usage{Input: 9, Cached: 4, Output: 3}, true, "gpt-4o", false}},
	"CRLF":           {strings.ReplaceAll(events(chunk, lastUsage), "\n", "\r\n"), true, outcome{llmusage.Usage{Input: 9, Cached: 4, Output: 3}, true, "gpt-4o", true}},
	"CR":             {strings.ReplaceAll(events(chunk, lastUsage), "\n", "\r"), true, outcome{llmusage.Usage{Input: 9, Cached: 4, Output: 3}, true, "gpt-4o", true}},
	"no last line":   {strings.TrimSpace(events(lastUsage)), true, outcome{llmusage.Usage{Input: 9, Cached: 4, Output: 3}, true, "gpt-4o", false}},
	"two lines":      {"data: {\"usage\":\r\ndata:{\"total_tokens\":5\r\ndata: }}\r\n\r\n", true, outcome{usage: llmusage.Usage{Input: 5}, known: true}},
	"other fields":   {": data: " + lastUsage + "\n\nevent: data: x\ndat\nid: 1\ndata\ndata: {\"model\":\"m\"}\nretry: 1\n\n", true, outcome{model: "m"}},
	"a tool":         {events(`{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{"}}]}}]}`), true, outcome{began: true}},
	"response, streamed": {
		"event: response.created\n" + events(`{"type":"response.created","response":{"id":"r","model":"gpt-4.1","usage":null}}`) +
			events(`{"type":"response.output_text.delta","delta":"Hi"}`, `{"type":"response.completed","response":{"model":"gpt-4.1","usage":{"input_tokens":37,"input_tokens_details":{"cached_tokens":2},"output_tokens":11,"total_tokens":48}}}`),
		true, outcome{llmusage.Usage{Input: 37, Cached: 2, Output: 11}, true, "gpt-4.1", true},
	},
	"message, streamed": {
		events(`{"type":"message_start","message":{"model":"claude","content":[],"usage":{"input_tokens":25,"cache_read_input_tokens":7,"output_tokens":1}}}`, `{"type":"ping"}`,
			`{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hello"}}`, `{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":15}}`),
		true, outcome{llmusage.Usage{Input: 32, Cached: 7, Output: 15}, true, "claude", true},
	},
	"message, broken off": {
		events(`{"type":"message_start","message":{"model":"claude","usage":{"input_tokens":25,"output_tokens":1}}}`) + "data: {\"type\":\"mess",
		true, outcome{usage: llmusage.Usage{Input: 25, Output: 1}, known: true, model: "claude"},
	},
}

// TestUsage: an answer tells its tokens, in one piece and byte by byte.
func TestUsage(t *testing.T) {
	var r llmusage.Reader
	for name, tc := range answers {
		for _, size := range []int{1, 7, len(tc.text)} {
			if got := read(&r, tc.text, tc.events, size); got != tc.want {
				t.Errorf("%s, in pieces of %d bytes: %+v, want %+v", name, size, got, tc.want)
			}
		}
	}
}

// TestBegan: text is seen with its first byte, and not before.
func TestBegan(t *testing.T) {
	text := events(firstRole, chunk)
	first := strings.Index(text, "Hi")
	var r llmusage.Reader
	r.Reset(true)
	for i := range len(text) {
		r.Feed([]byte(text[i : i+1]))
		if got, want := r.Began(), i >= first; got != want {
			t.Fatalf("after byte %d, %v", i, got)
		}
	}
}

// TestNoAllocations: reading allocates nothing once the Reader has been used.
func TestNoAllocations(t *testing.T) {
	var r llmusage.Reader
	text := answers["chat, streamed"].text
	if n := testing.AllocsPerRun(10, func() { read(&r, text, true, 100) }); n > 3 { // the copy of the text, and its model
		t.Errorf("%v allocations", n)
	}
}

// model is the reference of the fuzz test for one object: encoding/json's reading of the numbers of OpenAI's API.
type model struct {
	Usage struct {
		Prompt     json.Number `json:"prompt_tokens"`
		Completion json.Number `json:"completion_tokens"`
	} `json:"usage"`
}

// FuzzSplit: the same counts for every division of an answer into pieces, and those of encoding/json for plain answers.
func FuzzSplit(f *testing.F) {
	for _, tc := range answers {
		f.Add([]byte(tc.text), tc.events, uint16(3))
	}
	f.Fuzz(func(t *testing.T, answer []byte, events bool, size uint16) {
		var whole, split llmusage.Reader
		want := read(&whole, string(answer), events, max(len(answer), 1))
		if got := read(&split, string(answer), events, int(size)+1); got != want {
			t.Fatalf("in pieces of %d bytes %+v, whole %+v", int(size)+1, got, want)
		}
		if want.usage.Cached > want.usage.Input || want.usage.Input < 0 || want.usage.Output < 0 {
			t.Fatalf("%+v", want)
		}
		var m model
		if events || !want.known || bytes.Contains(bytes.ToLower(answer), []byte(`input_tokens`)) || json.Unmarshal(answer, &m) != nil {
			return
		}
		p, _ := m.Usage.Prompt.Int64()
		c, _ := m.Usage.Completion.Int64()
		if p > 0 && p <= 1<<32 && want.usage.Input != p || c > 0 && c <= 1<<32 && want.usage.Output != c {
			t.Fatalf("%+v, encoding/json reads %d and %d", want, p, c)
		}
	})
}

func BenchmarkFeed(b *testing.B) {
	numbers := `{"data":[` + strings.Repeat("-0.0123456789,", 1000) + `1],"model":"e"}`
	for _, tc := range []struct {
		name, text string
		events     bool
	}{{"events", events(chunk, chunk, chunk, chunk), true}, {"numbers", numbers, false}} {
		b.Run(tc.name, func(b *testing.B) {
			var r llmusage.Reader
			text := []byte(tc.text)
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				r.Reset(tc.events)
				r.Feed(text)
			}
		})
	}
}
