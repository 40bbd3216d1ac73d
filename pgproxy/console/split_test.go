package console_test

import (
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/headpond/headpond/pgproxy/console"
)

// FuzzSplit checks that a text of its own tokens is read as the same commands, and that what is shown of a command is one line
// of valid text, short enough for errors and the log.
func FuzzSplit(f *testing.F) {
	for _, text := range []string{
		"", "show pools;", "PAUSE \"a\"\"b\" ; resume", "set x = 'it''s'", "/* /* */ */ show -- all\n version;;", "show \xff\x00", "kill 'a", "a-b $1 (é)",
		strings.Repeat("é", 150), strings.Repeat("show ", 40),
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		kinds, tokens, shown, err := console.Split(text)
		if err != nil {
			return
		}
		var again strings.Builder
		for i, command := range tokens {
			if !utf8.ValidString(shown[i]) || len(shown[i]) > 3*200+len("…") || strings.ContainsAny(shown[i], "\n\r\x00") {
				t.Errorf("%q is shown as %q", text, shown[i])
			}
			for n, token := range command {
				if kind := kinds[i][n : n+1]; kind == `"` || kind == "'" {
					token = kind + strings.ReplaceAll(token, kind, kind+kind) + kind
				}
				again.WriteString(token + " ")
			}
			again.WriteString(";")
		}
		kinds2, tokens2, _, err := console.Split(again.String())
		if err != nil || !reflect.DeepEqual(kinds, kinds2) || !reflect.DeepEqual(tokens, tokens2) {
			t.Errorf("%q is %q, and %q is %q, %v", text, tokens, again.String(), tokens2, err)
		}
	})
}
