package top

import (
	"fmt"
	"math"
	"strings"
	"time"
	"unicode"

	"golang.org/x/text/width"
)

// maxMarks bounds the combining marks that are kept of a character: more serve only to cover other lines.
const maxMarks = 2

// clean returns a text without characters that a terminal acts on, has no place for, or draws over others. Names and
// errors come from clients and servers.
func clean(s string) string {
	var b strings.Builder
	marks := maxMarks // a mark needs a character before it
	for _, r := range s {
		switch {
		case unicode.Is(unicode.Variation_Selector, r):
		case !unicode.IsPrint(r) && r < 0x100:
			fmt.Fprintf(&b, `\x%02x`, r)
			marks = 0
		case !unicode.IsPrint(r):
			fmt.Fprintf(&b, `\u%04x`, r)
			marks = 0
		case runeColumns(r) > 0:
			b.WriteRune(r)
			marks = 0
		case marks < maxMarks:
			b.WriteRune(r)
			marks++
		}
	}
	return b.String()
}

// runeColumns returns how many columns a character takes.
func runeColumns(r rune) int {
	switch {
	case r < 0x300:
		return 1
	case unicode.In(r, unicode.Mn, unicode.Me):
		return 0
	}
	switch width.LookupRune(r).Kind() {
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	}
	return 1
}

// columnsOf returns how many columns a clean text takes.
func columnsOf(s string) (n int) {
	for _, r := range s {
		n += runeColumns(r)
	}
	return n
}

// clip cuts a clean text to n columns, and marks the cut.
func clip(s string, n int) string {
	if columnsOf(s) <= n {
		return s
	}
	if n <= 0 {
		return ""
	}
	left := n - 1 // for the mark
	for i, r := range s {
		if left -= runeColumns(r); left < 0 {
			return s[:i] + "…"
		}
	}
	return s
}

// wrap cuts a clean text into lines of n columns.
func wrap(s string, n int) (lines []string) {
	n = max(n, 2) // a character fits
	from, left := 0, n
	for i, r := range s {
		w := runeColumns(r)
		if w > left {
			lines = append(lines, s[from:i])
			from, left = i, n
		}
		left -= w
	}
	return append(lines, s[from:])
}

// Age formats a duration briefly.
func Age(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < 2*time.Minute:
		return fmt.Sprintf("%.0fs", d.Seconds())
	case d < 2*time.Hour:
		return fmt.Sprintf("%.0fm", d.Minutes())
	case d < 48*time.Hour:
		return fmt.Sprintf("%.0fh", d.Hours())
	}
	return fmt.Sprintf("%.0fd", d.Hours()/24)
}

// uptime formats a long duration with two units.
func uptime(seconds float64) string {
	d := time.Duration(seconds) * time.Second
	days, hours, minutes := int(d.Hours())/24, int(d.Hours())%24, int(d.Minutes())%60
	switch {
	case days > 0:
		return fmt.Sprintf("%dd%dh", days, hours)
	case hours > 0:
		return fmt.Sprintf("%dh%dm", hours, minutes)
	case minutes > 0:
		return fmt.Sprintf("%dm%ds", minutes, int(d.Seconds())%60)
	}
	return fmt.Sprintf("%ds", int(d.Seconds()))
}

// latency formats a bound of a histogram in at most five columns.
func latency(seconds float64) string {
	for _, u := range []struct {
		unit   string
		factor float64
	}{{"µs", 1e6}, {"ms", 1e3}, {"s", 1}} {
		if n := seconds * u.factor; n < 9.95 && u.unit != "µs" {
			return fmt.Sprintf("%.1f%s", n, u.unit)
		} else if n < 999.5 || u.unit == "s" {
			return fmt.Sprintf("%.0f%s", n, u.unit)
		}
	}
	return ""
}

// number formats a count or rate in at most five columns.
func number(n float64) string {
	switch {
	case n == 0:
		return "0"
	case n < 9.95 && n != math.Trunc(n):
		return fmt.Sprintf("%.1f", n)
	case n < 99999.5:
		return fmt.Sprintf("%.0f", n)
	}
	return scaled(n/1e3, 1e3, "kMGTPE")
}

// size formats bytes in at most five columns.
func size(n float64) string {
	if n < 1024 {
		return fmt.Sprintf("%.0f", n)
	}
	return scaled(n/1024, 1024, "KMGTPE")
}

// scaled formats a number in the first unit in which it has at most three digits.
func scaled(n, step float64, units string) string {
	for i := range units {
		if n < 9.95 {
			return fmt.Sprintf("%.1f%c", n, units[i])
		} else if n < 999.5 {
			return fmt.Sprintf("%.0f%c", n, units[i])
		}
		n /= step
	}
	return "huge"
}
