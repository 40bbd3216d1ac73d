package sqlite

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	"zombiezen.com/go/sqlite"
)

// exactMark ends a numeric that is stored as text because neither a 64-bit integer nor a double
// represents it exactly. Without a mark SQLite would convert the text when it is stored in a
// NUMERIC column, and round it. The mark is a no-break space: SQLite's functions read the number
// before it, and so do Python's Decimal and JavaScript's Number.
const exactMark = "\u00a0"

// exactNumeric returns the decimal number in a marked text.
func exactNumeric(v value) (s string, ok bool) {
	if v.typ != sqlite.TypeText || len(v.text) < len(exactMark) || v.text[len(v.text)-1] != exactMark[1] {
		return "", false
	}
	s, ok = strings.CutSuffix(string(v.text), exactMark)
	return s, ok && isDecimal(s)
}

// numericValue returns a decimal number in the form that SQLite stores for NUMERIC: an integer if
// it is one, a double if that prints as the same digits, otherwise a marked text.
func numericValue(s string) (v value, ok bool) {
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return intValue(n), true
	}
	if s, ok = plainDecimal(s); !ok {
		return v, false
	}
	short := canonical(s)
	if n, err := strconv.ParseInt(short, 10, 64); err == nil {
		return intValue(n), true
	}
	if f, err := strconv.ParseFloat(short, 64); err == nil && strconv.FormatFloat(f, 'f', -1, 64) == short {
		return floatValue(f), true
	}
	return textValue(s + exactMark), true
}

// canonical removes a plus sign, leading zeros, and zeros at the end of the fraction.
func canonical(s string) string {
	sign, s := strings.HasPrefix(s, "-"), strings.TrimLeft(s, "+-")
	whole, frac, _ := strings.Cut(s, ".")
	if whole = strings.TrimLeft(whole, "0"); whole == "" {
		whole = "0"
	}
	if frac = strings.TrimRight(frac, "0"); frac != "" {
		whole += "." + frac
	}
	if sign && whole != "0" {
		return "-" + whole
	}
	return whole
}

// plainDecimal returns a decimal number without an exponent.
func plainDecimal(s string) (string, bool) {
	mantissa, power, found := strings.Cut(strings.ToLower(s), "e")
	if !found {
		return s, isDecimal(s)
	}
	exp, err := strconv.Atoi(power)
	if err != nil || exp > maxNumeric || exp < -maxNumeric || !isDecimal(mantissa) {
		return s, false
	}
	sign := ""
	if strings.HasPrefix(mantissa, "-") {
		sign = "-"
	}
	whole, frac, _ := strings.Cut(strings.TrimLeft(mantissa, "+-"), ".")
	digits, point := whole+frac, len(whole)+exp
	if point < 0 {
		digits, point = strings.Repeat("0", -point)+digits, 0
	} else if point > len(digits) {
		digits += strings.Repeat("0", point-len(digits))
	}
	if s = "0" + digits[:point]; point < len(digits) {
		s += "." + digits[point:]
	}
	return sign + canonicalWhole(s), isDecimal(s)
}

// canonicalWhole removes leading zeros.
func canonicalWhole(s string) string {
	if s = strings.TrimLeft(s, "0"); s == "" || s[0] == '.' {
		return "0" + s
	}
	return s
}

// isDecimal reports whether s is a decimal number without an exponent.
func isDecimal(s string) bool {
	if s != "" && (s[0] == '+' || s[0] == '-') {
		s = s[1:]
	}
	whole, frac, _ := strings.Cut(s, ".")
	return len(whole)+len(frac) > 0 && len(s) < maxNumeric && digits(whole) && digits(frac)
}

// maxNumeric bounds the text of a numeric, in bytes. PostgreSQL stores 131072 digits before the
// point; clients do not send a tenth of that.
const maxNumeric = 16000

func digits(s string) bool { return strings.Trim(s, "0123456789") == "" }

const numericNegative = 0x4000

// appendNumeric appends the binary form of a decimal: groups of four digits
// (numeric_send in PostgreSQL's numeric.c).
func appendNumeric(dst []byte, s string) []byte {
	sign := uint16(0)
	if strings.HasPrefix(s, "-") {
		sign = numericNegative
	}
	whole, frac, _ := strings.Cut(strings.TrimLeft(s, "+-"), ".")
	scale := len(frac)
	whole = strings.TrimLeft(whole, "0")
	whole = strings.Repeat("0", (4-len(whole)%4)%4) + whole
	all := whole + frac + strings.Repeat("0", (4-len(frac)%4)%4)
	weight := len(whole)/4 - 1
	for strings.HasPrefix(all, "0000") {
		all, weight = all[4:], weight-1
	}
	for strings.HasSuffix(all, "0000") {
		all = all[:len(all)-4]
	}
	if all == "" {
		weight, sign = 0, 0
	}
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(all)/4))
	dst = binary.BigEndian.AppendUint16(dst, uint16(int16(weight)))
	dst = binary.BigEndian.AppendUint16(dst, sign)
	dst = binary.BigEndian.AppendUint16(dst, uint16(scale))
	for ; all != ""; all = all[4:] {
		group := uint16(all[0]-'0')*1000 + uint16(all[1]-'0')*100 + uint16(all[2]-'0')*10 + uint16(all[3]-'0')
		dst = binary.BigEndian.AppendUint16(dst, group)
	}
	return dst
}

// parseNumeric converts the binary form to a decimal number.
func parseNumeric(b []byte) (string, error) {
	if len(b) < 8 {
		return "", fmt.Errorf("%d bytes are too short for a numeric", len(b))
	}
	n, weight := int(binary.BigEndian.Uint16(b)), int(int16(binary.BigEndian.Uint16(b[2:])))
	sign, scale := binary.BigEndian.Uint16(b[4:]), int(binary.BigEndian.Uint16(b[6:]))
	b = b[8:]
	if len(b) != 2*n || sign != 0 && sign != numericNegative || scale > maxNumeric || weight > maxNumeric/4 || weight < -maxNumeric/4 {
		return "", fmt.Errorf("a numeric of %d groups with sign %#x, weight %d and scale %d is not one SQLite can keep", n, sign, weight, scale)
	}
	group := func(i int) string {
		if i < 0 || i >= n {
			return "0000"
		}
		return fmt.Sprintf("%04d", binary.BigEndian.Uint16(b[2*i:])%10000)
	}
	var whole, frac strings.Builder
	for i := 0; i <= weight; i++ {
		whole.WriteString(group(i))
	}
	for i := weight + 1; frac.Len() < scale; i++ {
		frac.WriteString(group(i))
	}
	out := strings.TrimLeft(whole.String(), "0")
	if out == "" {
		out = "0"
	}
	if scale > 0 {
		out += "." + frac.String()[:scale]
	}
	if sign != 0 {
		out = "-" + out
	}
	return out, nil
}
