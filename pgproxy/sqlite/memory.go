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
	// DefaultMaxMemory has room for several values of the largest message, far below what a small machine has.
	DefaultMaxMemory = 512 << 20
	// valueShare is which part of MaxMemory one value may take: an operator has two operands and a result.
	valueShare = 4
	// connMemory is what a connection takes beside its statements' values and its page cache, in bytes: its schema.
	connMemory = 2 << 20
	// trimFrom is how much SQLite must have given back before its allocator is made to do so, too, in bytes.
	trimFrom = 16 << 20
	// trimAfter is how long after a statement that is looked at.
	trimAfter = time.Second
)

// memoryCounted tells that SQLite counts its memory, without which it cannot bound it.
var memoryCounted = countMemory()

// countMemory has SQLite count what it takes, which modernc's build leaves out. It must come before the
// process opens its first database: afterwards, values are bounded, and not what they take together.
func countMemory() bool {
	tls := libc.NewTLS()
	defer tls.Close()
	args := libc.NewVaList(int32(1))
	defer libc.Xfree(tls, args)
	return lib.Xsqlite3_config(tls, lib.SQLITE_CONFIG_MEMSTATUS, args) == lib.SQLITE_OK
}

// heap is SQLite's memory, of which a process has one.
var heap struct {
	mu     sync.Mutex
	values int64        // the sum of the backends' MaxMemory
	caches int64        // what the page caches of their connections may take, in bytes
	conns  atomic.Int64 // what their connections take beside, in bytes
	armed  atomic.Bool  // trimNow will be called

	trimming sync.Mutex // held by trimNow, which takes a while: the peak is the first caller's
}

// allowMemory adds to the bound of SQLite's memory what values may take, and so many connections with a page cache of
// so many bytes each beside them. Without backends there is no bound.
func allowMemory(values, conns, cache int64) {
	heap.mu.Lock()
	defer heap.mu.Unlock()
	heap.values += values
	heap.caches += conns * cache
	tls := libc.NewTLS()
	defer tls.Close()
	lib.Xsqlite3_hard_heap_limit64(tls, heap.values+heap.caches+heap.conns.Add(conns*connMemory))
}

// trimLater sees to it that memory is given back some time after the statement that is beginning.
func trimLater() {
	if memoryCounted && !heap.armed.Load() && heap.armed.CompareAndSwap(false, true) {
		time.AfterFunc(trimAfter, trimNow)
	}
}

// trimNow gives the system back what statements have taken since the last time. When it returns that is done, also
// if it was called meanwhile by others.
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
	if used-cached(tls) >= heap.conns.Load()+trimFrom { // a statement is under way
		trimLater()
	}
}

// cached returns how much of SQLite's memory page caches take.
func cached(tls *libc.TLS) int64 {
	const size = int(unsafe.Sizeof(int64(0)))
	now := tls.Alloc(2 * size)
	defer tls.Free(2 * size)
	if lib.Xsqlite3_status64(tls, lib.SQLITE_STATUS_PAGECACHE_OVERFLOW, now, now+uintptr(size), 0) != lib.SQLITE_OK {
		return 0
	}
	return **(**int64)(unsafe.Pointer(&now)) // SQLite's memory is not Go's, and does not move
}

// trim makes modernc's allocator give back large regions that are free. It keeps as many bytes as were in use at
// a time, and of each size, a power of two, the pages of the region freed last. Regions that nothing was
// written to take the place of those; with ballast in use meanwhile, there is room to keep them.
func trim(tls *libc.TLS, peak int64) {
	region := func(power int) uintptr { return libc.Xmalloc(tls, types.Size_t(1)<<power-64<<10) } // with its header, still that power
	const smallest = 23                                                                           // as a power of two: of smaller ones it keeps 4 MiB each
	largest := bits.Len64(uint64(peak))
	ballast := region(largest + 2)
	for power := smallest; power <= largest; power++ {
		kept, fresh := region(power), region(power)
		libc.Xfree(tls, kept)
		libc.Xfree(tls, fresh)
	}
	libc.Xfree(tls, ballast)
}
