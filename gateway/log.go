package gateway

import (
	"context"
	"io"
	"log/slog"
	"sync/atomic"

	"github.com/headpond/headpond/gateway/admin"
	"github.com/headpond/headpond/gateway/config"
)

// logControl is a log whose level and format a reload can change, also for loggers that were derived from it before.
type logControl struct {
	level slog.LevelVar
	json  atomic.Bool
	lines *lineWriter
}

// newLog returns a logger to w, and the object that changes and closes it.
func newLog(w io.Writer, cfg config.Log) (*slog.Logger, *logControl) {
	c := &logControl{lines: newLineWriter(w)}
	c.apply(cfg)
	text, asJSON := &slog.HandlerOptions{Level: &c.level}, &slog.HandlerOptions{Level: &c.level, ReplaceAttr: inSeconds}
	return slog.New(formatHandler{slog.NewTextHandler(c.lines, text), slog.NewJSONHandler(c.lines, asJSON), &c.json}), c
}

// inSeconds names the unit of durations in JSON, where slog writes a bare number: duration_seconds.
func inSeconds(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() != slog.KindDuration {
		return a
	}
	return slog.Float64(a.Key+"_seconds", a.Value.Duration().Seconds())
}

// close writes the queued lines, and reports whether it could. Later lines are lost.
func (c *logControl) close() bool { return c == nil || c.lines.close() }

// state returns how many log lines were lost, and why.
func (c *logControl) state() admin.LogState {
	if c == nil {
		return admin.LogState{}
	}
	return c.lines.missed()
}

// apply sets level and format.
func (c *logControl) apply(cfg config.Log) {
	levels := map[config.LogLevel]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError}
	c.level.Set(levels[cfg.Level])
	c.json.Store(cfg.Format == "json")
}

// formatHandler writes text or JSON, whichever is in force when a line is written.
type formatHandler struct {
	text, json slog.Handler
	asJSON     *atomic.Bool
}

var _ slog.Handler = formatHandler{}

func (h formatHandler) current() slog.Handler {
	if h.asJSON.Load() {
		return h.json
	}
	return h.text
}

func (h formatHandler) Enabled(ctx context.Context, l slog.Level) bool { return h.text.Enabled(ctx, l) }

func (h formatHandler) Handle(ctx context.Context, r slog.Record) error {
	return h.current().Handle(ctx, r)
}

func (h formatHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return formatHandler{h.text.WithAttrs(attrs), h.json.WithAttrs(attrs), h.asJSON}
}

func (h formatHandler) WithGroup(name string) slog.Handler {
	return formatHandler{h.text.WithGroup(name), h.json.WithGroup(name), h.asJSON}
}
