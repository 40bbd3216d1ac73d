package jsonfield_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"strings"
	"testing"

	"github.com/headpond/headpond/internal/jsonfield"
)

// lengths are the prefixes of prompts that tests look for.
var lengths = []int{1, 7, 40}

// promptHash returns the hash of the first bytes of texts, with a zero byte after each complete one.
func promptHash(texts []string, length int) (hash uint64, ok bool) {
	h := fnv.New64a()
	for _, text := range texts {
		n := min(length, len(text))
		_, _ = h.Write([]byte(text[:n]))
		ok = ok || n > 0
		if length -= n; length == 0 {
			break
		}
		_, _ = h.Write([]byte{0})
	}
	return h.Sum64(), ok
}

func prompts(s *jsonfield.Scanner) (text string) {
	for i := range lengths {
		hash, ok := s.Prompt(i)
		if !ok {
			hash = 0
		}
		text += fmt.Sprintln(hash, ok)
	}
	return text
}

func wantPrompts(texts []string) (text string) {
	for _, n := range lengths {
		hash, ok := promptHash(texts, n)
		if !ok {
			hash = 0
		}
		text += fmt.Sprintln(hash, ok)
	}
	return text
}

func TestPrompt(t *testing.T) {
	long := strings.Repeat("x", 100)
	for text, want := range map[string][]string{
		`{"prompt": "one two"}`:                      {"one two"},
		`{"model": "m", "prompt": ["a", "b", 1]}`:    {"a", "b"},
		`{"prompt": "` + long + `", "system": "no"}`: {long, "no"},
		`{"messages": [{"role": "user", "content": "q\n\u0061"}, {"content": "r", "role": "x"}]}`:                        {`q\n\u0061`, "r"},
		`{"messages": [{"content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "u"}}]}]}`: {"a"},
		`{"system": "s", "messages": [{"content": "c"}], "metadata": {"content": "m"}, "text": "t"}`:                     {"s", "c"},
		`{"instructions": "i", "input": [{"content": "c", "id": 1, "status": "s"}]}`:                                     {"i", "c"},
		`{"messages": [{"tool": {"content": "inner"}}], "user": "u"}`:                                                    {"inner"},
		`{"model": "m"}`: nil, `{"prompt": ""}`: nil, `{"prompt": 1, "Content": "p"}`: nil, `{"x": {"prompt": "p"}}`: nil,
	} {
		for _, paths := range [][]string{nil, {"model", "prompt", "metadata.content"}} {
			p := plan(t, paths...).WithPrompts(lengths)
			var s jsonfield.Scanner
			for _, size := range []int{1, 3, len(text)} {
				if v := scan(&s, p, []byte(text), size); v != jsonfield.Complete || prompts(&s) != wantPrompts(want) {
					t.Errorf("%s in pieces of %d, fields %q: %v\n%swant\n%s", text, size, paths, v, prompts(&s), wantPrompts(want))
				}
			}
		}
	}
}

// TestPromptIsEnough: if no field is wanted, nothing after the longest prefix is read.
func TestPromptIsEnough(t *testing.T) {
	const text = `{"prompt": "123456", "model": "m"}`
	for _, c := range []struct {
		fields []string
		read   string
		want   bool
	}{
		{nil, `{"prompt": "12`, false},
		{nil, `{"prompt": "1234`, true},
		{nil, text, true},
		{[]string{"model"}, text, false},
	} {
		var s jsonfield.Scanner
		s.Reset(plan(t, c.fields...).WithPrompts([]int{2, 4}))
		if s.Feed([]byte(c.read)); s.Enough() != c.want {
			t.Errorf("%q after %s: %v", c.fields, c.read, s.Enough())
		}
	}
}

func TestPromptAllocatesNothing(t *testing.T) {
	p := plan(t, "model").WithPrompts([]int{64, 1024})
	text := []byte(`{"messages":[{"role":"user","content":"` + strings.Repeat(`x\n`, 1000) + `"}],"model":"gpt-4"}`)
	var s jsonfield.Scanner
	if n := testing.AllocsPerRun(100, func() {
		if s.Reset(p); s.Feed(text) != jsonfield.Complete {
			t.Fatal("not read")
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzPrompt compares with encoding/json, whole and in pieces.
func FuzzPrompt(f *testing.F) {
	for _, text := range []string{
		`{"messages":[{"role":"user","content":"a\"b"},{"content":[{"text":"c","type":"text"},"d"]}],"model":"a"}`,
		`{"prompt":["a",["b"],{"text":"c"}],"x":{"prompt":"no"}}`, `{"\u0070rompt":"p","system":{"content":{"x":"y"},"z":"w"}}`,
	} {
		f.Add([]byte(text), 1)
		f.Add([]byte(text), 7)
	}
	p := plan(f, "model").WithPrompts(lengths)
	f.Fuzz(func(t *testing.T, text []byte, size int) {
		var whole, pieces jsonfield.Scanner
		verdict := scan(&whole, p, text, len(text))
		scan(&pieces, p, text, size)
		if got := prompts(&pieces); got != prompts(&whole) {
			t.Fatalf("%q: whole %s, in pieces %s", text, prompts(&whole), got)
		}
		if verdict != jsonfield.Complete {
			return
		}
		var raw json.RawMessage
		if err := json.NewDecoder(bytes.NewReader(text)).Decode(&raw); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		if got, want := prompts(&whole), wantPrompts(texts(raw)); got != want {
			t.Errorf("%q:\n%swant\n%s", text, got, want)
		}
	})
}

// texts are the texts of an object's prompt, as encoding/json reads it.
func texts(object json.RawMessage) (list []string) {
	var add func(value json.RawMessage, wanted *bool)
	add = func(value json.RawMessage, wanted *bool) {
		switch dec := json.NewDecoder(bytes.NewReader(value)); value[0] {
		case '"':
			if *wanted {
				list = append(list, string(value[1:len(value)-1]))
			}
		case '[', '{':
			_, _ = dec.Token()
			for dec.More() {
				if value[0] == '{' {
					key, _ := dec.Token()
					*wanted = key == "content" || key == "text"
				}
				var inner json.RawMessage
				_ = dec.Decode(&inner)
				add(inner, wanted)
			}
		}
	}
	dec := json.NewDecoder(bytes.NewReader(object))
	_, _ = dec.Token()
	for dec.More() {
		key, _ := dec.Token()
		var value json.RawMessage
		_ = dec.Decode(&value)
		switch key {
		case "prompt", "messages", "input", "system", "instructions":
			wanted := true
			add(value, &wanted)
		}
	}
	return list
}
