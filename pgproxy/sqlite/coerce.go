package sqlite

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/headpond/headpond/pgwire"
	"zombiezen.com/go/sqlite"
)

// SQLSTATEs of casts that package pgwire does not define.
const (
	stateDatetimeOverflow = "22008"
	stateCannotCoerce     = "42846"
	stateNotInRepertoire  = "22021" // character_not_in_repertoire
)

// value is a value of SQLite: one of its five storage classes.
type value struct {
	typ   sqlite.ColumnType
	int   int64
	float float64
	text  []byte // of a text or blob; valid until the next step
}

func intValue(n int64) value     { return value{typ: sqlite.TypeInteger, int: n} }
func floatValue(f float64) value { return value{typ: sqlite.TypeFloat, float: f} }
func textValue(s string) value   { return value{typ: sqlite.TypeText, text: []byte(s)} }

// fromSQL returns an argument of a SQL function. Its text is valid until the function returns.
func fromSQL(v sqlite.Value) value {
	switch v.Type() {
	case sqlite.TypeInteger:
		return intValue(v.Int64())
	case sqlite.TypeFloat:
		return floatValue(v.Float())
	case sqlite.TypeText:
		return textValue(v.Text())
	case sqlite.TypeBlob:
		return value{typ: sqlite.TypeBlob, text: v.Blob()}
	}
	return value{typ: sqlite.TypeNull}
}

// sql returns v as the result of a SQL function.
func (v value) sql() sqlite.Value {
	switch v.typ {
	case sqlite.TypeInteger:
		return sqlite.IntegerValue(v.int)
	case sqlite.TypeFloat:
		return sqlite.FloatValue(v.float)
	case sqlite.TypeText:
		return sqlite.TextValue(string(v.text))
	case sqlite.TypeBlob:
		return sqlite.BlobValue(v.text)
	}
	return sqlite.Value{}
}

// bind binds v as parameter n.
func (v value) bind(stmt *sqlite.Stmt, n int) {
	switch v.typ {
	case sqlite.TypeInteger:
		stmt.BindInt64(n, v.int)
	case sqlite.TypeFloat:
		stmt.BindFloat(n, v.float)
	case sqlite.TypeText:
		stmt.BindText(n, string(v.text))
	case sqlite.TypeBlob:
		stmt.BindBytes(n, v.text)
	default:
		stmt.BindNull(n)
	}
}

// coercions convert a value to SQLite's form of a type, or return PostgreSQL's error. Casts,
// parameters in text format and type literals use them.
var coercions map[uint32]func(oid uint32, v value) (value, error)

func init() { // in init: the error messages refer to the map itself
	coercions = map[uint32]func(oid uint32, v value) (value, error){
		oidInt2: toInt, oidInt4: toInt, oidInt8: toInt, oidOID: toInt, oidFloat4: toFloat, oidFloat8: toFloat, oidNumeric: toNumeric,
		oidBool: toBool, oidBytea: toBytea, oidText: toText, oidVarchar: toText, oidBpchar: toText, oidName: toText, oidChar: toText,
		oidDate: toTime, oidTime: toTime, oidTimestamp: toTime, oidTimestamptz: toTime,
		oidJSON: toJSON, oidJSONB: toJSON, oidUUID: toUUID,
	}
}

// coerce converts v to a type. NULL stays NULL; an unknown type accepts any value.
func coerce(oid uint32, v value) (value, error) {
	if f := coercions[oid]; f != nil && v.typ != sqlite.TypeNull {
		return f(oid, v)
	}
	return v, nil
}

func invalid(oid uint32, v value) error {
	return sqlError(pgwire.StateInvalidTextRepresent, "invalid input syntax for type %s: %s", typeName(oid), quoted(v))
}

func outOfRange(oid uint32, v value) error {
	return sqlError(pgwire.StateNumericOutOfRange, "value %s is out of range for type %s", quoted(v), typeName(oid))
}

func cannotCast(oid uint32, v value) error {
	kind := map[sqlite.ColumnType]string{sqlite.TypeBlob: "bytea", sqlite.TypeFloat: "double precision", sqlite.TypeInteger: "bigint"}[v.typ]
	return sqlError(stateCannotCoerce, "cannot cast type %s to %s", kind, typeName(oid))
}

// quoted returns v for an error text.
func quoted(v value) string { return `"` + clip(string(v.plain(nil))) + `"` }

// trimmed returns the text of v without surrounding blanks.
func (v value) trimmed() string { return strings.TrimSpace(string(v.text)) }

// intLimits are the ranges of the integer types.
var intLimits = map[uint32][2]int64{
	oidInt2: {math.MinInt16, math.MaxInt16}, oidInt4: {math.MinInt32, math.MaxInt32},
	oidInt8: {math.MinInt64, math.MaxInt64}, oidOID: {0, math.MaxUint32},
}

func toInt(oid uint32, v value) (value, error) {
	n := v.int
	switch v.typ {
	case sqlite.TypeFloat:
		f := math.RoundToEven(v.float)
		if !(f >= -1<<63 && f < 1<<63) { // also false for NaN
			return v, outOfRange(oid, v)
		}
		n = int64(f)
	case sqlite.TypeText:
		var err error
		if n, err = strconv.ParseInt(v.trimmed(), 10, 64); errors.Is(err, strconv.ErrRange) {
			return v, outOfRange(oid, v)
		} else if exact, ok := exactNumeric(v); err != nil && ok {
			f, _ := strconv.ParseFloat(exact, 64)
			return toInt(oid, floatValue(f))
		} else if err != nil {
			return v, invalid(oid, v)
		}
	case sqlite.TypeBlob:
		return v, cannotCast(oid, v)
	}
	if limits := intLimits[oid]; n < limits[0] || n > limits[1] {
		return v, outOfRange(oid, v)
	}
	return intValue(n), nil
}

func toFloat(oid uint32, v value) (value, error) {
	switch v.typ {
	case sqlite.TypeInteger:
		return floatValue(float64(v.int)), nil
	case sqlite.TypeText:
		s := v.trimmed()
		if exact, ok := exactNumeric(v); ok {
			s = exact
		}
		f, err := strconv.ParseFloat(s, 64)
		if errors.Is(err, strconv.ErrRange) {
			return v, outOfRange(oid, v)
		}
		if err != nil || math.IsNaN(f) || strings.ContainsAny(s, "_xX") { // SQLite would store NaN as NULL
			return v, invalid(oid, v)
		}
		return floatValue(f), nil
	case sqlite.TypeBlob:
		return v, cannotCast(oid, v)
	}
	return v, nil
}

func toNumeric(oid uint32, v value) (value, error) {
	switch v.typ {
	case sqlite.TypeText:
		if _, ok := exactNumeric(v); ok {
			return v, nil
		}
		if n, ok := numericValue(v.trimmed()); ok {
			return n, nil
		}
		return v, invalid(oid, v)
	case sqlite.TypeFloat:
		if math.IsInf(v.float, 0) {
			return v, outOfRange(oid, v)
		}
	case sqlite.TypeBlob:
		return v, cannotCast(oid, v)
	}
	return v, nil
}

func toBool(oid uint32, v value) (value, error) {
	b := v.int != 0
	switch v.typ {
	case sqlite.TypeFloat:
		b = v.float != 0
	case sqlite.TypeText:
		var ok bool
		if b, ok = parseBool(string(v.text)); !ok {
			return v, invalid(oid, v)
		}
	case sqlite.TypeBlob:
		return v, cannotCast(oid, v)
	}
	if b {
		return intValue(1), nil
	}
	return intValue(0), nil
}

func toBytea(oid uint32, v value) (value, error) {
	if v.typ == sqlite.TypeBlob {
		return v, nil
	}
	b, ok := parseBytea(string(v.plain(nil)))
	if !ok {
		return v, invalid(oid, v)
	}
	return value{typ: sqlite.TypeBlob, text: b}, nil
}

// toText returns a value as text; a blob's bytes are the text, as in SQLite.
func toText(_ uint32, v value) (value, error) {
	if exact, ok := exactNumeric(v); ok {
		return textValue(exact), nil
	}
	if v.typ == sqlite.TypeInteger || v.typ == sqlite.TypeFloat {
		return value{typ: sqlite.TypeText, text: v.plain(nil)}, nil
	}
	if err := checkText(v.text); err != nil {
		return v, err
	}
	return value{typ: sqlite.TypeText, text: v.text}, nil
}

// checkText refuses bytes that are not a text in PostgreSQL.
func checkText(b []byte) error {
	if isText(b) {
		return nil
	}
	for i := 0; i < len(b); {
		r, size := utf8.DecodeRune(b[i:])
		if r == 0 || r == utf8.RuneError && size == 1 {
			return sqlError(stateNotInRepertoire, `invalid byte sequence for encoding "UTF8": 0x%02x`, b[i])
		}
		i += size
	}
	return nil
}

func toJSON(oid uint32, v value) (value, error) {
	if v.typ == sqlite.TypeBlob {
		return v, cannotCast(oid, v)
	}
	v = value{typ: sqlite.TypeText, text: v.plain(nil)}
	if !json.Valid(v.text) {
		return v, invalid(oid, v)
	}
	return v, nil
}

func toUUID(oid uint32, v value) (value, error) {
	u, ok := parseUUID(v)
	if !ok {
		return v, invalid(oid, v)
	}
	return value{typ: sqlite.TypeText, text: appendUUID(nil, u)}, nil
}

// parseUUID reads PostgreSQL's notations of a UUID, and 16 bytes.
func parseUUID(v value) (u [16]byte, ok bool) {
	switch v.typ {
	case sqlite.TypeBlob:
		return u, copy(u[:], v.text) == len(v.text) && len(v.text) == len(u)
	case sqlite.TypeText:
		s := v.trimmed()
		if inner, braced := strings.CutPrefix(s, "{"); braced {
			if s, ok = strings.CutSuffix(inner, "}"); !ok {
				return u, false
			}
		}
		if s = strings.ReplaceAll(s, "-", ""); len(s) != hex.EncodedLen(len(u)) {
			return u, false
		}
		_, err := hex.Decode(u[:], []byte(s))
		return u, err == nil
	}
	return u, false
}

func appendUUID(dst []byte, u [16]byte) []byte {
	dst = hex.AppendEncode(dst, u[:4])
	for i := 4; i < 10; i += 2 {
		dst = hex.AppendEncode(append(dst, '-'), u[i:i+2])
	}
	return hex.AppendEncode(append(dst, '-'), u[10:])
}

// toTime converts to a type of date or time. Those are stored as texts that sort by time. A zone in
// the text counts for timestamptz only, as in PostgreSQL.
func toTime(oid uint32, v value) (value, error) {
	if v.typ == sqlite.TypeBlob {
		return v, cannotCast(oid, v)
	}
	t, ok := moment(oid, v, true)
	if !ok && v.typ == sqlite.TypeText && looksLikeTime(v.trimmed()) {
		return v, sqlError(stateDatetimeOverflow, "date/time field value out of range: %s", quoted(v))
	}
	if !ok {
		return v, sqlError(pgwire.StateInvalidDatetime, "invalid input syntax for type %s: %s", typeName(oid), quoted(v))
	}
	return textValue(formatTime(t, oid)), nil
}

// moment reads a date or time in a form that SQLite's functions accept: text, integer seconds since
// 1970, or a Julian day number. wall keeps the clock time of the zone in the text, for the types
// without a zone.
func moment(oid uint32, v value, wall bool) (t time.Time, ok bool) {
	switch v.typ {
	case sqlite.TypeInteger:
		t, ok = time.Unix(v.int, 0), true
	case sqlite.TypeFloat:
		const unixEpochJulian = 2440587.5
		t, ok = time.UnixMicro(int64(math.Round((v.float-unixEpochJulian)*86400e3))*1000), true
	case sqlite.TypeText:
		if t, ok = parseZoned(string(v.text)); !ok && oid == oidTime {
			t, ok = parseClock(v.trimmed())
		}
		if wall && oid != oidTimestamptz {
			t = t.Add(offsetOf(t))
		}
	}
	if t = t.UTC(); t.Year() < 1 && oid != oidTime || t.Year() > 9999 {
		return t, false
	}
	return t, ok
}

// looksLikeTime recognises a date or time in which a field is out of range.
func looksLikeTime(s string) bool {
	n := strings.IndexFunc(s, func(r rune) bool { return r < '0' || r > '9' })
	return n > 0 && n <= 4 && (s[n] == '-' || s[n] == ':') && strings.Trim(s, "0123456789-:. TZ+") == "" && strings.ContainsAny(s[n+1:], "0123456789")
}
