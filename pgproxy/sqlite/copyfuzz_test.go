package sqlite_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/headpond/headpond/pgproxy/sqlite"
)

// FuzzCopy checks that COPY FROM reads the rows that COPY TO wrote, in chunks of any size, and that it reads any data
// within its memory limit.
func FuzzCopy(f *testing.F) {
	for _, seed := range []struct{ data, delimiter, quote, escape, null string }{
		{"a|b\n\\N|\\.\r", "", "", "", ""}, {"1,\"a\"\"\",\r\n", ",", "\"", "\"", ""}, {"'it\\'s;", ";", "'", "\\", "NULL"},
		{"\\x41\\101\\b", "|", "", "", "nil"}, {"a\rb\r\n", "", "", "", "x"}, {"\\.\n", ",", "", "", "\\."},
	} {
		f.Add([]byte(seed.data), true, seed.delimiter, seed.quote, seed.escape, seed.null, uint8(2), uint8(3))
		f.Add([]byte(seed.data), false, seed.delimiter, "", "", seed.null, uint8(1), uint8(200))
	}
	f.Fuzz(func(t *testing.T, data []byte, csv bool, delimiter, quote, escape, null string, columns, size uint8) {
		options := map[string]string{"format": "text", "null": null}
		if delimiter != "" {
			options["delimiter"] = delimiter
		}
		if csv {
			options["format"] = "csv"
			if quote != "" {
				options["quote"] = quote
			}
			if escape != "" {
				options["escape"] = escape
			}
		}
		format, err := sqlite.NewCopyFormat(options)
		if err != nil {
			return
		}
		width, piece := int(columns%4)+1, int(size)+1
		_, held, err := format.Rows(data, piece, width)
		if limit := 8 * (sqlite.MaxCopyRow + len(data)); held > limit {
			t.Fatalf("%d bytes held for %d of data, %v", held, len(data), err)
		}
		var lines []byte
		var want [][][]byte
		for row := range slices.Chunk(valuesOf(data), width) {
			if len(row) < width {
				break
			}
			line, means := format.Line(row)
			lines, want = append(lines, line...), append(want, means)
		}
		got, _, err := format.Rows(lines, piece, width)
		if err != nil || !slices.EqualFunc(got, want, sameRow) {
			t.Fatalf("%q in format %q: rows %q came back as %q, %v", lines, options, want, got, err)
		}
	})
}

// valuesOf splits data into values at zero bytes. A value that begins with a one is NULL.
func valuesOf(data []byte) (values [][]byte) {
	for v := range bytes.SplitSeq(data, []byte{0}) {
		if len(v) > 0 && v[0] == 1 {
			v = nil
		} else if v == nil {
			v = []byte{}
		}
		values = append(values, v)
	}
	return values
}

func sameRow(a, b [][]byte) bool {
	return slices.EqualFunc(a, b, func(x, y []byte) bool { return bytes.Equal(x, y) && (x == nil) == (y == nil) })
}
