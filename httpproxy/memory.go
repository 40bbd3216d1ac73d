package httpproxy

import (
	"cmp"
	"math"
	"net/http"
	"os"
	"path"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/listener"
)

// Memory bounds the bytes that several Proxies hold for requests: heads, pieces of bodies, and data
// that the engine holds for peers that do not read. While it is used up, new requests are answered
// with 503. All methods may be called from any goroutine.
type Memory struct {
	limit   int64
	copies  atomic.Int64 // the bytes of them that copies for Mirrors have
	mu      sync.Mutex   // held for a few instructions
	ledgers []*ledger
}

// NewMemory returns a Memory of limit bytes.
func NewMemory(limit int64) *Memory { return &Memory{limit: limit} }

// SharedMemory is the Memory of all Proxies whose Config has none: a quarter of the memory that the
// process may use, which is the least of GOMEMLIMIT, the limit of its control group and the machine's
// memory.
var SharedMemory = sync.OnceValue(func() *Memory { return NewMemory(max(available()/4, leastMemory)) })

// leastMemory is the least size of SharedMemory, in bytes: with less, hardly a request could be
// served.
const leastMemory = 16 << 20

// available returns how much memory the process may use, in bytes; a very large number if unknown.
func available() int64 {
	most := debug.SetMemoryLimit(-1)
	groups, _ := os.ReadFile("/proc/self/cgroup")
	for _, file := range limitFiles(string(groups)) {
		text, _ := os.ReadFile(file)
		if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && n > 0 {
			most = min(most, n)
		}
	}
	text, _ := os.ReadFile("/proc/meminfo")
	if fields := strings.Fields(string(text)); len(fields) > 1 && fields[0] == "MemTotal:" {
		if kib, err := strconv.ParseInt(fields[1], 10, 64); err == nil && kib > 0 && kib < math.MaxInt64>>10 {
			most = min(most, kib<<10)
		}
	}
	return most
}

// limitFiles lists the files with the limits of control groups, of version 1 or 2, given the text of
// /proc/self/cgroup: the process's own groups, and all groups above them. In a container the path of
// the own group may not exist; its root has the limit then.
func limitFiles(groups string) (files []string) {
	for line := range strings.Lines(groups) {
		_, tail, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, group, _ := strings.Cut(tail, ":")
		root, name := "/sys/fs/cgroup", "memory.max"
		if slices.Contains(strings.Split(controllers, ","), "memory") {
			root, name = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
		} else if controllers != "" {
			continue
		}
		for group = path.Clean("/" + group); ; group = path.Dir(group) {
			files = append(files, path.Join(root, group, name))
			if group == "/" {
				break
			}
		}
	}
	return files
}

// add adds l to the ledgers that count, unless l was removed before.
func (m *Memory) add(l *ledger) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !l.removed && !slices.Contains(m.ledgers, l) {
		m.ledgers = append(m.ledgers, l)
	}
}

func (m *Memory) remove(l *ledger) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l.removed = true
	m.ledgers = slices.DeleteFunc(m.ledgers, func(o *ledger) bool { return o == l })
}

// held returns the bytes that are held now, or are foreseen.
func (m *Memory) held() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := fiber.BuffersHeld()
	for _, l := range m.ledgers {
		n += l.held() + l.foreseen.Load()
	}
	return n
}

// ledgerShards is a power of two. Sessions of one loop share a shard.
const ledgerShards = 16

// ledger counts the bytes that one Proxy holds.
type ledger struct {
	memory  *Memory
	removed bool         // permanently; guarded by memory.mu
	limit   atomic.Int64 // 0 = only the limit of memory
	perConn atomic.Int64 // of each client's connection; 0 = none
	next    atomic.Int64 // when the sums are computed again, as time.Since(ledgerEpoch)
	full    atomic.Bool  // result of the last sums
	copies  atomic.Int64 // the bytes of copies for Mirrors
	// foreseen is what uploads may soon hold, see session.foresee.
	foreseen atomic.Int64
	_        [128]byte // separates these from the cache line of the first shard
	shards   [ledgerShards]account
}

// account is a shard of a ledger, alone in its cache lines.
type account struct {
	n atomic.Int64
	_ [120]byte
}

// ledgerInterval is the maximum age of the sums. Computing them reads a cache line of each loop.
const ledgerInterval = time.Millisecond

var ledgerEpoch = time.Now()

// account returns the account of a session.
func (l *ledger) account(shard uint8) *account { return &l.shards[shard%ledgerShards] }

func (l *ledger) held() (n int64) {
	for i := range l.shards {
		n += l.shards[i].n.Load()
	}
	return n
}

// exhausted reports whether a new request must be refused.
func (l *ledger) exhausted(now time.Time) bool {
	at := int64(now.Sub(ledgerEpoch))
	if next := l.next.Load(); at >= next && l.next.CompareAndSwap(next, at+int64(ledgerInterval)) {
		limit := l.limit.Load()
		l.full.Store(limit > 0 && l.held()+l.foreseen.Load() >= limit || l.memory.held() >= l.memory.limit)
	}
	return l.full.Load()
}

// copiesShare: copies may have this share of the memory. With more, a mirror that does not answer would make the Proxy refuse
// requests.
const copiesShare = 4

// takeForCopy reports whether copies may have n more bytes, and counts them then. The bytes are held, too.
func (l *ledger) takeForCopy(n int) bool {
	limit := l.limit.Load()
	own, all := l.copies.Add(int64(n)), l.memory.copies.Add(int64(n))
	if (limit == 0 || own <= limit/copiesShare) && all <= l.memory.limit/copiesShare {
		return true
	}
	l.giveBackOfCopy(n)
	return false
}

func (l *ledger) giveBackOfCopy(n int) {
	l.copies.Add(-int64(n))
	l.memory.copies.Add(-int64(n))
}

// shed refuses the request if there is no memory for it. The status is 0 if it is not refused.
func (s *session) shed() (no refusal) {
	if s.p.ledger.exhausted(fiber.Now()) {
		return overloaded("too much memory is in use for other requests")
	}
	if s.overMemory || s.ex.needsBody && s.hasJSON() && !s.claimPeek() {
		return overloaded("too much memory is in use for other requests of this connection")
	}
	return no
}

func overloaded(why string) refusal {
	return refusal{status: http.StatusServiceUnavailable, reason: listener.ReasonOverloaded, why: why, retryAfter: 1}
}

// LeastBufferedPerConn returns the least Config.MaxBufferedPerConn, in bytes: the memory that a single
// request may take, with these values of Config.MaxHeaderBytes and PeekBytes (0 = their defaults). So
// a request that is alone on its connection is never refused.
func LeastBufferedPerConn(maxHeaderBytes, peekBytes int) int64 {
	head, peek := cmp.Or(maxHeaderBytes, DefaultMaxHeaderBytes), cmp.Or(peekBytes, DefaultPeekBytes)
	return int64(2*head + 3*peek + 12*bufferSize) // buffers double as they grow, and a peeked body is copied
}

// takeBuffer takes a buffer from buffers.
func takeBuffer(t *tally) *[bufferSize]byte {
	t.add(bufferCost)
	return buffers.Get().(*[bufferSize]byte)
}

// putBuffer returns a buffer to buffers.
func putBuffer(t *tally, b *[bufferSize]byte) {
	t.add(-bufferCost)
	buffers.Put(b)
}

// outSize is the size of the buffers for framed bodies: maxOut, one more frame, and frames without
// content.
const outSize = maxOut + maxFrame + 8<<10

var outBuffers = sync.Pool{New: func() any { return new([outSize]byte) }}

// outFor returns out, a buffer from takeBuffer, with room for n more bytes if outSize suffices.
func outFor(out []byte, n int) []byte {
	if n += len(out); n <= cap(out) || n > outSize {
		return out
	}
	larger := outBuffers.Get().(*[outSize]byte)[:]
	larger = larger[:copy(larger, out)]
	recycle(out)
	return larger
}

// putOut returns a buffer from takeBuffer or outFor.
func putOut(t *tally, out []byte) {
	recycle(out)
	t.add(-bufferCost)
}

// recycle reuses a buffer, unless append has replaced it.
func recycle(out []byte) {
	switch cap(out) {
	case bufferSize:
		buffers.Put((*[bufferSize]byte)(out[:bufferSize]))
	case outSize:
		outBuffers.Put((*[outSize]byte)(out[:outSize]))
	}
}

// placesHeld counts, for each loop, the bytes from HTTP/2 servers that were not read yet. Their
// connections belong to no Proxy.
var placesHeld = sync.OnceValue(func() *[ledgerShards]tally {
	l := &ledger{memory: SharedMemory()}
	l.memory.add(l)
	tallies := new([ledgerShards]tally)
	for i := range tallies {
		tallies[i].to = &l.shards[i]
	}
	return tallies
})
