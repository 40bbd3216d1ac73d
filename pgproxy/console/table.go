package console

import (
	"encoding/binary"
	"strconv"
	"strings"
	"time"

	"github.com/headpond/headpond/pgwire"
)

// The types of columns, by their OIDs in pg_type.dat.
const (
	typeText    = 25
	typeInt4    = 23
	typeInt8    = 20
	typeNumeric = 1700
)

// column is a column of a result.
type column struct {
	name string
	oid  uint32
}

// columns returns columns of one type from their names.
func columns(oid uint32, names string) (list []column) {
	for name := range strings.FieldsSeq(names) {
		list = append(list, column{name, oid})
	}
	return list
}

// row has a string, an integer or nil, which is NULL, for each column.
type row []any

// result is the answer to a command.
type result struct {
	columns []column // nil = the command has no rows
	rows    []row
	notices []pgwire.ErrorResponse
	tag     string
}

// fields returns the description of the columns; formats are those of a Bind.
func (r *result) fields(formats []int16) []pgwire.Field {
	list := make([]pgwire.Field, len(r.columns))
	for i, c := range r.columns {
		size := int16(-1)
		switch c.oid {
		case typeInt4:
			size = 4
		case typeInt8:
			size = 8
		}
		list[i] = pgwire.Field{Name: c.name, TypeOID: c.oid, TypeSize: size, TypeModifier: -1, Format: formatOf(formats, i)}
	}
	return list
}

// formatOf returns the format of a column: none stands for text, one for all columns.
func formatOf(formats []int16, i int) int16 {
	switch len(formats) {
	case 0:
		return 0
	case 1:
		return formats[0]
	}
	return formats[i]
}

// appendRow appends the DataRow for a row.
func (r *result) appendRow(dst []byte, values row, formats []int16) []byte {
	m := pgwire.DataRow{Values: make([][]byte, len(values))}
	for i, v := range values {
		if v == nil {
			continue
		}
		if s, ok := v.(string); ok {
			m.Values[i] = []byte(strings.ToValidUTF8(s, "�"))
			if m.Values[i] == nil {
				m.Values[i] = []byte{}
			}
			continue
		}
		n := number(v)
		if formatOf(formats, i) == 0 {
			m.Values[i] = strconv.AppendInt(nil, n, 10)
		} else {
			m.Values[i] = binaryOf(r.columns[i].oid, n)
		}
	}
	return m.Append(dst)
}

// number returns the integer of a row.
func number(v any) int64 {
	switch v := v.(type) {
	case int:
		return int64(v)
	case uint32:
		return int64(v)
	case int64:
		return v
	case uint64:
		return int64(v)
	}
	return 0
}

// binaryOf returns an integer in the binary format of a type.
func binaryOf(oid uint32, n int64) []byte {
	switch oid {
	case typeInt4:
		return binary.BigEndian.AppendUint32(nil, uint32(n))
	case typeInt8:
		return binary.BigEndian.AppendUint64(nil, uint64(n))
	case typeNumeric:
		return numeric(n)
	}
	return strconv.AppendInt(nil, n, 10)
}

// numericBase is the base of the digits of PostgreSQL's binary numeric; numericNegative is the sign of numbers below 0.
const (
	numericBase     = 10000
	numericNegative = 0x4000
)

// numeric returns the binary format of numeric: the number of digits, the weight of the first, the sign, the number of
// decimals and the digits.
func numeric(n int64) []byte {
	sign, left := uint16(0), uint64(n)
	if n < 0 {
		sign, left = numericNegative, -uint64(n)
	}
	var digits []uint16 // the last first
	for ; left > 0; left /= numericBase {
		digits = append(digits, uint16(left%numericBase))
	}
	out := binary.BigEndian.AppendUint16(nil, uint16(len(digits)))
	out = binary.BigEndian.AppendUint16(out, uint16(max(len(digits)-1, 0)))
	out = binary.BigEndian.AppendUint16(out, sign)
	out = binary.BigEndian.AppendUint16(out, 0)
	for i := len(digits) - 1; i >= 0; i-- {
		out = binary.BigEndian.AppendUint16(out, digits[i])
	}
	return out
}

// stamp returns a time as PgBouncer shows it, nil for the zero time.
func stamp(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UTC().Format("2006-01-02 15:04:05 UTC")
}

// seconds returns whole seconds and the microseconds of the rest.
func seconds(d time.Duration) (whole, micros int) {
	d = max(d, 0)
	return int(d / time.Second), int(d % time.Second / time.Microsecond)
}

// notice adds a notice.
func (r *result) notice(message, detail string) {
	r.notices = append(r.notices, pgwire.ErrorResponse{
		Severity: pgwire.SeverityNotice, SeverityUnlocalized: pgwire.SeverityNotice, Code: pgwire.StateSuccessful, Message: message, Detail: detail,
	})
}
