package sqlite

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// unescape decodes the content of an E'…' string as PostgreSQL does
// (https://www.postgresql.org/docs/15/sql-syntax-lexical.html, 4.1.2.2).
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); {
		switch {
		case strings.HasPrefix(s[i:], "''"):
			b.WriteByte('\'')
			i += 2
		case s[i] != '\\' || i+1 == len(s):
			b.WriteByte(s[i])
			i++
		default:
			i += 1 + escape(&b, s[i+1:])
		}
	}
	return b.String()
}

// escape writes the character for the escape sequence at the beginning of s, without its backslash,
// and returns its length.
func escape(b *strings.Builder, s string) int {
	if k := strings.IndexByte("nrtbf", s[0]); k >= 0 {
		b.WriteByte("\n\r\t\b\f"[k])
		return 1
	}
	number := func(from, least, most, base int) (n int, end int) {
		for end = from; end < len(s) && end < from+most; end++ {
			digit, err := strconv.ParseUint(s[end:end+1], base, 8)
			if err != nil {
				break
			}
			n = n*base + int(digit)
		}
		if end < from+least {
			end = 0
		}
		return n, end
	}
	var n, end int
	switch s[0] {
	case 'x':
		if n, end = number(1, 1, 2, 16); end > 0 {
			b.WriteByte(byte(n))
		}
	case 'u', 'U':
		size := map[byte]int{'u': 4, 'U': 8}[s[0]]
		if n, end = number(1, size, size, 16); end > 0 {
			b.WriteRune(rune(n))
		}
	case '0', '1', '2', '3', '4', '5', '6', '7':
		n, end = number(0, 1, 3, 8)
		b.WriteByte(byte(n))
	}
	if end > 0 {
		return end
	}
	_, size := utf8.DecodeRuneInString(s)
	b.WriteString(s[:size])
	return size
}
