// Package upstream is a named set of endpoints that provide the same service. It picks an endpoint for each lease
// (balancing, health), and keeps a pool of connections to each of them.
//
//	api, err := upstream.New(upstream.Config[net.Conn]{
//		Name: "api",
//		Settings: upstream.Settings{
//			Endpoints: upstream.Endpoints("10.0.0.1:9001", "10.0.0.2:9001"),
//			Health:    upstream.Health{Probe: upstream.HTTPProbe("/healthz")},
//		},
//		Open:  func(ctx context.Context, endpoint string) (net.Conn, error) { return dial(ctx, endpoint) },
//		Close: func(c net.Conn) { c.Close() },
//	})
//	lease, err := api.Acquire(ctx) // from the endpoint with the fewest leases
//	if err != nil {
//		return err
//	}
//	defer lease.Release() // or Discard, or Fail if the endpoint is to blame
//
// An endpoint is out while its health probe fails, or after several failures in a row were seen in use (ejection);
// otherwise it is in. Endpoints that are out get no leases as long as another one, of any priority, is in. If all
// endpoints are out, leases are balanced over those of the first priority: a health check may be wrong, while refusing
// all clients certainly is.
//
// With a Target, only endpoints of the wanted Role get leases, such as the primary of servers that replicate the same
// data. The endpoints are asked for their roles over and over; while none has the role, callers wait for one.
//
// Update, or a Source (DNS, a file, an orchestrator), changes the set of endpoints. Either way only the differences are
// applied: an endpoint that stays in the set, identified by its address, keeps its connections and its state.
//
// A Tenant (NewTenant) has pools of its own at the endpoints, such as connections that are logged in as one user; all
// tenants share the endpoints with their health, balance, changes and pauses.
//
// The code that decides, about balancing (balance.go, choice.go, ring.go), health (health.go) and ejection (eject.go),
// is pure.
//
// Unstable until 1.0.
package upstream
