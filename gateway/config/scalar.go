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
	return 0, fmt.Errorf("want a duration such as 250ms, 30s, 5m or 1h")
}
