package sqlitepool

import (
	"math"
	"runtime"
	"time"

	"github.com/headpond/headpond/pool"
	"zombiezen.com/go/sqlite"
)

// Defaults of Config.
const (
	// DefaultBusyTimeout is the value that SQLite's documentation suggests.
	DefaultBusyTimeout = 5 * time.Second
	// DefaultLogSize suits a busy file of any size.
	DefaultLogSize = 64 << 20
	// DefaultCacheSize is divided among the page caches of all connections.
	DefaultCacheSize = 64 << 20
	// A connection's share of DefaultCacheSize is at least SQLite's own default. At most it holds the frequently used
	// part of most files.
	minCache, maxCache = 2 << 20, 16 << 20
	// minReaders is the least number of readers, so that a few slow ones do not starve the others
	// on small machines.
	minReaders = 4
)

// Config describes how a DB opens its connections. The zero value is valid.
type Config struct {
	// Readers are the limits of the pool of readers. MaxSize 0 means the
	// number of CPUs, at least 4. Overflow is ignored: acquires wait.
	Readers pool.Limits
	// Writer are the limits of the pool of the single writer. Its sizes, IdleTimeout, MaxLifetime and
	// Overflow are ignored: the pool has one connection, which stays open, and acquires wait for it.
	Writer pool.Limits
	// BusyTimeout is how long a statement waits for a lock of another process. 0 means 5 seconds.
	// DB.Write's BEGIN also stops waiting when the context ends; for other statements SQLite does
	// not check the context.
	BusyTimeout time.Duration
	// LogSize is the length in bytes to which the log file is truncated after a checkpoint, so that
	// one large transaction does not use its space forever. While the log, or that of an attached
	// file, is longer, the writer waits for readers so that the log can restart. 0 means 64 MiB.
	LogSize int64
	// CacheSize is how many bytes of the file's pages each connection caches; look-ups find them
	// without a system call. The memory is allocated as pages are read, and freed when the
	// connection is closed. Attached files have SQLite's default of 2 MiB. A sort may use as much
	// before it uses a temporary file. 0 means an equal share of DefaultCacheSize, at least 2 MiB
	// and at most 16 MiB.
	CacheSize int64
	// ReadOnly opens the file read-only; it must exist.
	ReadOnly bool
	// Setup runs on every new connection, before a reader becomes query_only: register functions,
	// create temporary views, attach other files. Attached files must be in WAL mode, or their
	// readers and the writer block each other. Setup must not change the schema each time.
	// Optional.
	Setup func(conn *sqlite.Conn) error
	// Teardown runs before a connection is closed, even if its Setup failed or panicked. Optional.
	Teardown func(conn *sqlite.Conn)
}

func (c Config) withDefaults() Config {
	if c.Readers.MaxSize == 0 {
		c.Readers.MaxSize = max(runtime.NumCPU(), minReaders)
	}
	if c.BusyTimeout <= 0 {
		c.BusyTimeout = DefaultBusyTimeout
	}
	c.BusyTimeout = min(max(c.BusyTimeout, time.Millisecond), math.MaxInt32*time.Millisecond) // SQLite counts milliseconds in 32 bits
	if c.LogSize <= 0 {
		c.LogSize = DefaultLogSize
	}
	if c.CacheSize <= 0 {
		c.CacheSize = min(max(DefaultCacheSize/(max(int64(c.Readers.MaxSize), 0)+1), minCache), maxCache)
	}
	c.CacheSize = min(max(c.CacheSize, 1<<10), math.MaxInt32<<10) // SQLite counts KiB
	c.Writer.MaxSize, c.Writer.MinIdle, c.Writer.MaxIdle = 1, 0, 0
	c.Writer.IdleTimeout, c.Writer.MaxLifetime = -1, 0
	c.Writer.Overflow, c.Readers.Overflow = pool.OverflowWait, pool.OverflowWait
	return c
}
