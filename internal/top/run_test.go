package top_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/top"
)

// TestText: without a terminal frames are text, with rates from the first one.
func TestText(t *testing.T) {
	f := busy(t)
	out := &growing{t: t, fake: f}
	if err := top.Run(t.Context(), top.Options{
		Source: out, Output: out, Interval: top.MinInterval, Frames: 2, View: top.Listeners, Order: "sessions", Filter: "POSTGRES",
		Getenv: func(name string) string { return map[string]string{"COLUMNS": "90", "TERM": "xterm"}[name] },
	}); err != nil {
		t.Fatal(err)
	}
	frames := strings.Split(out.String(), "\n\n")
	if len(frames) != 2 {
		t.Fatalf("%d frames:\n%s", len(frames), out)
	}
	for _, frame := range frames {
		lines := strings.Split(strings.TrimSpace(frame), "\n")
		if len(lines) != 6 || !strings.HasPrefix(lines[0], "headpond 1.2.3") || !strings.Contains(lines[5], "812") || strings.Contains(frame, "\x1b") {
			t.Errorf("%s", frame)
		}
		for _, l := range lines {
			if top.Columns(l) > 90 {
				t.Errorf("%q is wider than 90 columns", l)
			}
		}
	}
}

// growing is a gateway that works, and what was written of it.
type growing struct {
	bytes.Buffer
	t *testing.T
	*fake
}

func (g *growing) Get(ctx context.Context, path string) ([]byte, error) {
	body, err := g.fake.Get(ctx, path)
	if strings.HasPrefix(path, "/api/v1/status") {
		grow(g.t, g.fake)
	}
	return body, err
}

// broken is an output that fails.
type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("no space left") }

func TestRunFails(t *testing.T) {
	none := func(string) string { return "" }
	for want, o := range map[string]top.Options{
		"refused":       {Source: &fake{err: errors.New("refused")}, Output: broken{}},
		"no space left": {Source: busy(t), Output: broken{}, Interval: time.Millisecond},
		"unknown order": {Source: busy(t), Output: broken{}, Order: "size"},
		"not a gateway": {Source: web{}, Output: broken{}},
	} {
		o.Getenv = none
		if err := top.Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	out := &bytes.Buffer{}
	f := busy(t)
	stop()
	if err := top.Run(ctx, top.Options{Source: f, Output: out, Interval: time.Hour, Getenv: none}); err != nil || out.Len() > 0 {
		t.Errorf("%v, %s", err, out)
	}
}

// web is no gateway.
type web struct{}

func (web) Get(context.Context, string) ([]byte, error) { return []byte("<html>"), nil }
func (web) Kill(context.Context, string) error          { return nil }
