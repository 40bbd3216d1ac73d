package acme

import (
	"context"
	"log/slog"
	"maps"
	"slices"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// core passes certmagic's warnings and errors to the gateway's log. Lines of lower levels would repeat
// the gateway's own.
type core struct {
	log    *slog.Logger
	fields []zapcore.Field
}

// newZap returns a logger for certmagic.
func newZap(log *slog.Logger) *zap.Logger { return zap.New(core{log: log}) }

// Enabled implements zapcore.Core.
func (core) Enabled(level zapcore.Level) bool { return level >= zapcore.WarnLevel }

// With implements zapcore.Core.
func (c core) With(fields []zapcore.Field) zapcore.Core {
	return core{c.log, slices.Concat(c.fields, fields)}
}

// Check implements zapcore.Core.
func (c core) Check(e zapcore.Entry, to *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return to.AddCore(e, c)
	}
	return to
}

// Write implements zapcore.Core.
func (c core) Write(e zapcore.Entry, fields []zapcore.Field) error {
	values := zapcore.NewMapObjectEncoder()
	for _, f := range slices.Concat(c.fields, fields) {
		f.AddTo(values)
	}
	var args []any
	for _, key := range slices.Sorted(maps.Keys(values.Fields)) {
		args = append(args, key, values.Fields[key])
	}
	level := slog.LevelWarn
	if e.Level >= zapcore.ErrorLevel {
		level = slog.LevelError
	}
	c.log.Log(context.Background(), level, "acme: certmagic: "+e.Message, args...)
	return nil
}

// Sync implements zapcore.Core.
func (core) Sync() error { return nil }
