package sqlite

import (
	"encoding/hex"
	"io"

	"github.com/headpond/headpond/pgwire"
	"zombiezen.com/go/sqlite"
)

const (
	// largeValue is the size in bytes from which a text or blob is sent in pieces from SQLite's memory. Copies of it,
	// and a hex form of twice its length, would take several times its size.
	largeValue = 64 << 10
	// maxRow is the largest DataRow that clients accept, in bytes: PostgreSQL's limit for a
	// message.
	maxRow = 1<<30 - 1 - 4
)

// large is a value of the current row that is sent from SQLite's memory.
type large struct {
	at   int // position in the row, after the value's length
	col  int
	size int // as sent, in bytes
	hex  bool
}

// isLarge reports whether a column of the current row is sent piece by piece.
func (c *column) isLarge(stmt *sqlite.Stmt, i int) (l large, ok bool) {
	switch c.TypeOID {
	case oidText, oidVarchar, oidBpchar, oidBytea:
	default:
		return l, false
	}
	typ := stmt.ColumnType(i)
	if typ != sqlite.TypeText && typ != sqlite.TypeBlob {
		return l, false
	}
	if l.size = stmt.ColumnLen(i); l.size < largeValue {
		return l, false
	}
	if typ == sqlite.TypeText && c.TypeOID != oidBytea && !isText(columnMemory(stmt, i)) {
		return l, false // not a valid text: encode refuses it
	}
	l.col = i
	if l.hex = typ == sqlite.TypeBlob; c.TypeOID == oidBytea {
		l.hex = c.Format == pgwire.FormatText
	}
	if l.hex {
		l.size = 2 + 2*l.size
	}
	return l, true
}

// writeRow sends a row, with the large values in their places.
func (s *session) writeRow(stmt *sqlite.Stmt, row []byte) error {
	total := len(row)
	for _, l := range s.large {
		total += l.size
	}
	if total > maxRow {
		return sqlError(pgwire.StateProgramLimitExceeded, "a row of %d bytes is too long to send, the limit is %d", total, maxRow).
			hint("Select parts of its values by substr().")
	}
	w, at := s.c.Writer, 0
	w.Header(pgwire.TypeDataRow, total)
	for _, l := range s.large {
		_, _ = w.Write(row[at:l.at]) // the Writer keeps the error
		at = l.at
		if err := s.writeLarge(stmt.ColumnReader(l.col), l.hex); err != nil {
			return err
		}
	}
	if _, err := w.Write(row[at:]); err != nil {
		return errClientGone
	}
	return nil
}

// writeLarge sends a value in pieces and renews the client's time limit after each.
func (s *session) writeLarge(value io.Reader, hexed bool) error {
	dst := io.Writer(s.c.Writer)
	if hexed {
		_, _ = io.WriteString(dst, `\x`)
		dst = hex.NewEncoder(dst)
	}
	if cap(s.cell) < largeValue {
		s.cell = make([]byte, largeValue)
	}
	piece := s.cell[:largeValue]
	for {
		n, _ := value.Read(piece) // reads from memory and fails only at the end, with n = 0
		if n == 0 {
			return nil
		}
		_, _ = dst.Write(piece[:n])
		if err := s.renewLimit(); err != nil {
			return err
		}
	}
}
