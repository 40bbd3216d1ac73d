// Package load asks a server as fast as it answers, or at a fixed rate, and records how long each answer took.
//
//	c, err := load.Open(ctx, load.Config{Addr: "127.0.0.1:8080", Conns: 64, Workload: load.Get("/")})
//	r, err := c.Run(ctx, 2*time.Second, 0)     // closed loop: each connection asks again as soon as it has its answer
//	r, err = c.Run(ctx, 2*time.Second, 20_000) // 20,000 per second, whatever the server does
//	fmt.Println(r.Throughput(), r.Latency.Quantile(0.99))
//	c.Close()
//
// At a fixed rate an operation's time begins when it was due, not when a connection became free for it, so that a
// server that stalls is charged for everything that would have been asked meanwhile (no coordinated omission). An
// operation that was due and never answered counts with the time it has waited.
//
// A generator is an epoll loop on a thread of its own (see package poll). Self checks one against a server whose delays are known.
package load
