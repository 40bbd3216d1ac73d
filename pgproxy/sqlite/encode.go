package sqlite

import (
	"encoding/binary"
	"encoding/hex"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/headpond/headpond/pgwire"
	"zombiezen.com/go/sqlite"
)

// column is one result column.
type column struct {
	pgwire.Field
}

// value is a value of SQLite: one of its five storage classes.
type value struct {
	typ   sqlite.ColumnType
	int   int64
	float float64
	text  []byte // of a text or blob; valid until the statement steps
}

// readValue reads a column of the current row. buf is reused for texts and
// blobs; the second result is buf grown.
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

// plain appends v as SQLite would print it, a blob as PostgreSQL prints bytea.
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

// encode appends v, which is not NULL, as a value of c's type and format. ok is
// false if v does not fit the type.
func (c *column) encode(dst []byte, v value) (out []byte, ok bool) {
	bin := c.Format == pgwire.FormatBinary
	switch c.TypeOID {
	case oidBool:
		return encodeBool(dst, v, bin)
	case oidInt8:
		return encodeInt(dst, v, bin)
	case oidFloat8:
		return encodeFloat(dst, v, bin)
	case oidNumeric:
		return encodeNumeric(dst, v, bin)
	case oidBytea:
		if v.typ != sqlite.TypeText && v.typ != sqlite.TypeBlob {
			return dst, false
		}
		if bin {
			return append(dst, v.text...), true
		}
		return hex.AppendEncode(append(dst, `\x`...), v.text), true
	case oidDate, oidTimestamp, oidTimestamptz:
		return encodeTime(dst, v, c.TypeOID, bin)
	case oidJSON:
		return v.plain(dst), v.typ != sqlite.TypeBlob
	}
	return v.plain(dst), true
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

// parseBool reads the texts PostgreSQL takes for a bool.
func parseBool(s string) (b, ok bool) {
	switch strings.ToLower(strings.TrimSpace(s)) {
	case "t", "true", "y", "yes", "on", "1":
		return true, true
	case "f", "false", "n", "no", "off", "0":
		return false, true
	}
	return false, false
}

func encodeInt(dst []byte, v value, bin bool) ([]byte, bool) {
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
	if bin {
		return binary.BigEndian.AppendUint64(dst, uint64(n)), true
	}
	return strconv.AppendInt(dst, n, 10), true
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
	var text []byte
	switch v.typ {
	case sqlite.TypeInteger, sqlite.TypeText:
		text = v.plain(nil)
	case sqlite.TypeFloat:
		text = strconv.AppendFloat(nil, v.float, 'f', -1, 64)
	default:
		return dst, false
	}
	if !isDecimal(string(text)) {
		return dst, false
	}
	if bin {
		return appendNumeric(dst, string(text)), true
	}
	return append(dst, text...), true
}

// encodeTime encodes a date or time kept as SQLite's functions take it: text,
// an integer of seconds since 1970, or a Julian day number.
func encodeTime(dst []byte, v value, oid uint32, bin bool) ([]byte, bool) {
	var t time.Time
	switch v.typ {
	case sqlite.TypeInteger:
		t = time.Unix(v.int, 0).UTC()
	case sqlite.TypeFloat:
		const unixEpochJulian = 2440587.5
		t = time.UnixMicro(int64(math.Round((v.float-unixEpochJulian)*86400e3)) * 1000).UTC()
	case sqlite.TypeText:
		var ok bool
		if t, ok = parseTime(string(v.text)); !ok {
			return dst, false
		}
	default:
		return dst, false
	}
	if t.Year() < 1 || t.Year() > 9999 {
		return dst, false
	}
	if bin {
		if oid == oidDate {
			return binary.BigEndian.AppendUint32(dst, uint32(int32((t.Truncate(24*time.Hour).Unix()-epoch2000)/86400))), true
		}
		return binary.BigEndian.AppendUint64(dst, uint64(t.UnixMicro()-epoch2000*1e6)), true
	}
	switch oid {
	case oidDate:
		return t.AppendFormat(dst, time.DateOnly), true
	case oidTimestamp:
		return t.AppendFormat(dst, timeLayout), true
	}
	return t.AppendFormat(dst, timeLayout+"+00"), true
}

const (
	// epoch2000 is PostgreSQL's zero of time in Unix seconds.
	epoch2000  = 946684800
	timeLayout = "2006-01-02 15:04:05.999999"
)

var timeLayouts = []string{
	"2006-01-02 15:04:05.999999999Z07:00", "2006-01-02 15:04:05.999999999Z07", "2006-01-02 15:04:05.999999999 Z07:00",
	"2006-01-02 15:04Z07:00", "2006-01-02 15:04:05.999999999", "2006-01-02 15:04", time.DateOnly,
	"2006-01-02 15:04:05.999999999 Z07", "2006-01-02 Z07:00", "2006-01-02 Z07",
}

// parseTime reads a time as people keep it in SQLite, in UTC when it names no zone.
func parseTime(s string) (time.Time, bool) {
	t, ok := parseZoned(s)
	return t.UTC(), ok
}

// parseZoned is parseTime with the time in the zone it names.
func parseZoned(s string) (time.Time, bool) {
	s = strings.TrimSpace(s)
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
