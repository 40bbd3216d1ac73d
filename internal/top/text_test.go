package top_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/quick"

	"github.com/headpond/headpond/internal/top"
)

func TestClean(t *testing.T) {
	for text, want := range map[string]string{
		"plain":                  "plain",
		"\x1b[31m\a\n\t\x7f":     `\x1b[31m\x07\x0a\x09\x7f`,
		"\u202eright":            `\u202eright`, // would turn the line around
		"日本":                     "日本",
		"e\u0301":                "e\u0301",
		"\u0301a":                "a", // would change the cell before
		"a\u0300\u0301\u0302":    "a\u0300\u0301",
		"\u2028\u00a0\U000e0041": `\u2028\xa0\ue0041`,
		"☺\ufe0f":                "☺",
	} {
		if got := top.Clean(text); got != want {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
}

func TestColumns(t *testing.T) {
	for text, want := range map[string]int{"": 0, "abc": 3, "日本": 4, "e\u0301": 1, "ｱ": 1, "ﾊ\u3099": 1, "😀": 2, "…": 1} {
		if got := top.Columns(text); got != want {
			t.Errorf("%q takes %d columns, want %d", text, got, want)
		}
	}
	for _, c := range []struct {
		text string
		n    int
		want string
	}{{"abc", 3, "abc"}, {"abcd", 3, "ab…"}, {"日本語", 5, "日本…"}, {"日本語", 4, "日…"}, {"abc", 0, ""}, {"日", 1, "…"}, {"e\u0301e\u0301e", 2, "e\u0301…"}} {
		if got := top.Clip(c.text, c.n); got != c.want {
			t.Errorf("%q in %d columns is %q, want %q", c.text, c.n, got, c.want)
		}
	}
	if got := top.Wrap("abc日本e", 4); fmt.Sprint(got) != "[abc 日本 e]" {
		t.Errorf("%q", got)
	}
	fits := func(text string, width uint8) bool {
		n, clean := int(width%100), top.Clean(text)
		lines := top.Wrap(clean, n)
		for _, l := range lines {
			if top.Columns(l) > max(n, 2) {
				return false
			}
		}
		return top.Columns(top.Clip(clean, n)) <= n && strings.Join(lines, "") == clean && top.Clean(clean) == clean
	}
	if err := quick.Check(fits, nil); err != nil {
		t.Error(err)
	}
}

func TestNumbers(t *testing.T) {
	for n, want := range map[float64]string{
		0: "0", 0.04: "0.0", 0.25: "0.2", 7: "7", 9.94: "9.9", 9.96: "10", 99999: "99999", 99999.5: "100k", 1e6: "1.0M", 1.24e7: "12M", 9.996e8: "1.0G", 1e30: "huge",
	} {
		if got := top.Number(n); got != want {
			t.Errorf("%v is %s, want %s", n, got, want)
		}
	}
	for n, want := range map[float64]string{0: "0", 1023: "1023", 1024: "1.0K", 88 << 20: "88M", 1023.9 * 1024: "1.0M", 5 << 30: "5.0G", math.MaxUint64: "16E"} {
		if got := top.Size(n); got != want {
			t.Errorf("%v is %s, want %s", n, got, want)
		}
	}
	for n, want := range map[float64]string{1.0 / (1 << 20): "1µs", 0.00035: "350µs", 0.0009996: "1.0ms", 0.0131: "13ms", 0.9999: "1.0s", 4096: "4096s"} {
		if got := top.Latency(n); got != want {
			t.Errorf("%v is %s, want %s", n, got, want)
		}
	}
	for n, want := range map[float64]string{0.04: "0.0s", 9.94: "9.9s", 75: "75s", 600: "10m", 7200: "2h", 200000: "2d"} {
		if got := top.Age(n); got != want {
			t.Errorf("%v is %s, want %s", n, got, want)
		}
	}
	for n, want := range map[float64]string{59: "59s", 61: "1m1s", 3700: "1h1m", 360000: "4d4h"} {
		if got := top.Uptime(n); got != want {
			t.Errorf("%v is %s, want %s", n, got, want)
		}
	}
}

// TestDecode: keys come whole or in pieces, as lines deliver them.
func TestDecode(t *testing.T) {
	input := "a\x1b[Aé\x1bOB\x1b[5~\x1b[H\x1b[1;5C\x1b\x1b[B\r\t\x7f\x03\x00日\x1b[200~"
	want := "[a up é down page up home unknown escape down enter tab backspace ^C unknown 日 unknown]"
	keys, rest := top.Decode([]byte(input), true)
	if got := fmt.Sprint(keys); got != want || len(rest) != 0 {
		t.Errorf("%s, %q", got, rest)
	}
	var all []top.Key
	rest = nil
	for i := range len(input) {
		keys, rest = top.Decode(append(rest, input[i]), false)
		all = append(all, keys...)
	}
	if got := fmt.Sprint(all); got != want || len(rest) != 0 {
		t.Errorf("in pieces: %s, %q", got, rest)
	}
	for _, pending := range []string{"\x1b", "\x1b[", "\x1b[1;5", "\xe6\x97"} {
		if keys, rest := top.Decode([]byte(pending), false); len(keys) != 0 || string(rest) != pending {
			t.Errorf("%q: %v, %q", pending, keys, rest)
		}
		if keys, rest := top.Decode([]byte(pending), true); len(keys) == 0 || len(rest) != 0 {
			t.Errorf("%q at last: %v, %q", pending, keys, rest)
		}
	}
	if keys, rest := top.Decode([]byte("\x1b["+strings.Repeat("1;", 1000)), false); len(keys) == 0 || len(rest) != 0 {
		t.Errorf("a sequence without an end: %v, %d bytes are kept", keys, len(rest))
	}
}

func TestPaletteOf(t *testing.T) {
	for _, c := range []struct {
		term, noColor string
		colours       bool
	}{{"xterm-256color", "", true}, {"xterm", "1", false}, {"vt100", "", false}, {"xterm-mono", "", false}, {"linux-m", "", false}, {"", "", true}} {
		p := top.PaletteOf(func(name string) string { return map[string]string{"TERM": c.term, "NO_COLOR": c.noColor}[name] })
		if got := strings.Contains(fmt.Sprint(p), "3"); got != c.colours {
			t.Errorf("%+v: %q", c, p)
		}
	}
}
