//go:build linux || darwin

package gateway

import (
	"syscall"

	"github.com/headpond/headpond/gateway/config"
)

// checkOpenFiles raises the limit of open files where that is allowed (the Go runtime has raised the soft limit to the hard one), and warns
// when it is too low for cfg: clients would be refused before max_conns is reached.
func (g *Gateway) checkOpenFiles(cfg *config.Config) {
	var limit syscall.Rlimit
	needed := openFiles(cfg)
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil || limit.Cur >= needed {
		return
	}
	before := limit.Cur
	limit.Cur, limit.Max = needed, max(limit.Max, needed)
	if syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit) == nil {
		g.logger.Info("limit of open files raised", "from", before, "to", needed)
		return
	}
	g.logger.Warn("the limit of open files is too low for max_conns and the pools", "limit", before, "needed", needed,
		"hint", "raise it (ulimit -n, LimitNOFILE), or lower max_conns")
}
