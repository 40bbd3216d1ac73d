package gateway

import (
	"io"
	"log/slog"

	"github.com/headpond/headpond/gateway/config"
)

// OpenFiles is openFiles.
func OpenFiles(cfg *config.Config) uint64 { return openFiles(cfg) }

// NewLog is newLog; apply changes format and level, flush ends it.
func NewLog(w io.Writer, format, level string) (logger *slog.Logger, apply func(format, level string), flush func() bool) {
	settings := func(format, level string) config.Log {
		return config.Log{Format: config.LogFormat(format), Level: config.LogLevel(level)}
	}
	logger, control := newLog(w, settings(format, level))
	return logger, func(format, level string) { control.apply(settings(format, level)) }, control.close
}
