package haproxycfg

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/headpond/headpond/internal/proxyconf"
	"github.com/headpond/headpond/internal/yamltext"
)

// parseTime reads a time: a number of milliseconds, or one with a unit.
func parseTime(text string, unit time.Duration) (time.Duration, bool) {
	digits := strings.TrimRight(text, "abcdefghijklmnopqrstuvwxyz")
	n, err := strconv.ParseUint(digits, 10, 31)
	if err != nil {
		return 0, false
	}
	switch text[len(digits):] {
	case "":
	case "us":
		unit = time.Microsecond
	case "ms":
		unit = time.Millisecond
	case "s":
		unit = time.Second
	case "m":
		unit = time.Minute
	case "h":
		unit = time.Hour
	case "d":
		unit = 24 * time.Hour
	default:
		return 0, false
	}
	if time.Duration(n) > math.MaxInt64/unit {
		return math.MaxInt64, true
	}
	return time.Duration(n) * unit, true
}

// duration returns a time of the gateway within its bounds. 0 is never, where HAProxy means that.
func (c *converter) duration(l line, text string, atLeast, atMost time.Duration) (string, bool) {
	d, ok := parseTime(text, time.Millisecond)
	if !ok {
		c.out.Reports.Add(l.at, l.name(), proxyconf.Missing, "%q is not a time", text)
		return "", false
	}
	if bound := min(max(d, atLeast), atMost); bound != d {
		c.out.Reports.Add(l.at, l.name(), proxyconf.Differs, "it is %s, from a range of %s to %s", yamltext.Short(bound), yamltext.Short(atLeast), yamltext.Short(atMost))
		d = bound
	}
	return yamltext.Short(d.Round(time.Microsecond)), true
}
