package sqlite_test

import (
	"bytes"
	"encoding/hex"
	"testing"

	"github.com/headpond/headpond/pgwire"
)

// Large values arrive unchanged, with any other values in the row and in both formats.
func TestLargeValues(t *testing.T) {
	s := start(t)
	conn := s.connect(t)
	blob, text := bytes.Repeat([]byte{1, 0, 255}, 23000), string(bytes.Repeat([]byte("ä€"), 14000))
	mustExec(t, conn, `CREATE TABLE large (a TEXT, b BLOB, c TEXT, d BLOB)`)
	mustExec(t, conn, `INSERT INTO large VALUES ($1, $2, $3, $4)`, text, blob, "small", text)
	for _, format := range []int16{pgwire.FormatText, pgwire.FormatBinary} {
		r := conn.PgConn().ExecParams(t.Context(), `SELECT a, b, c, d, b FROM large`, nil, nil, nil, []int16{format}).Read()
		if r.Err != nil {
			t.Fatal(r.Err)
		}
		sent := func(b []byte) string {
			if format == pgwire.FormatText {
				return `\x` + hex.EncodeToString(b)
			}
			return string(b)
		}
		for i, want := range []string{text, sent(blob), "small", sent([]byte(text)), sent(blob)} {
			if got := string(r.Rows[0][i]); got != want {
				t.Errorf("format %d, column %d: %d bytes, want %d", format, i, len(got), len(want))
			}
		}
	}
}
