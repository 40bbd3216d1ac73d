package httpproxy

import (
	"errors"
	"math/rand/v2"
	"time"
)

// LogFilter says which requests have a line in an access log: those for which one of the conditions holds. Without any
// condition all have one.
type LogFilter struct {
	// MinStatus takes requests with this status or a higher one, and all that have failed: also those that a client has left,
	// and answers that have broken off. 0 = no such condition.
	MinStatus int
	// SlowerThan takes requests that have lasted at least that long, to the end of the answer. 0 = no such condition.
	SlowerThan time.Duration
	// Sample takes one of so many requests, at random. 0 = no such condition.
	Sample int
}

func (f *LogFilter) verify() error {
	if f != nil && (f.MinStatus < 0 || f.SlowerThan < 0 || f.Sample < 0) {
		return errors.New("a negative condition for access logs")
	}
	return nil
}

// takes reports whether a request has a line; a nil f takes all. failed says that it was refused or has broken off.
func (f *LogFilter) takes(status int, failed bool, lasted time.Duration) bool {
	switch {
	case f == nil || *f == LogFilter{}:
		return true
	case f.MinStatus > 0 && (failed || status >= f.MinStatus):
		return true
	case f.SlowerThan > 0 && lasted >= f.SlowerThan:
		return true
	}
	return f.Sample > 0 && rand.IntN(f.Sample) == 0
}
