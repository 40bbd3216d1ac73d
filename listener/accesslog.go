package listener

import (
	"context"
	"log/slog"
	"time"
)

// AccessLog reports whether Access writes lines. If not, sessions need not collect attributes.
func (s *Server) AccessLog() bool { return s.config().AccessLog }

// Access writes one line about a finished session or request if the access log is on. The message
// is "access", the level info, and the listener's name and protocol precede attrs. All protocols
// use the same names for these attributes: client, upstream, endpoint, duration, bytes_in,
// bytes_out, status, error.
func (s *Server) Access(ctx context.Context, attrs ...slog.Attr) {
	cfg := s.config()
	if !cfg.AccessLog {
		return
	}
	cfg.Logger.LogAttrs(ctx, slog.LevelInfo, "access", attrs...)
}

// AccessConn writes the line of a session without requests: its duration, its bytes and, if not nil, the error that ended it.
func (s *Server) AccessConn(c *Conn, upstream, endpoint string, err error) {
	if !s.AccessLog() {
		return
	}
	attrs := []slog.Attr{
		slog.String("client", c.RemoteAddr().String()), slog.String("upstream", upstream), slog.String("endpoint", endpoint),
		slog.Duration("duration", time.Since(c.Accepted())), slog.Uint64("bytes_in", c.BytesIn()), slog.Uint64("bytes_out", c.BytesOut()),
	}
	if err != nil {
		attrs = append(attrs, slog.String("error", err.Error()))
	}
	s.Access(context.Background(), attrs...)
}

// Logger returns the logger of the last Update, with the listener's name and protocol as
// attributes.
func (s *Server) Logger() *slog.Logger { return s.config().Logger }

// LineWriter writes lines of a separate log. Sessions that share threads call it.
type LineWriter interface {
	// WriteLine writes a line of at most 64 KiB, which ends with a line break. It must not wait; it
	// may drop lines. It must not keep line. shard is Conn.Shard, the same small number for all
	// sessions of a loop, so that an implementation can have a buffer for each loop instead of a
	// common lock. WriteLine may be called from any goroutine.
	WriteLine(shard int, line []byte)
}
