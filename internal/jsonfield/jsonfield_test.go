package jsonfield_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/headpond/headpond/internal/jsonfield"
)

// paths are the fields that tests look for.
var paths = []string{"model", "metadata.tenant", "metadata", "a.b.c", "é"}

func plan(t testing.TB, paths ...string) *jsonfield.Plan {
	t.Helper()
	p, err := jsonfield.NewPlan(paths)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// results are the results of a scanner: the verdict, and each field found, with its text if it has one.
func results(s *jsonfield.Scanner, v jsonfield.Verdict) string {
	out := fmt.Sprint(v)
	if v != jsonfield.Complete {
		return out
	}
	for i, path := range paths {
		if text, ok := s.Text(i); ok {
			out += fmt.Sprintf(" %s=%q", path, text)
		} else if s.Found(i) {
			out += " " + path
		}
	}
	return out
}

// scan feeds a text in pieces of a size.
func scan(s *jsonfield.Scanner, p *jsonfield.Plan, text []byte, size int) jsonfield.Verdict {
	s.Reset(p)
	v := jsonfield.More
	for len(text) > 0 {
		n := min(max(size, 1), len(text))
		v = s.Feed(text[:n])
		text = text[n:]
	}
	return v
}

func TestScanner(t *testing.T) {
	deep := func(n int) string { return `{"x":` + strings.Repeat("[", n) + strings.Repeat("]", n) + `,"model":"a"}` }
	long := strings.Repeat("x", jsonfield.MaxText)
	p := plan(t, paths...)
	for text, want := range map[string]string{
		`{"model":"a"}`:                                                   `1 model="a"`,
		" {\n\t\"model\" : \"a\" \r} garbage":                             `1 model="a"`,
		`{"m\u006fdel":"\u0061\n\ud83d\ude00"}`:                           `1 model="a\n😀"`,
		`{"model":"\ud800"}`:                                              "1 model=\"\ufffd\"",
		"{\"model\":\"\xff\"}":                                            "1 model=\"\ufffd\"",
		`{"\u00e9":-1.50e+3}`:                                             `1 é="-1.50e+3"`,
		`{"model":true,"é":null}`:                                         `1 model="true" é="null"`,
		`{"model":""}`:                                                    `1 model=""`,
		`{"model":{"model":"b"},"a":{"b":["c",{"c":1}]}}`:                 `1 model`,
		`{"metadata":{"tenant":"t","x":[{"tenant":1}]},"model":0}`:        `1 model="0" metadata.tenant="t" metadata`,
		`{"a":{"x":{"b":{"c":1}},"b":{"c":"found"}}}`:                     `1 a.b.c="found"`,
		`{"x":{"model":"inner"},"y":["model","z"],"Model":"A"}`:           `1`,
		`{"model":"` + long + `"}`:                                        `1 model="` + long + `"`,
		`{"model":"` + long + `x"}`:                                       `1 model`,
		`{"` + long + `x":1,"model":1}`:                                   `1 model="1"`,
		`{"model":"` + strings.Repeat(`\u0061`, jsonfield.MaxText) + `"}`: `1 model="` + strings.Repeat("a", jsonfield.MaxText) + `"`,
		`{}`:                              `1`,
		deep(255):                         `1 model="a"`,
		deep(256):                         `2`,
		`{"model":"a"`:                    `0`,
		`{"model":"a`:                     `0`,
		`{"model":12`:                     `0`,
		``:                                `0`,
		` `:                               `0`,
		`["model"]`:                       `2`,
		`"model"`:                         `2`,
		`{"model":01}`:                    `2`,
		`{"model":1.}`:                    `2`,
		`{"model":-}`:                     `2`,
		`{"model":tru}`:                   `2`,
		`{"model":"a",}`:                  `2`,
		`{"model":"a"]`:                   `2`,
		`{"x":[1}`:                        `2`,
		`{"x":[1,]}`:                      `2`,
		`{model:"a"}`:                     `2`,
		`{'model':"a"}`:                   `2`,
		"{\"model\":\"\n":                 `2`,
		`{"model":"\x"}`:                  `2`,
		`{"model":"\u00g`:                 `2`,
		"\ufeff{}":                        `2`,
		`{"model":"a","model":"a"}`:       `3`,
		`{"model":"a","m\u006fdel":"b"}`:  `3`,
		`{"model":"a","x":1,"Model":"b"}`: `3`,
		`{"metadata":{"tenant":1},"metadata":{}}`:          `3`,
		`{"metadata":{"tenant":1,"tenant":2}}`:             `3`,
		`{"metadata":{"x":1,"x":2},"model":1,"y":2,"y":3}`: `1 model="1" metadata`,
		`{"x":{"model":1,"model":2},"model":"a"}`:          `1 model="a"`,
	} {
		var s jsonfield.Scanner
		for _, size := range []int{1, 3, len(text)} {
			if got := results(&s, scan(&s, p, []byte(text), size)); got != want {
				t.Errorf("%.80s in pieces of %d: %.200s, want %.200s", text, size, got, want)
			}
		}
	}
}

func TestPlanErrors(t *testing.T) {
	for want, paths := range map[string][]string{
		"want a name":        {"a..b"},
		"want a name, or":    {""},
		"9 parts":            {"a.b.c.d.e.f.g.h.i"},
		"there twice":        {"a.b", "a.b"},
		"at most 256 bytes":  {strings.Repeat("a", 257)},
		"33 fields; at most": make([]string, 33),
	} {
		if _, err := jsonfield.NewPlan(paths); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestNoAllocations: a reused scanner allocates nothing, unless a text has escapes.
func TestNoAllocations(t *testing.T) {
	p := plan(t, paths...)
	text := []byte(`{"messages":[{"role":"user","content":"` + strings.Repeat(`x\n`, 1000) + `"}],"metadata":{"tenant":"t"},"model":"gpt-4"}`)
	var s jsonfield.Scanner
	if n := testing.AllocsPerRun(100, func() {
		if s.Reset(p); s.Feed(text) != jsonfield.Complete {
			t.Fatal("not read")
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzScanner compares the scanner with encoding/json, whole and in pieces.
func FuzzScanner(f *testing.F) {
	for _, text := range []string{
		`{"model":"a","metadata":{"tenant":"b"},"a":{"b":{"c":[1,2,{"c":3}]}},"é":1.5e3}`, `{"MODEL":1,"model":2}`,
		`{"m\u006fdel":"\ud83d\ude00\/"}`, `{"a":{"b":{}},"a":1}`, `{"model":tru`, `[{}]`, `{"model":-0.0E-1, "x":[[],{}]} {`, `{"metadata":{"tenant":"` + "\xff" + `"}}`,
	} {
		f.Add([]byte(text), 1)
		f.Add([]byte(text), 7)
	}
	p := plan(f, paths...)
	f.Fuzz(func(t *testing.T, text []byte, size int) {
		if bytes.Count(text, []byte("{"))+bytes.Count(text, []byte("[")) > 256 {
			return // encoding/json allows more
		}
		var whole, pieces jsonfield.Scanner
		verdict := scan(&whole, p, text, len(text))
		got := results(&whole, verdict)
		if inPieces := results(&pieces, scan(&pieces, p, text, size)); inPieces != got {
			t.Fatalf("%q: whole %s, in pieces %s", text, got, inPieces)
		}
		want := standard(text)
		if verdict == jsonfield.Ambiguous && (want == "0" || want == "2") {
			return // the verdict came before the end or the error
		}
		if got != want {
			t.Errorf("%q: %s, encoding/json %s", text, got, want)
		}
	})
}

// standard is the result of encoding/json.
func standard(text []byte) string {
	if start := bytes.TrimLeft(text, " \t\r\n"); len(start) > 0 && start[0] != '{' {
		return fmt.Sprint(jsonfield.Malformed)
	}
	var raw json.RawMessage
	switch err := json.NewDecoder(bytes.NewReader(text)).Decode(&raw); {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Sprint(jsonfield.More)
	case err != nil:
		return fmt.Sprint(jsonfield.Malformed)
	}
	found := map[string]string{}
	if !walk(json.NewDecoder(bytes.NewReader(raw)), "", found) {
		return fmt.Sprint(jsonfield.Ambiguous)
	}
	out := fmt.Sprint(jsonfield.Complete)
	for _, path := range paths {
		out += found[path]
	}
	return out
}

// walk records the wanted values of an object whose keys begin with prefix. It returns false if a wanted key, or an
// object that leads to one, occurs twice.
func walk(dec *json.Decoder, prefix string, found map[string]string) bool {
	_, _ = dec.Token()
	seen := map[string]bool{}
	for dec.More() {
		t, _ := dec.Token()
		key := t.(string)
		var wanted []string // keys of objects that lead to fields
		for _, path := range paths {
			rest, ok := strings.CutPrefix(path, prefix)
			if name, _, _ := strings.Cut(rest, "."); ok && strings.EqualFold(name, key) {
				wanted = append(wanted, name)
			}
		}
		var value json.RawMessage
		_ = dec.Decode(&value)
		if len(wanted) == 0 {
			continue
		}
		if seen[wanted[0]] {
			return false
		}
		if seen[wanted[0]] = true; wanted[0] != key {
			continue
		}
		path := prefix + key
		var text string
		switch {
		case value[0] == '{':
			found[path] = " " + path
			if !walk(json.NewDecoder(bytes.NewReader(value)), path+".", found) {
				return false
			}
			continue
		case value[0] == '[':
			found[path] = " " + path
			continue
		case value[0] != '"':
			text = string(value)
		default:
			_ = json.Unmarshal(value, &text)
		}
		if found[path] = fmt.Sprintf(" %s=%q", path, text); len(text) > jsonfield.MaxText {
			found[path] = " " + path
		}
	}
	return true
}
