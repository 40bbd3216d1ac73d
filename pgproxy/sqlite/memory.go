package sqlite

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"modernc.org/libc"
	"modernc.org/libc/sys/types"
	lib "modernc.org/sqlite/lib"
)

const (
	// DefaultMaxMemory has room for several values of the largest message and fits a small machine.
	DefaultMaxMemory = 512 << 20
	// valueShare divides MaxMemory to bound one value: an operator has two operands and a result.
	valueShare = 4
	// connMemory is allowed for the schema of each connection, in bytes, in addition to its page cache and the values
	// of its statements.
	connMemory = 2 << 20
	// trimFrom is how much memory SQLite must have freed before its allocator returns it to the system, in bytes.
	trimFrom = 16 << 20
	// trimAfter is the delay between a statement and the trim.
	trimAfter = time.Second
)

// memoryCounted reports whether SQLite counts its memory. Without it no limit on the sum can hold.
var memoryCounted = countMemory()

// countMemory turns on SQLite's memory counters, which modernc's build disables. SQLite accepts this only before the
// process opens its first database. Later, single values are still bounded, but not their sum.
func countMemory() bool {
	tls := libc.NewTLS()
	defer tls.Close()
	args := libc.NewVaList(int32(1))
	defer libc.Xfree(tls, args)
	return lib.Xsqlite3_config(tls, lib.SQLITE_CONFIG_MEMSTATUS, args) == lib.SQLITE_OK
}

// heap describes SQLite's memory. There is one heap for the whole process.
var heap struct {
	mu     sync.Mutex
	values int64        // the sum of the backends' MaxMemory
	caches int64        // the sum of the page caches' limits, in bytes
	conns  atomic.Int64 // connMemory of all connections, in bytes
	armed  atomic.Bool  // a call of trimNow is scheduled

	trimming sync.Mutex // held during trimNow: SQLite reports the peak to one caller only
}

// allowMemory raises SQLite's heap limit by values, and by conns connections with a page cache of cache bytes each.
// Negative values and conns lower it. A limit of zero means none.
func allowMemory(values, conns, cache int64) {
	heap.mu.Lock()
	defer heap.mu.Unlock()
	heap.values += values
	heap.caches += conns * cache
	tls := libc.NewTLS()
	defer tls.Close()
	lib.Xsqlite3_hard_heap_limit64(tls, heap.values+heap.caches+heap.conns.Add(conns*connMemory))
}

// trimLater schedules a trim after the current statement.
func trimLater() {
	if memoryCounted && !heap.armed.Load() && heap.armed.CompareAndSwap(false, true) {
		time.AfterFunc(trimAfter, trimNow)
	}
}

// trimNow returns memory that statements have freed since the last call to the system. It also waits for a concurrent
// call.
func trimNow() {
	heap.trimming.Lock()
	defer heap.trimming.Unlock()
	heap.armed.Store(false)
	tls := libc.NewTLS()
	defer tls.Close()
	used, peak := lib.Xsqlite3_memory_used(tls), lib.Xsqlite3_memory_highwater(tls, 1)
	if peak-used >= trimFrom {
		trim(tls, peak)
	}
	if used-cached(tls) >= heap.conns.Load()+trimFrom { // a statement still uses memory; try again later
		trimLater()
	}
}

// cached returns how many bytes of SQLite's memory the page caches take.
func cached(tls *libc.TLS) int64 {
	const size = int(unsafe.Sizeof(int64(0)))
	now := tls.Alloc(2 * size)
	defer tls.Free(2 * size)
	if lib.Xsqlite3_status64(tls, lib.SQLITE_STATUS_PAGECACHE_OVERFLOW, now, now+uintptr(size), 0) != lib.SQLITE_OK {
		return 0
	}
	return **(**int64)(unsafe.Pointer(&now)) // SQLite's memory is not Go's, and does not move
}

// trim makes modernc's allocator return large free regions to the system. The allocator keeps as many bytes as were in
// use at the peak, and for each power of two the pages of the region freed last. trim therefore allocates and frees
// untouched regions of each size, which take the place of the used ones; ballast keeps the bytes in use high enough
// that they are kept.
func trim(tls *libc.TLS, peak int64) {
	region := func(power int) uintptr { return libc.Xmalloc(tls, types.Size_t(1)<<power-64<<10) } // the allocator adds a header, which must not exceed the power
	const smallest = 23                                                                           // a power of two; of smaller regions the allocator keeps at most 4 MiB each
	largest := bits.Len64(uint64(peak))
	ballast := region(largest + 2)
	for power := smallest; power <= largest; power++ {
		kept, fresh := region(power), region(power)
		libc.Xfree(tls, kept)
		libc.Xfree(tls, fresh)
	}
	libc.Xfree(tls, ballast)
}
