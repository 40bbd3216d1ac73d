// Package sourcetest runs upstream.Sources in tests.
package sourcetest

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headpond/headpond/upstream"
)

// Patience bounds a test that hangs.
const Patience = 30 * time.Second

// Report is one report of a Source.
type Report struct {
	Set []upstream.Endpoint
	Err error
}

// String lists a set: address, *weight, @priority and /zone where they are not the default, and "!" for an error.
func (r Report) String() string {
	var parts []string
	for _, e := range r.Set {
		text := e.Address
		if e.Weight > 1 {
			text += "*" + strconv.Itoa(e.Weight)
		}
		if e.Priority > 0 {
			text += "@" + strconv.Itoa(e.Priority)
		}
		if e.Zone != "" {
			text += "/" + e.Zone
		}
		parts = append(parts, text)
	}
	if r.Err != nil {
		parts = append(parts, "!")
	}
	return strings.Join(parts, " ")
}

// Watched is a running Source. Its methods belong to the test's goroutine.
type Watched struct {
	End     func() // ends the Source
	Reports chan Report
	t       testing.TB
}

// Watch runs a Source until the end of the test, or End.
func Watch(t testing.TB, s upstream.Source) *Watched {
	t.Helper()
	w := &Watched{t: t, Reports: make(chan Report)}
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan struct{})
	go func() {
		defer close(over)
		s.Watch(ctx, func(set []upstream.Endpoint, err error) error {
			select {
			case w.Reports <- Report{slices.Clone(set), err}:
			case <-ctx.Done():
			}
			return err
		})
	}()
	w.End = sync.OnceFunc(func() {
		cancel()
		select {
		case <-over:
		case <-time.After(Patience):
			t.Error("Watch does not end")
		}
	})
	t.Cleanup(w.End)
	return w
}

// Next returns the next report.
func (w *Watched) Next() Report {
	w.t.Helper()
	select {
	case r := <-w.Reports:
		return r
	case <-time.After(Patience):
		w.t.Fatal("nothing was reported")
		return Report{}
	}
}

// Wants returns the next report, whose String must be the text.
func (w *Watched) Wants(text string) Report {
	w.t.Helper()
	r := w.Next()
	if r.String() != text {
		w.t.Fatalf("got %q %v, want %q", r, r.Err, text)
	}
	return r
}

// Until waits for a report whose String is the text.
func (w *Watched) Until(text string) Report {
	w.t.Helper()
	var r Report
	for begin := time.Now(); time.Since(begin) < Patience; {
		if r = w.Next(); r.String() == text {
			return r
		}
	}
	w.t.Fatalf("got %q %v, want %q", r, r.Err, text)
	return r
}
