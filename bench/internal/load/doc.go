// Package load sends requests to a server, as fast as it answers or at a fixed rate, and records how long each answer
// took.
//
//	c, err := load.Open(ctx, load.Config{Addr: "127.0.0.1:8080", Conns: 64, Workload: load.Get("/")})
//	r, err := c.Run(ctx, 2*time.Second, 0)     // closed loop: each connection sends the next request after its answer
//	r, err = c.Run(ctx, 2*time.Second, 20_000) // 20,000 per second, even if the server is slower
//	fmt.Println(r.Throughput(), r.Latency.Quantile(0.99))
//	c.Close()
//
// At a fixed rate the time of an operation begins when it was due, not when a connection became free for it. So a stall
// of the server also counts for the requests that were delayed by it (no coordinated omission). An operation that was
// due and never answered counts with the time it has waited.
//
// A generator is an epoll loop on its own thread (see package poll). Self checks one against a server whose delays are known.
package load
