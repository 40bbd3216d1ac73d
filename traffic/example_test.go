package traffic_test

import (
	"fmt"
	"time"

	"github.com/headpond/headpond/traffic"
)

// A protocol defines its counters and their names, has a Set for each listener, and counts.
func Example() {
	const (
		commands = iota // the index of a count
		kinds
	)
	toy := &traffic.Schema{
		Labels: []string{"upstream"}, Limit: 100, Counts: kinds, Timings: 1,
		Views: []traffic.View{{
			Labels:     []string{"upstream"},
			Counters:   []traffic.Counter{{Name: "toy_commands_total", Help: "Commands.", Read: traffic.Count(commands)}},
			Histograms: []traffic.Timer{{Name: "toy_command_seconds", Help: "Time to the answer.", Read: traffic.Time(0)}},
		}},
	}
	set := traffic.NewSet(toy) // a listener.Server shows it after Measure(set)
	const loop = 1             // fiber.LoopOf(conn)
	shard := set.Cell("db").Shard(traffic.ShardOf(loop))

	shard.Add(commands, 1)
	shard.Observe(0, 3*time.Millisecond)

	for _, row := range set.Snapshot().Rows {
		fmt.Println(row.Labels, row.Counts[commands], row.Timings[0].Quantile(0.99).Round(time.Millisecond))
	}
	// Output: [db] 1 3ms
}
