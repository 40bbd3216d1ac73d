// Package pool holds the benchmarks of workload W6: what acquiring and
// releasing a pooled resource costs, with the alternatives side by side.
//
//	cd bench && go test -run '^$' -bench 'PoolAcquire' -count 10 ./pool
//
// A name ends in /g=N for N goroutines on a pool of 64 and /g=N/size=S for
// another size. In BenchmarkPoolHeld each holder yields once. BenchmarkPoolChecked has a health check due on every acquire.
// BenchmarkPoolHandOff measures the time from a release to the
// waiter's running, and how evenly 64 goroutines are served by one resource.
//
// The arm vitesslike is the algorithm of Vitess's smartconnpool, written anew because its module cannot be required; it
// is a little cheaper than the original.
package pool
