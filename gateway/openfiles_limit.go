//go:build linux || darwin

package gateway

import (
	"syscall"

	"github.com/headpond/headpond/gateway/config"
)

// checkOpenFiles raises the limit of open files if permitted (the Go runtime has raised the soft limit
// to the hard one). It warns if the limit is too low for cfg: clients then wait to be accepted before
// max_conns is reached.
func (g *Gateway) checkOpenFiles(cfg *config.Config) {
	var limit syscall.Rlimit
	needed := openFiles(cfg)
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil || limit.Cur >= needed {
		g.resizeRooms(0, cfg)
		return
	}
	before := limit.Cur
	limit.Cur, limit.Max = needed, max(limit.Max, needed)
	if syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit) == nil {
		g.resizeRooms(0, cfg)
		g.logger.Info("limit of open files raised", "from", before, "to", needed)
		return
	}
	clients := clientsWithin(before, cfg)
	g.resizeRooms(clients, cfg)
	g.logger.Warn("the limit of open files is too low for max_conns and the pools", "limit", before, "needed", needed, "clients_at_most", clients,
		"hint", "raise it (ulimit -n, LimitNOFILE), or lower max_conns")
}
