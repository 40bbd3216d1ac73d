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

// bindParam binds parameter n (from 1) of the given type and format. A nil raw is NULL.
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
			return notBinary(err, n, oid)
		}
		return nil
	}
	return bindText(stmt, n, oid, raw)
}

// notBinary adds a SQLSTATE to an error of bindBinary that has none.
func notBinary(err error, n int, oid uint32) error {
	var resp *responseError
	if errors.As(err, &resp) {
		return err
	}
	return sqlError(pgwire.StateInvalidBinaryRepresent, "parameter $%d is no binary %s: %v", n, typeName(oid), err)
}

// clip shortens a text for an error message.
func clip(s string) string {
	if len(s) > 80 {
		return strings.ToValidUTF8(s[:80], "") + "…"
	}
	return s
}

// bindText binds a parameter in text format.
func bindText(stmt *sqlite.Stmt, n int, oid uint32, raw []byte) error {
	v := value{typ: sqlite.TypeText, text: raw}
	var err error
	switch {
	case oid == oidUnspecified, oid == oidUnknown:
		if err = checkText(raw); err == nil {
			v = guess(v)
		}
	case coercions[oid] == nil: // stored as text
		err = checkText(raw)
	default:
		v, err = coerce(oid, v)
	}
	if err != nil {
		return inParameter(err, n)
	}
	v.bind(stmt, n)
	return nil
}

// inParameter adds the parameter's number to an error.
func inParameter(err error, n int) error {
	resp := *toResponse(err)
	resp.Where = fmt.Sprintf("parameter $%d", n)
	return &resp
}

// sqliteDigits is the number of digits with which SQLite prints a float.
const sqliteDigits = 15

// guess converts a text of unknown type. If it is exactly what SQLite prints for a number, it
// becomes that number: SQLite, unlike PostgreSQL, does not convert a text that is compared with a
// number in an expression.
func guess(v value) value {
	if len(v.text) > maxInt64Len {
		return v
	}
	s := string(v.text)
	if i, err := strconv.ParseInt(s, 10, 64); err == nil && strconv.FormatInt(i, 10) == s {
		return intValue(i)
	}
	if len(s) <= sqliteDigits && strings.Contains(s, ".") {
		if f, err := strconv.ParseFloat(s, 64); err == nil && math.Abs(f) >= 1e-4 && isDecimal(s) && strconv.FormatFloat(f, 'f', -1, 64) == s {
			return floatValue(f)
		}
	}
	return v
}

// maxInt64Len is the length of the longest 64-bit integer, in bytes.
const maxInt64Len = len("-9223372036854775808")

// parseBytea reads PostgreSQL's hex format. Any other text stands for its bytes.
func parseBytea(s string) ([]byte, bool) {
	if hexed, ok := strings.CutPrefix(s, `\x`); ok {
		b, err := hex.DecodeString(hexed)
		return b, err == nil
	}
	return []byte(s), !strings.Contains(s, `\`)
}

// offsetOf returns the offset of a time's zone from UTC.
func offsetOf(t time.Time) time.Duration {
	_, seconds := t.Zone()
	return time.Duration(seconds) * time.Second
}

// formatTime formats a time like SQLite's CURRENT_TIMESTAMP, in UTC, with microseconds if there are
// any, so that texts sort by time.
func formatTime(t time.Time, oid uint32) string {
	switch oid {
	case oidDate:
		return t.Format(time.DateOnly)
	case oidTime:
		return t.Format(clockLayout)
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
		v, _ := numericValue(s)
		v.bind(stmt, n)
	case oidUUID:
		stmt.BindText(n, string(appendUUID(nil, [16]byte(raw))))
	case oidDate, oidTime, oidTimestamp, oidTimestamptz:
		s, err := binaryTime(oid, raw)
		stmt.BindText(n, s)
		return err
	case oidText, oidVarchar, oidBpchar, oidName, oidUnknown, oidUnspecified:
		return bindText(stmt, n, oidText, raw)
	case oidJSON:
		return bindText(stmt, n, oid, raw)
	case oidJSONB:
		if len(raw) == 0 || raw[0] != 1 {
			return fmt.Errorf("unknown jsonb version")
		}
		return bindText(stmt, n, oid, raw[1:])
	default:
		if elementTypes[oid] == 0 {
			return fmt.Errorf("type OID %d is known in text format only", oid)
		}
		s, err := decodeArray(raw, oid)
		stmt.BindText(n, s)
		return err
	}
	return nil
}

// bindFloat refuses NaN, which SQLite would store as NULL.
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
