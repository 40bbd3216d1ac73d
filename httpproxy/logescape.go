package httpproxy

import (
	"unicode"
	"unicode/utf8"
)

const hexDigits = "0123456789abcdef"

// plainASCII marks the bytes that need no escape in any format.
var plainASCII = func() (plain [256]bool) {
	for c := ' '; c < 0x7f; c++ {
		plain[c] = c != '"' && c != '\\'
	}
	return plain
}()

// appendEscaped appends a value from a client to a line. In JSON it is part of a string. In texts quotes and
// backslashes get a "\", and control characters and invalid UTF-8 become "\x" and two digits. A value that is too long
// is cut, and "…" is appended.
func appendEscaped(dst []byte, value string, json bool) []byte {
	cut := len(value) > maxLogValue
	if cut {
		value = value[:maxLogValue]
	}
	for i := 0; i < len(value); {
		from := i
		for i < len(value) && plainASCII[value[i]] {
			i++
		}
		dst = append(dst, value[from:i]...)
		if i == len(value) {
			break
		}
		if value[i] < utf8.RuneSelf {
			dst = appendEscapedASCII(dst, value[i], json)
			i++
			continue
		}
		if cut && !utf8.FullRuneInString(value[i:]) {
			break // the cut has split a character
		}
		r, size := utf8.DecodeRuneInString(value[i:])
		dst = appendEscapedRune(dst, value[i:i+size], r, json)
		i += size
	}
	if cut {
		dst = append(dst, "…"...)
	}
	return dst
}

func appendEscapedASCII(dst []byte, c byte, json bool) []byte {
	switch {
	case c == '"' || c == '\\':
		return append(dst, '\\', c)
	case json:
		return append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
	}
	return append(dst, '\\', 'x', hexDigits[c>>4], hexDigits[c&15])
}

// appendEscapedRune appends a character, or one byte of invalid UTF-8. It also escapes characters that change how a
// terminal or editor shows others: C1 control characters, line separators, and characters that change the direction of
// text.
func appendEscapedRune(dst []byte, coded string, r rune, json bool) []byte {
	wrong := r == utf8.RuneError && len(coded) == 1
	switch {
	case wrong && json:
		return append(dst, `\ufffd`...)
	case !wrong && !unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp):
		return append(dst, coded...)
	case json && r <= 0xffff:
		return append(dst, '\\', 'u', hexDigits[r>>12&15], hexDigits[r>>8&15], hexDigits[r>>4&15], hexDigits[r&15])
	case json:
		return append(dst, `\ufffd`...)
	}
	for _, c := range []byte(coded) {
		dst = append(dst, '\\', 'x', hexDigits[c>>4], hexDigits[c&15])
	}
	return dst
}
