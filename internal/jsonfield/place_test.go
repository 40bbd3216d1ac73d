package jsonfield_test

import (
	"testing"

	"github.com/headpond/headpond/internal/jsonfield"
)

// TestPlace: values are found where they stand, whatever the pieces.
func TestPlace(t *testing.T) {
	plan, err := jsonfield.NewPlan([]string{"a", "o", "o.b"})
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string][3]string{
		" \n{\"a\":12,\"o\":{\"b\":true}}":      {"12", "{", "true"},
		`{"o":{ },"a":"x\n"}`:                   {`"x\n"`, "{}", ""},
		`{"o":{"c":[]},"a":[ ]}`:                {"[]", "{", ""},
		`{"o":null , "a" : -1.5e3 }`:            {"-1.5e3", "null", ""},
		`{"c":[1,[],{}],"a":[[]],"o":{"b":""}}`: {"[", "{", `""`},
	} {
		for size := 1; size <= len(text); size++ {
			var s jsonfield.Scanner
			s.Reset(plan)
			verdict := jsonfield.More
			for b := []byte(text); len(b) > 0; b = b[min(size, len(b)):] {
				verdict = s.Feed(b[:min(size, len(b))])
			}
			if verdict != jsonfield.Complete || text[s.Start()] != '{' {
				t.Errorf("%q: %v, from %d", text, verdict, s.Start())
			}
			for i, w := range want {
				p, ok := s.Place(i)
				if ok != (w != "") || ok && text[p.From:p.To] != w[:p.To-p.From] || ok && p.To-p.From != len(w) && !s.Empty(i) || s.Empty(i) != (w == "{}" || w == "[]") {
					t.Errorf("%q in pieces of %d: field %d at %+v, %v, empty %v; want %q", text, size, i, p, ok, s.Empty(i), w)
				}
			}
		}
	}
}

// TestTextSize: the size of the prompt does not depend on pieces, and hashes do not depend on whether it is wanted.
func TestTextSize(t *testing.T) {
	const text = `{"model":"m","messages":[{"role":"user","content":"12345"},{"content":[{"type":"text","text":"678"},{"type":"image_url","image_url":{"url":"data"}}]}],"input":"9"}`
	plain, err := jsonfield.NewPlan([]string{"model"})
	if err != nil {
		t.Fatal(err)
	}
	hashed := plain.WithPrompts([]int{3, 7})
	for size := 1; size <= len(text); size++ {
		for _, plan := range []*jsonfield.Plan{plain.WithPromptSize(), hashed.WithPromptSize()} {
			var s jsonfield.Scanner
			s.Reset(plan)
			for b := []byte(text); len(b) > 0; b = b[min(size, len(b)):] {
				s.Feed(b[:min(size, len(b))])
			}
			if got := s.TextSize(); got != 9 {
				t.Fatalf("in pieces of %d: %d bytes", size, got)
			}
		}
	}
	var one, other jsonfield.Scanner
	one.Reset(hashed)
	other.Reset(hashed.WithPromptSize())
	one.Feed([]byte(text))
	other.Feed([]byte(text))
	for i := range 2 {
		a, _ := one.Prompt(i)
		if b, ok := other.Prompt(i); a != b || !ok {
			t.Errorf("prefix %d: %x and %x", i, a, b)
		}
	}
}
