package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Size is a number of bytes, written as 512B, 64KiB, 10MiB or 1GiB (powers of 1024), or 64kB, 10MB, 1GB (powers of 1000).
type Size int64

// sizeUnits is ordered so that formatting finds the largest exact binary unit first.
var sizeUnits = []struct {
	name  string
	bytes int64
}{
	{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
	{"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}, {"B", 1},
}

// String returns the form the configuration is written in.
func (s Size) String() string {
	for _, u := range sizeUnits[:3] {
		if s != 0 && int64(s)%u.bytes == 0 {
			return strconv.FormatInt(int64(s)/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatInt(int64(s), 10) + "B"
}

// parseSize reads a size; its error ends in what to write.
func parseSize(text string) (Size, error) {
	end := len(text)
	for end > 0 && (text[end-1] < '0' || text[end-1] > '9') {
		end--
	}
	number, unit := text[:end], strings.TrimSpace(text[end:])
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("want a size such as 64KiB")
	}
	for _, u := range sizeUnits {
		if u.name != unit {
			continue
		}
		if n > math.MaxInt64/u.bytes {
			return 0, fmt.Errorf("want a smaller size")
		}
		return Size(n * u.bytes), nil
	}
	if unit == "" {
		return 0, fmt.Errorf("the unit is missing; did you mean \"%sB\" or \"%sKiB\"?", number, number)
	}
	return 0, fmt.Errorf("unknown unit %q; did you mean \"%s%s\"?", unit, number, nearestUnit(unit))
}

// nearestUnit maps k, K, KB, m, mb … to the binary unit most people mean.
func nearestUnit(unit string) string {
	switch strings.ToLower(unit)[0] {
	case 'g':
		return "GiB"
	case 'm':
		return "MiB"
	case 'b':
		return "B"
	}
	return "KiB"
}

// parseDuration reads 30s, 1h30m, 250ms …; its error ends in what to write.
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
