package pool_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/puddle/v2"

	"github.com/headpond/headpond/bench/internal/cpu"
	"github.com/headpond/headpond/pool"
)

// arm is one kind of pool: use acquires a resource, runs f and releases it.
type arm struct {
	name string
	// make opens a pool of the given size with all resources open.
	make func(tb testing.TB, size int) (use func(f func()))
}

type resource struct{ _ [64]byte }

var arms = []arm{
	{"headpond", headpond}, {"puddle", puddlePool}, {"vitesslike", vitessLike}, {"channel", channel},
	{"mutexslice", mutexSlice}, {"syncpool", syncPool}, {"databasesql", databaseSQL},
}

func headpond(tb testing.TB, size int) func(func()) {
	p, err := pool.New(pool.Config[*resource]{
		Open:   func(context.Context) (*resource, error) { return new(resource), nil },
		Close:  func(*resource) {},
		Limits: pool.Limits{MaxSize: size},
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(p.Close)
	ctx := context.Background()
	use := func(f func()) {
		l, err := p.Acquire(ctx)
		if err != nil {
			tb.Error(err)
			return
		}
		f()
		l.Release()
	}
	fill(size, use)
	return use
}

func puddlePool(tb testing.TB, size int) func(func()) {
	p, err := puddle.NewPool(&puddle.Config[*resource]{
		Constructor: func(context.Context) (*resource, error) { return new(resource), nil },
		Destructor:  func(*resource) {},
		MaxSize:     int32(size),
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(p.Close)
	ctx := context.Background()
	use := func(f func()) {
		r, err := p.Acquire(ctx)
		if err != nil {
			tb.Error(err)
			return
		}
		f()
		r.Release()
	}
	fill(size, use)
	return use
}

func channel(_ testing.TB, size int) func(func()) {
	ch := make(chan *resource, size)
	for range size {
		ch <- new(resource)
	}
	return func(f func()) {
		r := <-ch
		f()
		ch <- r
	}
}

// mutexSlice is the floor for a pool that waits: no waiting order, no limits
// but its size, no errors.
func mutexSlice(_ testing.TB, size int) func(func()) {
	var mu sync.Mutex
	cond := sync.NewCond(&mu)
	var idle []*resource
	for range size {
		idle = append(idle, new(resource))
	}
	return func(f func()) {
		mu.Lock()
		for len(idle) == 0 {
			cond.Wait()
		}
		r := idle[len(idle)-1]
		idle = idle[:len(idle)-1]
		mu.Unlock()
		f()
		mu.Lock()
		idle = append(idle, r)
		mu.Unlock()
		cond.Signal()
	}
}

// syncPool never waits and never limits: the floor for handing out objects.
func syncPool(testing.TB, int) func(func()) {
	p := sync.Pool{New: func() any { return new(resource) }}
	return func(f func()) {
		r := p.Get()
		f()
		p.Put(r)
	}
}

// fill opens size resources by holding them all at once.
func fill(size int, use func(func())) {
	var wg, held sync.WaitGroup
	held.Add(size)
	for range size {
		wg.Go(func() { use(func() { held.Done(); held.Wait() }) })
	}
	wg.Wait()
}

func nothing() {}

// spread runs use b.N times in total on g goroutines, which call work while they hold a resource.
func spread(b *testing.B, g int, use func(func()), work func()) {
	b.ReportAllocs()
	b.ResetTimer()
	defer reportCPU(b)()
	if g == 1 {
		for range b.N {
			use(work)
		}
		return
	}
	var wg sync.WaitGroup
	for i := range g {
		wg.Go(func() {
			for n := b.N*(i+1)/g - b.N*i/g; n > 0; n-- {
				use(work)
			}
		})
	}
	wg.Wait()
}

func BenchmarkPoolAcquire(b *testing.B) {
	for _, a := range arms {
		b.Run(a.name, func(b *testing.B) {
			for _, g := range []int{1, 2, 8, 64, 512} {
				b.Run(fmt.Sprintf("g=%d", g), func(b *testing.B) {
					spread(b, g, a.make(b, 64), nothing)
				})
			}
			for _, g := range []int{2, 8, 64, 512} {
				for _, size := range []int{1, 10} {
					b.Run(fmt.Sprintf("g=%d/size=%d", g, size), func(b *testing.B) {
						spread(b, g, a.make(b, size), nothing)
					})
				}
			}
		})
	}
}

// BenchmarkPoolHeld: each holder yields once, like one that waits for an answer. With more goroutines than resources
// every acquire must wait.
func BenchmarkPoolHeld(b *testing.B) {
	for _, a := range arms {
		b.Run(a.name, func(b *testing.B) {
			for _, c := range []struct{ g, size int }{{8, 1}, {64, 10}, {64, 64}} {
				b.Run(fmt.Sprintf("g=%d/size=%d", c.g, c.size), func(b *testing.B) {
					spread(b, c.g, a.make(b, c.size), runtime.Gosched)
				})
			}
		})
	}
}

// BenchmarkPoolChecked acquires a resource whose check is due each time: the cost of the pool
// without that of the check, which only counts. On the fast path the time is that of the last tick,
// so a hook turns the fast path off.
func BenchmarkPoolChecked(b *testing.B) {
	checks := 0
	p, err := pool.New(pool.Config[*resource]{
		Open:   func(context.Context) (*resource, error) { return new(resource), nil },
		Close:  func(*resource) {},
		Check:  func(context.Context, *resource) error { checks++; return nil },
		Limits: pool.Limits{CheckAfter: 1},
		Hooks:  pool.Hooks{Acquired: func(context.Context, pool.AcquireEvent) {}},
	})
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	b.ReportAllocs()
	defer reportCPU(b)()
	for b.Loop() {
		l, err := p.Acquire(context.Background())
		if err != nil {
			b.Fatal(err)
		}
		l.Release()
	}
	if checks < b.N-1 { // the first one is opened
		b.Fatalf("%d checks in %d acquires", checks, b.N)
	}
}

// BenchmarkPoolHandOff: 64 goroutines share one resource. It reports the time from the end of one
// holder's work to the beginning of the next one's, and the longest wait divided by the median (1
// is perfectly fair).
func BenchmarkPoolHandOff(b *testing.B) {
	const g = 64
	for _, a := range arms[:5] {
		b.Run(a.name, func(b *testing.B) {
			use := a.make(b, 1)
			var left atomic.Int64 // when the resource was last released
			start := time.Now()
			gaps, waits := make([][]int64, g), make([][]int64, g)
			b.ResetTimer()
			done := reportCPU(b)
			var wg sync.WaitGroup
			for i := range g {
				wg.Go(func() {
					for n := b.N*(i+1)/g - b.N*i/g; n > 0; n-- {
						asked := time.Since(start).Nanoseconds()
						use(func() {
							now := time.Since(start).Nanoseconds()
							gaps[i] = append(gaps[i], now-left.Load())
							waits[i] = append(waits[i], now-asked)
							left.Store(time.Since(start).Nanoseconds())
						})
					}
				})
			}
			wg.Wait()
			b.StopTimer()
			done()
			report(b, slices.Concat(gaps...), slices.Concat(waits...))
		})
	}
}

func report(b *testing.B, gaps, waits []int64) {
	slices.Sort(gaps)
	slices.Sort(waits)
	at := func(v []int64, q float64) float64 { return float64(v[int(q*float64(len(v)-1))]) }
	b.ReportMetric(at(gaps, 0.5), "p50-ns")
	b.ReportMetric(at(gaps, 0.99), "p99-ns")
	b.ReportMetric(at(gaps, 0.999), "p99.9-ns")
	b.ReportMetric(at(waits, 1)/max(at(waits, 0.5), 1), "max/median-wait")
}

// reportCPU returns a function that reports the processor time of the process per operation, including the garbage
// collector's. It varies less than wall time on a machine with other load.
func reportCPU(b *testing.B) func() {
	begin := cpu.Time()
	return func() { b.ReportMetric(float64(cpu.Time()-begin)/float64(b.N), "cpu-ns/op") }
}
