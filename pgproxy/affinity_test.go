package pgproxy_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/enginetest"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pgproxy"
)

// TestConnectionsOfSettings: clients get the server connections that have their settings, also after others have used their connection. On
// goroutines, which have no affinity, they get any, with their settings.
func TestConnectionsOfSettings(t *testing.T) {
	for name, more := range map[string]string{"start-up": "", "not reported": "lock_timeout=5s "} {
		t.Run(name, func(t *testing.T) {
			g := start(t, pgtest.Shared(t), func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Limits.MaxSize = 2 })
			const simple = "default_query_exec_mode=simple_protocol "
			var clients []*pgx.Conn
			zones := []string{"UTC", "Asia/Tokyo", "UTC", "Asia/Tokyo"}
			for _, zone := range zones {
				clients = append(clients, g.connect(t, simple+more+"timezone="+zone))
			}
			// Both server connections exist, one with each zone, once two clients have had one at the same time.
			do(t, clients[0], "begin")
			do(t, clients[1], "begin")
			pids := []int{one[int](t, clients[0], "select pg_backend_pid()"), one[int](t, clients[1], "select pg_backend_pid()")}
			do(t, clients[1], "commit")
			do(t, clients[0], "commit")
			for range 5 {
				for i, c := range clients {
					conntest.Eventually(t, "both server connections idle", func() bool { return g.backend.Status().Endpoints[0].Pool.Idle == 2 })
					var pid int
					var zone string
					if err := c.QueryRow(context.Background(), "select pg_backend_pid(), current_setting('timezone')").Scan(&pid, &zone); err != nil {
						t.Fatal(err)
					}
					if zone != zones[i] {
						t.Errorf("client %d is in %s", i, zone)
					}
					if enginetest.Kind() != fiber.Goroutine && pid != pids[i%2] {
						t.Errorf("client %d, in %s, has got the other server connection", i, zone)
					}
				}
			}
		})
	}
}
