// Package upstream is a named set of endpoints that serve the same thing: it
// picks one per lease (balancing, health), and keeps a pool of connections to
// each.
//
//	api, err := upstream.New(upstream.Config[net.Conn]{
//		Name:      "api",
//		Endpoints: []string{"10.0.0.1:9001", "10.0.0.2:9001"},
//		Open:      func(ctx context.Context, endpoint string) (net.Conn, error) { return dial(ctx, endpoint) },
//		Close:     func(c net.Conn) { c.Close() },
//		Health:    upstream.Health{Probe: upstream.HTTPProbe("/healthz")},
//	})
//	lease, err := api.Acquire(ctx) // from the endpoint with the fewest leases
//	if err != nil {
//		return err
//	}
//	defer lease.Release() // or Discard, or Fail when the endpoint is to blame
//
// An endpoint is out while its health probe fails, or after several failures
// in a row were seen in use (ejection). Endpoints that are out get no leases
// as long as another one is in; when every one is out, leases are balanced over
// all of them, because a health check may be wrong and refusing everybody
// certainly is.
//
// The deciding parts, balancing (balance.go, ring.go), health (health.go) and
// ejection (eject.go), are pure and know no clock.
//
// Unstable until 1.0.
package upstream
