package tunnels

import (
	"github.com/headpond/headpond/gateway/admin"
	"github.com/headpond/headpond/tunnel"
)

// Shown are the rows of tunnels on the admin pages.
func Shown(rows ...Status) admin.Addition { return report.Of(rows) }

// StatusOf is statusOf.
func StatusOf(side string, t tunnel.Stats) Status { return statusOf(side, t) }
