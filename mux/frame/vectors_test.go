package frame_test

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"os"
	"strings"
	"testing"
)

type vector struct {
	name    string
	invalid bool
	wire    []byte
}

// vectors reads testdata/vectors.txt: "name: hex", a name that starts with "bad" for bytes to be
// refused, spaces in the hex for readability, a line that starts with a space continues the one
// before.
func vectors(t testing.TB) []vector {
	t.Helper()
	src, err := os.ReadFile("testdata/vectors.txt")
	if err != nil {
		t.Fatal(err)
	}
	var all []vector
	lines := bufio.NewScanner(bytes.NewReader(src))
	for lines.Scan() {
		line := lines.Text()
		if line == "" || line[0] == '#' {
			continue
		}
		digits := line
		if line[0] != ' ' {
			name, rest, ok := strings.Cut(line, ":")
			if !ok {
				t.Fatalf("vector without a name: %q", line)
			}
			all = append(all, vector{name: name, invalid: strings.HasPrefix(name, "bad")})
			digits = rest
		}
		b, err := hex.DecodeString(strings.ReplaceAll(digits, " ", ""))
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		v := &all[len(all)-1]
		v.wire = append(v.wire, b...)
	}
	return all
}
