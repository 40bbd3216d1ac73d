package config

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// parseDuration reads 30s, 1h30m, 250ms …; its errors say what to write instead.
func parseDuration(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err == nil {
		return d, nil
	}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return 0, fmt.Errorf("the unit is missing; did you mean \"%ds\"?", n)
	}
	if days, ok := strings.CutSuffix(text, "d"); ok {
		if n, err := strconv.ParseUint(days, 10, 16); err == nil {
			return 0, fmt.Errorf("days are not a unit; did you mean \"%dh\"?", n*24)
		}
	}
	number := strings.TrimRight(text, "abcdefghijklmnopqrstuvwxyz ")
	if unit, ok := unitWords[strings.TrimSpace(text[len(number):])]; ok {
		if _, err := time.ParseDuration(number + unit); err == nil {
			return 0, fmt.Errorf("want a duration such as 250ms, 30s, 5m or 1h; did you mean %q?", number+unit)
		}
	}
	return 0, fmt.Errorf("want a duration such as 250ms, 30s, 5m or 1h")
}

// unitWords maps units as other programs write them, such as "sec", or "s" after a space, to Go's.
var unitWords = map[string]string{
	"ms": "ms", "msec": "ms", "millis": "ms", "milliseconds": "ms",
	"s": "s", "sec": "s", "secs": "s", "second": "s", "seconds": "s",
	"m": "m", "min": "m", "mins": "m", "minute": "m", "minutes": "m",
	"h": "h", "hr": "h", "hrs": "h", "hour": "h", "hours": "h",
}
