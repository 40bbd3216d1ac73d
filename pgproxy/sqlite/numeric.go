package sqlite

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// isDecimal reports whether s is a decimal number without exponent.
func isDecimal(s string) bool {
	s = strings.TrimLeft(s, "+-")
	whole, frac, _ := strings.Cut(s, ".")
	return len(whole)+len(frac) > 0 && len(s) < maxNumeric && digits(whole) && digits(frac)
}

// maxNumeric bounds the text of a numeric, in bytes; PostgreSQL keeps 131072
// digits before the point, nobody sends a tenth of that.
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

// parseNumeric reads the binary form into a decimal.
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
