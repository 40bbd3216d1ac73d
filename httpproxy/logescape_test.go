package httpproxy_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/headpond/headpond/httpproxy"
)

// FuzzLogEscape: a client's value stays on its line, ends at its quotes, and as JSON reads back the same, except for
// invalid UTF-8.
func FuzzLogEscape(f *testing.F) {
	for _, s := range []string{"", "a", `"\`, "\n\r\t\x00\x7f", "\xff\xfe", "é\u0085\u2028\u202e\U000e0001", "\xe2\x80", strings.Repeat("é", 2000), strings.Repeat("x", 2047) + "€"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, value string) {
		for _, asJSON := range []bool{true, false} {
			got := string(httpproxy.AppendEscaped(nil, value, asJSON))
			for _, r := range got {
				if r < ' ' || 0x7f <= r && r < 0xa0 || r == 0x2028 {
					t.Fatalf("%q has %U", got, r)
				}
			}
			if !utf8.ValidString(got) || len(got) > 6*2048+3 {
				t.Fatalf("%d bytes: %q", len(got), got)
			}
			if rest := strings.NewReplacer(`\\`, "", `\"`, "").Replace(got); strings.Contains(rest, `"`) {
				t.Fatalf("%q has a quote", got)
			}
			var back string
			if !asJSON {
				continue
			}
			if err := json.Unmarshal([]byte(`"`+got+`"`), &back); err != nil {
				t.Fatalf("%q: %v", got, err)
			}
			if len(value) <= 2048 && utf8.ValidString(value) && !strings.ContainsFunc(value, func(r rune) bool { return r > 0xffff }) && back != value {
				t.Fatalf("%q became %q", value, back)
			}
		}
	})
}
