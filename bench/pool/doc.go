// Package pool holds the benchmarks of workload W6: the cost of acquiring and releasing a pooled
// resource, beside other pools.
//
//	cd bench && go test -run '^$' -bench 'PoolAcquire' -count 10 ./pool
//
// A name ends in /g=N for N goroutines on a pool of 64 and /g=N/size=S for another size. In
// BenchmarkPoolHeld each holder yields once. BenchmarkPoolChecked has a health check due on every
// acquire. BenchmarkPoolHandOff measures the time from a release until the waiter runs, and how
// evenly 64 goroutines share one resource.
//
// The arm vitesslike is the algorithm of Vitess's smartconnpool, rewritten because its module cannot be required. It is
// a little cheaper than the original.
package pool
