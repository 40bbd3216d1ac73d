// Package traffic counts the traffic of a proxy, by labels: requests, transactions, errors by class, and how long they
// took.
//
//	var schema = &traffic.Schema{
//		Labels: []string{"route"}, Limit: 100, Counts: 1, Timings: 1,
//		Views: []traffic.View{{
//			Labels:     []string{"route"},
//			Counters:   []traffic.Counter{{Name: "toy_requests_total", Help: "Requests.", Read: traffic.Count(0)}},
//			Histograms: []traffic.Timer{{Name: "toy_request_seconds", Help: "Time to answer.", Read: traffic.Time(0)}},
//		}},
//	}
//
//	set := traffic.NewSet(schema)           // one for each listener; listener.Server.Measure shows it
//	cell := set.Cell("/api")                // once for each route: looks labels up
//	shard := cell.Shard(fiber.LoopOf(conn)) // once for each session
//	shard.Add(0, 1)                         // for each request: an atomic that no other loop writes
//	shard.Observe(0, took)
//
// The Schema of a protocol defines the stored counters and the metrics made of them. Looking labels up takes a lock and
// is done when a route is configured or a client logs in, never for a request. Each loop of the I/O engine counts in
// its own shard, so that no two loops write the same cache line; a snapshot adds the shards up. The number of cells is
// bounded: labels beyond Schema.Limit count as "other".
package traffic
