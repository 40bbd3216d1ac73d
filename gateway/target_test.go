package gateway_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/headpond/headpond/internal/pgtest"
)

const targetText = `
drain_timeout: 10s
listeners:
  - {name: db, protocol: postgres, listen: "127.0.0.1:0", upstream: pg}
upstreams:
  pg:
    endpoints: ["{server}"]
    pool: {acquire_timeout: {timeout}}
    postgres: {user: postgres, target: {target}}
`

// TestTargetIsReloaded changes the role that a server must have. It stays the same upstream.
func TestTargetIsReloaded(t *testing.T) {
	db := pgtest.Start(t)
	text := func(target string) []string {
		timeout := "60s"
		if target == "standby" || target == "read-only" {
			timeout = "100ms" // there is none
		}
		return []string{"{server}", db.Addr(), "{target}", target, "{timeout}", timeout}
	}
	gw := run(t, parse(t, targetText, text("standby")...))
	for _, target := range []string{"standby", "primary", "any", "prefer-standby", "read-only", "read-write"} {
		if err := gw.Reload(parse(t, targetText, text(target)...)); err != nil {
			t.Fatal(err)
		}
		conn, err := pgx.Connect(t.Context(), "postgres://postgres@"+gw.Addr("db")+"/postgres?sslmode=disable")
		if err == nil {
			_, err = conn.Exec(t.Context(), "create table if not exists t ()")
			_ = conn.Close(t.Context())
		}
		switch target {
		case "standby", "read-only":
			if err == nil || !strings.Contains(err.Error(), "no server is a standby") {
				t.Errorf("target %s: %v", target, err)
			}
		default:
			if err != nil {
				t.Errorf("target %s: %v", target, err)
			}
		}
	}
	if s := gw.Snapshot(); len(s.Retiring) > 0 || s.Upstreams[0].Target.String() != "read-write" || s.Upstreams[0].Endpoints[0].Pool.Opened < 1 {
		t.Errorf("%+v", s)
	}
}
