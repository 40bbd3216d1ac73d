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
