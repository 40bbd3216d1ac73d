package gateway

import (
	"crypto/tls"
	"io"
	"log/slog"
	"slices"
	"time"

	"github.com/headpond/headpond/gateway/admin"
	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/internal/netaddr"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/upstream"
)

// OpenFiles is openFiles.
func OpenFiles(cfg *config.Config) uint64 { return openFiles(cfg) }

// ClientsWithin is clientsWithin.
func ClientsWithin(limit uint64, cfg *config.Config) int { return clientsWithin(limit, cfg) }

// RoomsFor is roomsFor.
func RoomsFor(clients int, cfg *config.Config) (connections, sessions int) {
	return roomsFor(clients, cfg)
}

// KeepTotal is keepTotal.
func (g *Gateway) KeepTotal(now time.Time) { g.keepTotal(now) }

// Holders is holders.
type Holders struct{ holders }

// Due is due.
func (h *Holders) Due(all []listener.Info, crowded map[string]int, limit time.Duration, now time.Time) []listener.Info {
	return h.due(all, crowded, limit, now)
}

// Remembered is how many holders were named.
func (h *Holders) Remembered() int { return len(h.named) }

// PauseRequests is how many requests an upstream is paused for.
func PauseRequests(g *Gateway, upstream string) int {
	g.reloading.Lock()
	defer g.reloading.Unlock()
	if p := g.pauses[upstream]; p != nil {
		return p.requests
	}
	return 0
}

// OnLoop runs fn as a fiber.
func OnLoop(g *Gateway, fn func()) { g.engine.Go(fn) }

// NewLogTo is newLog; missed counts lines that could not be written, flush ends it.
func NewLogTo(w io.Writer, format string) (logger *slog.Logger, missed func() admin.LogState, flush func() bool) {
	logger, control := newLog(w, config.Log{Format: config.LogFormat(format), Level: "info"})
	return logger, control.state, control.close
}

// NewLog is newLog; apply changes format and level, flush ends it.
func NewLog(w io.Writer, format, level string) (logger *slog.Logger, apply func(format, level string), flush func() bool) {
	settings := func(format, level string) config.Log {
		return config.Log{Format: config.LogFormat(format), Level: config.LogLevel(level)}
	}
	logger, control := newLog(w, settings(format, level))
	return logger, func(format, level string) { control.apply(settings(format, level)) }, control.close
}

// AdviceToBind is adviceToBind.
func AdviceToBind(address string, err error) string { return adviceToBind(address, false, err) }

// ProbeOf returns the health check of an upstream.
func ProbeOf(u *config.Upstream, logger *slog.Logger) (upstream.Probe, error) {
	g := &Gateway{logger: logger}
	h, err := g.healthOf(u, netaddr.Dial)
	return h.Probe, err
}

// CertificateFor returns the position of the certificate for a client.
func CertificateFor(pairs []tls.Certificate) func(*tls.ClientHelloInfo) int {
	s := newCertificateSet(pairs)
	return func(hello *tls.ClientHelloInfo) int {
		chosen := s.choose(hello)
		return slices.IndexFunc(pairs, func(c tls.Certificate) bool { return &c.Certificate[0][0] == &chosen.Certificate[0][0] })
	}
}

// Fitting returns the answer of an old process about its sessions, and their number.
func Fitting(all []listener.Info) (answer any, n int) {
	s := fitting(all)
	return s, len(s.Sessions)
}

// WaitForLeases is waitForLeases.
func WaitForLeases(s pool.Stats) int { return waitForLeases(s) }
