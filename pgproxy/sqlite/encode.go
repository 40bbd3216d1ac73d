package sqlite

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/headpond/headpond/pgwire"
	"zombiezen.com/go/sqlite"
)

// column is one result column.
type column struct {
	pgwire.Field
	table, origin string // table and column it comes from; "" for an expression
}

// readValue reads a column of the current row. Texts and blobs are read into buf, which may grow;
// the second result is the new buf.
func readValue(stmt *sqlite.Stmt, col int, buf []byte) (value, []byte) {
	v := value{typ: stmt.ColumnType(col)}
	switch v.typ {
	case sqlite.TypeInteger:
		v.int = stmt.ColumnInt64(col)
	case sqlite.TypeFloat:
		v.float = stmt.ColumnFloat(col)
	case sqlite.TypeText, sqlite.TypeBlob:
		n := stmt.ColumnLen(col)
		if cap(buf) < n {
			buf = make([]byte, n)
		}
		v.text = buf[:stmt.ColumnBytes(col, buf[:n])]
	}
	return v, buf
}

// plain appends v in the format of SQLite's shell; a blob in that of PostgreSQL's bytea.
func (v value) plain(dst []byte) []byte {
	switch v.typ {
	case sqlite.TypeInteger:
		return strconv.AppendInt(dst, v.int, 10)
	case sqlite.TypeFloat:
		return appendFloat(dst, v.float)
	case sqlite.TypeBlob:
		return hex.AppendEncode(append(dst, `\x`...), v.text)
	}
	return append(dst, v.text...)
}

func appendFloat(dst []byte, f float64) []byte {
	switch {
	case math.IsInf(f, 1):
		return append(dst, "Infinity"...)
	case math.IsInf(f, -1):
		return append(dst, "-Infinity"...)
	case math.IsNaN(f):
		return append(dst, "NaN"...)
	}
	if abs := math.Abs(f); abs >= 1e15 || abs < 1e-4 && abs > 0 {
		return strconv.AppendFloat(dst, f, 'e', -1, 64)
	}
	return strconv.AppendFloat(dst, f, 'f', -1, 64)
}

// encode appends v, which is not NULL, in c's type and format. ok is false if v does not fit the
// type: values that contradict the announced type are never sent.
func (c *column) encode(dst []byte, v value) (out []byte, ok bool) {
	bin := c.Format == pgwire.FormatBinary
	switch c.TypeOID {
	case oidBool:
		return encodeBool(dst, v, bin)
	case oidInt8, oidInt4, oidInt2, oidOID:
		return encodeInt(dst, v, c.TypeOID, bin)
	case oidFloat8:
		return encodeFloat(dst, v, bin)
	case oidNumeric:
		at := len(dst)
		if dst, ok = encodeNumeric(dst, v, bin); ok && !bin && c.TypeModifier > 4 {
			dst = padScale(dst, at, int(c.TypeModifier-4)&0xffff)
		}
		return dst, ok
	case oidBytea:
		if v.typ != sqlite.TypeText && v.typ != sqlite.TypeBlob {
			return dst, false
		}
		if bin {
			return append(dst, v.text...), true
		}
		return hex.AppendEncode(append(dst, `\x`...), v.text), true
	case oidDate, oidTime, oidTimestamp, oidTimestamptz:
		return encodeTime(dst, v, c.TypeOID, bin)
	case oidJSON, oidJSONB:
		return encodeJSON(dst, v, bin && c.TypeOID == oidJSONB)
	case oidUUID:
		u, ok := parseUUID(v)
		if bin {
			return append(dst, u[:]...), ok
		}
		return appendUUID(dst, u), ok
	}
	if c.TypeOID != oidText && (elementTypes[c.TypeOID] != 0 || c.TypeOID == oidInt2Vector) {
		return encodeArray(dst, v, c.TypeOID, c.Format)
	}
	return v.plain(dst), v.typ != sqlite.TypeText || isText(v.text)
}

// isText reports whether b is a valid text in PostgreSQL: UTF-8 without NUL.
func isText(b []byte) bool { return bytes.IndexByte(b, 0) < 0 && utf8.Valid(b) }

func encodeJSON(dst []byte, v value, version bool) ([]byte, bool) {
	if v.typ == sqlite.TypeBlob {
		return dst, false
	}
	if version {
		dst = append(dst, 1)
	}
	at := len(dst)
	dst = v.plain(dst)
	return dst, v.typ == sqlite.TypeInteger || json.Valid(dst[at:])
}

// padScale appends the zeros that a numeric in dst[at:] lacks after its decimal point: NUMERIC(10,2) shows two digits.
func padScale(dst []byte, at, scale int) []byte {
	number := dst[at:]
	if bytes.ContainsAny(number, "eEnN") || scale == 0 {
		return dst
	}
	digits := 0
	if point := bytes.IndexByte(number, '.'); point >= 0 {
		digits = len(number) - point - 1
	} else {
		dst = append(dst, '.')
	}
	for ; digits < scale; digits++ {
		dst = append(dst, '0')
	}
	return dst
}

func encodeBool(dst []byte, v value, bin bool) ([]byte, bool) {
	var b bool
	switch v.typ {
	case sqlite.TypeInteger:
		if v.int != 0 && v.int != 1 {
			return dst, false
		}
		b = v.int == 1
	case sqlite.TypeText:
		var ok bool
		if b, ok = parseBool(string(v.text)); !ok {
			return dst, false
		}
	default:
		return dst, false
	}
	switch {
	case bin && b:
		return append(dst, 1), true
	case bin:
		return append(dst, 0), true
	case b:
		return append(dst, 't'), true
	}
	return append(dst, 'f'), true
}

// parseBool reads PostgreSQL's notations of a bool.
func parseBool(s string) (b, ok bool) {
	switch strings.ToLower(strings.TrimSpace(s)) {
	case "t", "true", "y", "yes", "on", "1":
		return true, true
	case "f", "false", "n", "no", "off", "0":
		return false, true
	}
	return false, false
}

func encodeInt(dst []byte, v value, oid uint32, bin bool) ([]byte, bool) {
	n := v.int
	switch v.typ {
	case sqlite.TypeFloat:
		if n = int64(v.float); float64(n) != v.float || math.Abs(v.float) >= 1<<63 {
			return dst, false
		}
	case sqlite.TypeInteger:
	default:
		return dst, false
	}
	size := 8
	switch oid {
	case oidInt4:
		if n != int64(int32(n)) {
			return dst, false
		}
		size = 4
	case oidOID:
		if n != int64(uint32(n)) {
			return dst, false
		}
		size = 4
	case oidInt2:
		if n != int64(int16(n)) {
			return dst, false
		}
		size = 2
	}
	if !bin {
		return strconv.AppendInt(dst, n, 10), true
	}
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], uint64(n))
	return append(dst, b[8-size:]...), true
}

func encodeFloat(dst []byte, v value, bin bool) ([]byte, bool) {
	f := v.float
	switch v.typ {
	case sqlite.TypeInteger:
		f = float64(v.int)
	case sqlite.TypeFloat:
	default:
		return dst, false
	}
	if bin {
		return binary.BigEndian.AppendUint64(dst, math.Float64bits(f)), true
	}
	return appendFloat(dst, f), true
}

func encodeNumeric(dst []byte, v value, bin bool) ([]byte, bool) {
	at := len(dst)
	switch v.typ {
	case sqlite.TypeInteger:
		dst = strconv.AppendInt(dst, v.int, 10)
	case sqlite.TypeFloat:
		dst = strconv.AppendFloat(dst, v.float, 'f', -1, 64)
	case sqlite.TypeText:
		dst = append(dst, bytes.TrimSuffix(v.text, []byte(exactMark))...)
	}
	if !isDecimal(string(dst[at:])) {
		return dst[:at], false
	}
	if bin {
		return appendNumeric(dst[:at], string(dst[at:])), true
	}
	return dst, true
}

func encodeTime(dst []byte, v value, oid uint32, bin bool) ([]byte, bool) {
	t, ok := moment(oid, v, false)
	if !ok {
		return dst, false
	}
	switch {
	case bin && oid == oidDate:
		return binary.BigEndian.AppendUint32(dst, uint32(int32((t.Truncate(24*time.Hour).Unix()-epoch2000)/86400))), true
	case bin && oid == oidTime:
		return binary.BigEndian.AppendUint64(dst, uint64(sinceMidnight(t).Microseconds())), true
	case bin:
		return binary.BigEndian.AppendUint64(dst, uint64(t.UnixMicro()-epoch2000*1e6)), true
	case oid == oidDate:
		return t.AppendFormat(dst, time.DateOnly), true
	case oid == oidTime:
		return t.AppendFormat(dst, clockLayout), true
	case oid == oidTimestamp:
		return t.AppendFormat(dst, timeLayout), true
	}
	return t.AppendFormat(dst, timeLayout+"+00"), true
}

const (
	// epoch2000 is the epoch of PostgreSQL's times, in Unix seconds.
	epoch2000   = 946684800
	timeLayout  = "2006-01-02 15:04:05.999999"
	clockLayout = "15:04:05.999999"
)

var timeLayouts = []string{
	"2006-01-02 15:04:05.999999999Z07:00", "2006-01-02 15:04:05.999999999Z07", "2006-01-02 15:04:05.999999999 Z07:00",
	"2006-01-02 15:04Z07:00", "2006-01-02 15:04:05.999999999", "2006-01-02 15:04", time.DateOnly,
	"2006-01-02 15:04:05.999999999 Z07", "2006-01-02 Z07:00", "2006-01-02 Z07",
}

// parseZoned reads a time in the usual notations, in the zone in the text or else in UTC.
func parseZoned(s string) (time.Time, bool) {
	s = strings.TrimSpace(s)
	if t, ok := parsePlain(s); ok {
		return t, true
	}
	if len(s) > 10 && s[10] == 'T' {
		s = s[:10] + " " + s[11:]
	}
	for _, layout := range timeLayouts {
		if t, err := time.Parse(layout, s); err == nil {
			return t, true
		}
	}
	return time.Time{}, false
}

// parsePlain is the fast path of parseZoned: YYYY-MM-DD, optionally with HH:MM:SS, as written by SQLite and this
// package.
func parsePlain(s string) (t time.Time, ok bool) {
	if len(s) != len(time.DateOnly) && len(s) != len(time.DateTime) || s[4] != '-' || s[7] != '-' {
		return t, false
	}
	ok = true
	number := func(from, to int) (n int) {
		for i := from; i < to; i++ {
			ok = ok && s[i] >= '0' && s[i] <= '9'
			n = n*10 + int(s[i]-'0')
		}
		return n
	}
	y, m, d := number(0, 4), number(5, 7), number(8, 10)
	var hour, minute, second int
	if len(s) > len(time.DateOnly) {
		ok = ok && (s[10] == ' ' || s[10] == 'T') && s[13] == ':' && s[16] == ':'
		hour, minute, second = number(11, 13), number(14, 16), number(17, 19)
	}
	t = time.Date(y, time.Month(m), d, hour, minute, second, 0, time.UTC)
	return t, ok && t.Month() == time.Month(m) && t.Day() == d && t.Hour() == hour && t.Minute() == minute && t.Second() == second
}

func sinceMidnight(t time.Time) time.Duration {
	return t.Sub(time.Date(t.Year(), t.Month(), t.Day(), 0, 0, 0, 0, time.UTC))
}

// parseClock reads a time of day.
func parseClock(s string) (time.Time, bool) {
	for _, layout := range []string{"15:04:05.999999999", "15:04"} {
		if t, err := time.Parse(layout, s); err == nil {
			return t, true
		}
	}
	return time.Time{}, false
}

// misfit returns the error for a value that does not fit its column's type. SQLite allows any value
// in a column; a PostgreSQL client reads one type.
func misfit(c *column, v value, row int) error {
	text := strconv.Quote(clip(string(v.plain(nil))))
	number := v.typ == sqlite.TypeInteger || v.typ == sqlite.TypeFloat
	switch {
	case v.typ == sqlite.TypeText && !isText(v.text) && c.TypeOID != oidBytea:
		return sqlError(stateNotInRepertoire, `column %q holds a text in row %d that is not UTF-8 without NUL: %s`, c.Name, row+1, text).
			hint(`To read its bytes, select CAST(%s AS BLOB).`, quoteIdent(c.Name))
	case v.typ == sqlite.TypeInteger && c.origin != "" && isInt(c.TypeOID):
		return sqlError(pgwire.StateNumericOutOfRange, "column %q was sent as %s, but row %d holds %s", c.Name, typeName(c.TypeOID), row+1, text).
			hint("It is sent as bigint from now on: run the statement again. Declare it BIGINT to have it so from the start.").because(errWide)
	case number && numberRank[c.TypeOID] > 1:
		return sqlError(pgwire.StateNumericOutOfRange, "column %q is sent as %s, for which row %d holds %s, which is out of range", c.Name, typeName(c.TypeOID), row+1, text).
			hint("Cast the operands or the column to a wider type, or declare the column BIGINT or DOUBLE PRECISION.")
	}
	kind := strings.ToLower(strings.TrimPrefix(v.typ.String(), "SQLITE_"))
	return sqlError(pgwire.StateDatatypeMismatch, "column %q is sent as %s, but row %d holds the %s %s", c.Name, typeName(c.TypeOID), row+1, kind, text).
		hint(`To read such values, select CAST(%s AS TEXT).`, quoteIdent(c.Name))
}
