package llmusage_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/headpond/headpond/internal/llmusage"
)

// filtered passes a stream in pieces of size bytes through r.
func filtered(r *llmusage.Reader, stream string, size int) (out string, held int) {
	r.Reset(true)
	passed := 0
	for b := []byte(stream); len(b) > 0; {
		n := min(size, len(b))
		first, rest := r.Filter(b[:n])
		out += string(first) + string(rest)
		b = b[n:]
		passed += n
		held = max(held, passed-len(out))
	}
	return out + string(r.Flush()), held
}

// TestFilter: the event that has the usage only is left out, in whatever pieces it comes, and nothing else changes.
func TestFilter(t *testing.T) {
	const azure = `{"choices":[],"prompt_filter_results":[{"prompt_index":0}],"usage":null}`
	whole := events(azure, firstRole, chunk)
	long := events(`{"choices":[{"delta":{"content":"` + strings.Repeat("x", 3*llmusage.MaxHeld) + `"}}]}`)
	var r llmusage.Reader
	for i, tc := range []struct{ stream, want string }{
		{whole + events(lastUsage, "[DONE]"), whole + events("[DONE]")},
		{events(lastUsage), ""},
		{strings.TrimSpace(whole + events(lastUsage)), whole},
		{whole + events(lastUsage) + whole, whole + whole},
		{": comment\n\nevent: x\n" + long + events(lastUsage) + long, ": comment\n\nevent: x\n" + long + long},
		{"data: {\"choices\":\ndata: [],\"usage\":{\"total_tokens\":1}}\n\n" + whole, whole},
		{whole + `data: {"choices":[],"usage":{"prompt_tok`, whole + `data: {"choices":[],"usage":{"prompt_tok`},
		{events(`{"choices":[],"usage":{}}`, `{"usage":{"total_tokens":1}}`), events(`{"choices":[],"usage":{}}`, `{"usage":{"total_tokens":1}}`)},
		{events(`{"choices":[],"pad":"` + strings.Repeat("x", llmusage.MaxHeld) + `","usage":{"total_tokens":3}}`), "?"}, // too long to be kept
		{"\xff\xfe\n\n\n\ndata\n\n" + whole, "\xff\xfe\n\n\n\ndata\n\n" + whole},
	} {
		for _, size := range []int{1, 2, 7, 100, 5000, len(tc.stream)} {
			got, held := filtered(&r, tc.stream, max(size, 1))
			usage, ok := r.Usage()
			if want := tc.want; want == "?" && got != tc.stream && got != "" || want != "?" && got != want {
				t.Errorf("%d, in pieces of %d bytes: %q, want %q", i, size, got, want)
			}
			if strings.Contains(tc.stream, lastUsage) && (!ok || usage.Output != 3) {
				t.Errorf("%d: %+v, %v", i, usage, ok)
			}
			if held > llmusage.MaxHeld+len(lastUsage)+10 {
				t.Errorf("%d: %d bytes are held", i, held)
			}
		}
		for _, end := range []string{"\r\n", "\r"} {
			lines := strings.NewReplacer("\n", end)
			for size := 1; size <= 64; size++ {
				if got, _ := filtered(&r, lines.Replace(tc.stream), size); tc.want != "?" && got != lines.Replace(tc.want) {
					t.Errorf("%d, lines end with %q, in pieces of %d: %q", i, end, size, got)
				}
			}
		}
	}
}

// TestFilterKeepsNothing: an event passes with the last byte of its end, also if that is CR LF, which a client waits for.
func TestFilterKeepsNothing(t *testing.T) {
	for _, end := range []string{"\n", "\r\n", "\r"} {
		for _, stream := range []string{chunk, chunk + "\ndata: ", "[DONE]"} {
			event := strings.ReplaceAll(events(stream), "\n", end)
			for cut := 1; cut <= len(event); cut++ {
				var r llmusage.Reader
				r.Reset(true)
				out := ""
				for _, piece := range []string{event[:cut], event[cut:], event} {
					first, rest := r.Filter([]byte(piece))
					out += string(first) + string(rest)
				}
				if out != event+event {
					t.Errorf("lines end with %q: %q", end, out)
				}
			}
		}
	}
}

// TestFilterPads: with Pad the length stays, and clients see the same events.
func TestFilterPads(t *testing.T) {
	stream := events(firstRole, chunk, lastUsage, "[DONE]")
	for _, stream := range []string{stream, strings.ReplaceAll(stream, "\n", "\r\n"), events(chunk, lastUsage), strings.TrimSpace(events(chunk, lastUsage))} {
		for size := 1; size <= len(stream); size++ {
			var r llmusage.Reader
			r.Reset(true)
			r.Pad()
			out := ""
			for b := []byte(stream); len(b) > 0; b = b[min(size, len(b)):] {
				first, rest := r.Filter(b[:min(size, len(b))])
				out += string(first) + string(rest)
			}
			out += string(r.Flush())
			if len(out) != len(stream) || strings.Join(strings.Fields(out), " ") != strings.Join(strings.Fields(strings.Replace(stream, "data: "+lastUsage, "", 1)), " ") {
				t.Errorf("in pieces of %d: %q of %q", size, out, stream)
			}
		}
	}
}

// TestEstimate: what a stream has not told is estimated from its text.
func TestEstimate(t *testing.T) {
	start := events(`{"type":"message_start","message":{"model":"claude","usage":{"input_tokens":25,"output_tokens":1}}}`)
	delta := events(`{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hello"}}`)
	long := events(`{"choices":[{"delta":{"content":"` + strings.Repeat("word", 50) + `"}}]}`)
	var r llmusage.Reader
	for i, tc := range []struct{ stream, want string }{
		{events(firstRole, chunk, chunk, "[DONE]"), "{100 0 2} true"},
		{events(firstRole, chunk) + `data: {"choices":[{"delta":{"content":"Hi`, "{100 0 2} true"},
		{events(firstRole), "{0 0 0} false"},
		{events(firstRole, chunk, lastUsage), "{9 4 3} false"},
		{events(`{"error":{"message":"no"}}`), "{0 0 0} false"},
		{long, "{100 0 50} true"},
		{start + delta + delta + delta, "{25 0 3} true"},
		{start, "{25 0 1} false"},
		{start + delta + events(`{"type":"message_delta","usage":{"output_tokens":15}}`), "{25 0 15} false"},
	} {
		r.Reset(true)
		r.Feed([]byte(tc.stream))
		u, ok := r.Estimate(400)
		if got := fmt.Sprint(u, ok); got != tc.want {
			t.Errorf("%d: %s, want %s", i, got, tc.want)
		}
	}
}

// FuzzFilter: a stream without usage passes as it is, in whatever pieces.
func FuzzFilter(f *testing.F) {
	f.Add([]byte(events(firstRole, chunk, "[DONE]")), 3)
	f.Add([]byte("data: {\"choices\":[]}\r\n\r\n\rdata:"), 1)
	f.Fuzz(func(t *testing.T, stream []byte, size int) {
		text := strings.ReplaceAll(string(stream), "usage", "usag")
		if strings.Contains(text, `\u`) { // it may spell the name
			return
		}
		var r llmusage.Reader
		if got, _ := filtered(&r, text, max(size, 1)); got != text {
			t.Errorf("%q, want %q", got, text)
		}
	})
}

// FuzzFilterUsage compares Filter with a parser of whole streams. Each byte of picks is a line and how it ends.
func FuzzFilterUsage(f *testing.F) {
	lines := []string{
		"", "data: " + lastUsage, "data:" + chunk, "data: [DONE]", ": comment", "event: x", `data: {"choices":`, `data: [],"usage":{"total_tokens":1}}`,
		`data: {"choices":[],"usage":null}`, "dat", "data", `data: {"choices":[{}],"usage":{"total_tokens":1}}`, lastUsage, " data: " + lastUsage, "data: " + strings.Repeat("x", 900), "",
	}
	ends := []string{"\n", "\r\n", "\r", ""}
	for _, size := range []int{1, 3, 1000} {
		f.Add([]byte{0x01, 0x00, 0x13, 0x10, 0x21, 0x20, 0x03, 0x00}, size)
		f.Add([]byte{0x06, 0x07, 0x00, 0x16, 0x17, 0x10, 0x01}, size)
		f.Add([]byte{0x0e, 0x0e, 0x0e, 0x01, 0x00, 0x31, 0x20, 0x00, 0x01, 0x00}, size)
	}
	f.Fuzz(func(t *testing.T, picks []byte, size int) {
		stream := ""
		for _, p := range picks[:min(len(picks), 40)] {
			stream += lines[p&15] + ends[p>>4&3]
		}
		var r llmusage.Reader
		want, longest := withoutUsage(stream)
		if got, _ := filtered(&r, stream, max(size, 1)); got != want && longest <= llmusage.MaxHeld {
			t.Errorf("in pieces of %d: %q came as %q, want %q", size, stream, got, want)
		}
	})
}

// withoutUsage does what Filter does, for a whole stream. longest is the size of the longest event.
func withoutUsage(stream string) (out string, longest int) {
	event, data := "", ""
	end := func() {
		var o struct {
			Choices *[]any
			Usage   map[string]any
		}
		err := json.NewDecoder(strings.NewReader(data)).Decode(&o)
		if err != nil || o.Choices == nil || len(*o.Choices) > 0 || len(o.Usage) == 0 {
			out += event
		}
		longest = max(longest, len(event))
		event, data = "", ""
	}
	for len(stream) > 0 {
		n := strings.IndexAny(stream, "\r\n")
		if n < 0 {
			n = len(stream)
		}
		line, rest := stream[:n], stream[n:]
		size := n + min(len(rest), 1)
		if strings.HasPrefix(rest, "\r\n") {
			size++
		}
		event += stream[:size]
		stream = stream[size:]
		if text, ok := strings.CutPrefix(line, "data:"); ok {
			data += text + "\n"
		}
		if line == "" {
			end()
		}
	}
	end()
	return out, longest
}
