package sqlite

import (
	"errors"

	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
	"github.com/headpond/headpond/pool/sqlitepool"
)

// Refuse ends the session of a client whose database file could not be opened. err is New's error:
// it is sent to the client with its SQLSTATE, counted and logged.
func Refuse(c *pgproxy.Client, err error) error {
	resp := toResponse(err)
	if resp.Code == pgwire.StateInternalError || errors.Is(err, sqlitepool.ErrReadOnly) {
		resp = sqlError(pgwire.StateIOError, "cannot open the database file").because(err).
			hint("The gateway's log says why; it tries again when the next client comes.")
	}
	reason := listener.ReasonUpstreamUnavailable
	if resp.Code == pgwire.StateDiskFull {
		reason, resp.Hint = listener.ReasonDiskFull, "It cannot be opened until the gateway's operator has made room."
	}
	c.CountError(reason)
	c.Logger().Error("client refused: no database file", "reason", reason, "sqlstate", resp.Code, "error", err)
	return c.Fatal(resp.Code, resp.Message, resp.Hint)
}
