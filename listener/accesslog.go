package listener

import (
	"context"
	"log/slog"
)

// AccessLog reports whether Access writes anything, so that a session need not
// collect attributes in vain.
func (s *Server) AccessLog() bool { return s.config().AccessLog }

// Access writes one line about a finished session or request when the access
// log is on: message "access", level info, with the listener's name and
// protocol before attrs. Attributes every protocol uses by the same name:
// client, upstream, endpoint, duration, bytes_in, bytes_out, status, error.
func (s *Server) Access(ctx context.Context, attrs ...slog.Attr) {
	cfg := s.config()
	if !cfg.AccessLog {
		return
	}
	cfg.Logger.LogAttrs(ctx, slog.LevelInfo, "access", attrs...)
}

// Logger returns the log with the listener's name and protocol as attributes,
// as of the last Update.
func (s *Server) Logger() *slog.Logger { return s.config().Logger }

// LineWriter takes the lines of a log of its own from sessions, which share threads.
type LineWriter interface {
	// WriteLine takes a line, which ends with a line break and has up to 64 KiB. It must not wait, and keeps no reference to line. It may
	// lose lines. shard is a small number, the same for all sessions of a loop (Conn.Shard), so that the lines of two loops need not meet
	// in a lock. It may be called from any goroutine.
	WriteLine(shard int, line []byte)
}
