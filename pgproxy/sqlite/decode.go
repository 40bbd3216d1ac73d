package sqlite

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/headpond/headpond/pgwire"
	"zombiezen.com/go/sqlite"
)

// bindParam binds parameter n (from 1) of the given type and format. raw nil is NULL.
func bindParam(stmt *sqlite.Stmt, n int, oid uint32, format int16, raw []byte) error {
	if raw == nil {
		stmt.BindNull(n)
		return nil
	}
	if format != pgwire.FormatText && format != pgwire.FormatBinary {
		return sqlError(pgwire.StateProtocolViolation, "parameter $%d has format %d, want 0 (text) or 1 (binary)", n, format)
	}
	if format == pgwire.FormatBinary {
		if err := bindBinary(stmt, n, oid, raw); err != nil {
			return sqlError(pgwire.StateInvalidBinaryRepresent, "parameter $%d is no binary %s: %v", n, typeName(oid), err)
		}
		return nil
	}
	if !bindText(stmt, n, oid, string(raw)) {
		return sqlError(pgwire.StateInvalidTextRepresent, "invalid input syntax for type %s: %q in parameter $%d", typeName(oid), clip(string(raw)), n)
	}
	return nil
}

// clip shortens a text that is quoted in a message.
func clip(s string) string {
	if len(s) > 80 {
		return strings.ToValidUTF8(s[:80], "") + "…"
	}
	return s
}

// bindText reports whether s is a text of the type.
func bindText(stmt *sqlite.Stmt, n int, oid uint32, s string) bool {
	switch oid {
	case oidUnspecified, oidUnknown:
		bindGuess(stmt, n, s)
	case oidBool:
		b, ok := parseBool(s)
		stmt.BindBool(n, b)
		return ok
	case oidInt2, oidInt4, oidInt8, oidOID:
		i, err := strconv.ParseInt(strings.TrimSpace(s), 10, 64)
		stmt.BindInt64(n, i)
		return err == nil
	case oidFloat4, oidFloat8:
		f, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
		stmt.BindFloat(n, f)
		return err == nil && !math.IsNaN(f)
	case oidNumeric:
		return bindNumeric(stmt, n, strings.TrimSpace(s))
	case oidBytea:
		b, ok := parseBytea(s)
		stmt.BindBytes(n, b)
		return ok
	case oidDate, oidTimestamp, oidTimestamptz:
		t, ok := parseZoned(s)
		if oid != oidTimestamptz { // which zone it is in does not matter, and drivers name one in any case
			t = t.Add(offsetOf(t))
		}
		stmt.BindText(n, formatTime(t.UTC(), oid))
		return ok
	default:
		stmt.BindText(n, s)
	}
	return true
}

// sqliteDigits is how many digits SQLite prints of a float.
const sqliteDigits = 15

// bindGuess binds a text nothing is known about. One that is exactly how SQLite
// prints a number is bound as that number, because SQLite, unlike PostgreSQL,
// does not convert a text that meets a number in an expression.
func bindGuess(stmt *sqlite.Stmt, n int, s string) {
	if i, err := strconv.ParseInt(s, 10, 64); err == nil && strconv.FormatInt(i, 10) == s {
		stmt.BindInt64(n, i)
		return
	}
	if len(s) <= sqliteDigits && strings.Contains(s, ".") {
		if f, err := strconv.ParseFloat(s, 64); err == nil && math.Abs(f) >= 1e-4 && isDecimal(s) && strconv.FormatFloat(f, 'f', -1, 64) == s {
			stmt.BindFloat(n, f)
			return
		}
	}
	stmt.BindText(n, s)
}

// bindNumeric binds a decimal as SQLite keeps a NUMERIC: integer if it is one,
// else the nearest float.
func bindNumeric(stmt *sqlite.Stmt, n int, s string) bool {
	if i, err := strconv.ParseInt(s, 10, 64); err == nil {
		stmt.BindInt64(n, i)
		return true
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
		return false
	}
	stmt.BindFloat(n, f)
	return true
}

// parseBytea reads PostgreSQL's hex form; any other text stands for its bytes.
func parseBytea(s string) ([]byte, bool) {
	if hexed, ok := strings.CutPrefix(s, `\x`); ok {
		b, err := hex.DecodeString(hexed)
		return b, err == nil
	}
	return []byte(s), !strings.Contains(s, `\`)
}

// offsetOf is how far a time's zone is ahead of UTC.
func offsetOf(t time.Time) time.Duration {
	_, seconds := t.Zone()
	return time.Duration(seconds) * time.Second
}

// formatTime gives a time as SQLite's own CURRENT_TIMESTAMP writes it, in UTC,
// with microseconds if there are any, so that texts sort by time.
func formatTime(t time.Time, oid uint32) string {
	if oid == oidDate {
		return t.Format(time.DateOnly)
	}
	return t.UTC().Format(timeLayout)
}

func bindBinary(stmt *sqlite.Stmt, n int, oid uint32, raw []byte) error {
	if size := int(typeSize(oid)); oid != oidName && size > 0 && len(raw) != size {
		return fmt.Errorf("%d bytes, want %d", len(raw), size)
	}
	switch oid {
	case oidBool:
		stmt.BindBool(n, raw[0] != 0)
	case oidInt2:
		stmt.BindInt64(n, int64(int16(binary.BigEndian.Uint16(raw))))
	case oidInt4:
		stmt.BindInt64(n, int64(int32(binary.BigEndian.Uint32(raw))))
	case oidOID:
		stmt.BindInt64(n, int64(binary.BigEndian.Uint32(raw)))
	case oidInt8:
		stmt.BindInt64(n, int64(binary.BigEndian.Uint64(raw)))
	case oidFloat4:
		return bindFloat(stmt, n, float64(math.Float32frombits(binary.BigEndian.Uint32(raw))))
	case oidFloat8:
		return bindFloat(stmt, n, math.Float64frombits(binary.BigEndian.Uint64(raw)))
	case oidBytea:
		stmt.BindBytes(n, raw)
	case oidNumeric:
		s, err := parseNumeric(raw)
		if err != nil {
			return err
		}
		bindNumeric(stmt, n, s)
	case oidUUID:
		h := hex.EncodeToString(raw)
		stmt.BindText(n, h[:8]+"-"+h[8:12]+"-"+h[12:16]+"-"+h[16:20]+"-"+h[20:])
	case oidDate, oidTime, oidTimestamp, oidTimestamptz:
		s, err := binaryTime(oid, raw)
		stmt.BindText(n, s)
		return err
	case oidText, oidVarchar, oidBpchar, oidName, oidJSON, oidUnknown, oidUnspecified:
		stmt.BindText(n, string(raw))
	case oidJSONB:
		if len(raw) == 0 || raw[0] != 1 {
			return fmt.Errorf("unknown jsonb version")
		}
		stmt.BindText(n, string(raw[1:]))
	default:
		return fmt.Errorf("type OID %d is known in text format only", oid)
	}
	return nil
}

// bindFloat refuses NaN, of which SQLite would make NULL.
func bindFloat(stmt *sqlite.Stmt, n int, f float64) error {
	if math.IsNaN(f) {
		return errors.New("SQLite cannot keep NaN")
	}
	stmt.BindFloat(n, f)
	return nil
}

func binaryTime(oid uint32, raw []byte) (string, error) {
	var t time.Time
	switch oid {
	case oidDate:
		t = time.Unix(int64(int32(binary.BigEndian.Uint32(raw)))*86400+epoch2000, 0).UTC()
	case oidTime:
		return time.UnixMicro(int64(binary.BigEndian.Uint64(raw))).UTC().Format("15:04:05.999999"), nil
	default:
		t = time.UnixMicro(int64(binary.BigEndian.Uint64(raw))).Add(epoch2000 * time.Second).UTC()
	}
	if t.Year() < 1 || t.Year() > 9999 {
		return "", errors.New("SQLite keeps the years 1 to 9999, and no infinity")
	}
	return formatTime(t, oid), nil
}
