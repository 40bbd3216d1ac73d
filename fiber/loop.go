package fiber

import (
	"log/slog"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/internal/goroutine"
)

// poller is a loop's interface to the kernel: readiness or completion of its connections'
// operations. All methods but wake are called on the loop's thread. There are two: uring, and
// readiness for systems that only report when a socket is ready; only its eventQueue differs
// between these systems.
//
// read, write and move never block. done == false means that nothing could be done and that the
// poller wakes that side of the connection when this changes; spurious wake-ups are allowed.
type poller interface {
	// add starts serving c, whose descriptor is in non-blocking mode, connected or not. Its slot is set.
	add(c *Conn) error
	// remove gives up c but keeps its descriptor open. It does nothing and returns false while an operation is under
	// way.
	remove(c *Conn) bool
	// close closes the descriptor (Conn.free) once written data is sent, or at once if c is to be aborted. It may be
	// called a second time to abort c.
	close(c *Conn)
	// read reads into p, which is not kept.
	read(c *Conn, p []byte) (n int, err error, done bool)
	// write accepts bytes of p, and does not keep p. It may send accepted bytes later; a later call returns their
	// error.
	write(c *Conn, p []byte) (n int, err error, done bool)
	// move moves bytes from c to d that can be moved without waiting; full says that there may be much more. If it
	// moves nothing and returns no error, readable tells which side to wait for.
	move(c, d *Conn) (n int, full bool, readErr, writeErr error)
	// readable reports whether read would return done. If not, the poller wakes the side when it would.
	readable(c *Conn) bool
	// quiet reports that neither data nor the end has arrived.
	quiet(c *Conn) bool
	// ended reports that the end, or an error, is all there is to read.
	ended(c *Conn) bool
	// stop ends the receives under way; true = there are none, otherwise the reading side is woken when they have
	// ended.
	stop(c *Conn) bool
	// socket requests one side of the socket for a caller that makes system calls itself: splice, connect, shutdown.
	// True means that the side may be ready and that the poller holds no written data; otherwise the poller wakes the
	// side when it may be ready. tried says that such a call has just found the side not ready. The reading side must
	// be stopped.
	socket(c *Conn, s *side, tried bool) (ready bool)
	// watch makes the poller wake a, whose slot is set, when a connection waits. It is called again each time Accept
	// has found none. unwatch ends that, and closes the descriptor (Listener.free), perhaps later.
	watch(a *Listener) error
	unwatch(a *Listener)
	// wait lets the kernel work until something has happened, wake is called, or the loop's clock reaches until (0 = no
	// limit, negative = do not wait). It makes the fibers ready that can continue. idle says that it has waited without an
	// event.
	wait(until int64) (idle bool)
	// wake ends a wait; other threads call it.
	wake()
	// unsent returns the size in bytes of the buffers that hold written data that is not sent.
	unsent() int
	// trim frees the unused memory that is kept for the next burst.
	trim()
	// free frees everything.
	free()
}

// loop runs fibers on one thread. Fields belong to that thread unless they say otherwise.
type loop struct {
	engine  *Engine
	id      int // from 1, unique in the process
	poller  poller
	lacks   error          // features that the poller does not have
	table   table          // the connections and listeners that the poller serves, and the loop at wakeSlot
	thread  int            // thread id; set like self
	self    uintptr        // goroutine descriptor of the loop; set before any other thread knows the loop
	running atomic.Uintptr // goroutine descriptor of the running fiber; any thread may compare it
	tick    atomic.Uint64  // for the watchdog and Stats
	dozens  atomic.Uint64  // one for each twelve fibers resumed, for the watchdog
	resumed uint           // fibers resumed since the last dozen
	shown   atomic.Int64   // number of fibers, for Stats
	unsent  atomic.Int64   // in bytes, for BuffersHeld
	kept    atomic.Int64   // number of spare fibers, for Stats
	panics  atomic.Uint64  // fibers that ended by a panic
	active  atomic.Bool    // not waiting; for the watchdog
	held    atomic.Uint64  // times the watchdog has reported a fiber
	conns   atomic.Int64   // connections of this loop; read by Go and Listener to place new ones

	scratch   *[maxTry]byte // for TryRead; nil = none
	decrypted *[tlsTry]byte // for a TLSConn's TryRead; nil = none

	doing     requests // requests being served; swapped with asked
	current   *coroutine
	queue     []*coroutine // fibers ready to run
	behind    []*coroutine // the other half of the double buffer
	woken     []*coroutine // fibers woken by the fiber that runs, or ran last; see runWoken
	nextWoken int          // index in woken of the next fiber to resume
	bulk      []*coroutine // bulk fibers ready to run; see runBulk
	spare     []*coroutine
	fibers    int
	began     time.Time // of the current tick
	now       int64     // the same in the loops' clock
	before    int64     // now of the tick before
	eventAt   int64     // when the last wait ended with an event; see isBusy
	timers    timers
	closing   bool
	open      int // number of connections and listeners

	mu      sync.Mutex // held for a few instructions
	asked   requests   // requests received since the last tick; guarded by mu
	dead    bool       // the loop has ended, and post fails; guarded by mu
	waiting atomic.Bool
	ended   chan struct{}
}

// requests are other threads' requests to a loop.
type requests struct {
	posted []func()
	woken  []*coroutine
}

func (r *requests) none() bool { return len(r.posted) == 0 && len(r.woken) == 0 }

// clear empties r. It keeps the slices' capacity up to maxRoom.
func (r *requests) clear() {
	if cap(r.posted)+cap(r.woken) > maxRoom {
		*r = requests{}
		return
	}
	clear(r.posted)
	clear(r.woken)
	r.posted, r.woken = r.posted[:0], r.woken[:0]
}

const maxRoom = 4096

// loopIDs is the number of the newest loop.
var loopIDs atomic.Int32

// allLoops lists the loops of all engines.
var (
	allLoops   atomic.Pointer[[]*loop]
	allLoopsMu sync.Mutex
)

func publish(change func([]*loop) []*loop) {
	allLoopsMu.Lock()
	defer allLoopsMu.Unlock()
	var old []*loop
	if p := allLoops.Load(); p != nil {
		old = *p
	}
	updated := change(append([]*loop(nil), old...))
	allLoops.Store(&updated)
}

// start starts a loop on its own thread, and returns when the loop works.
func (e *Engine) start(kind Kind) (*loop, error) {
	l := &loop{engine: e, id: int(loopIDs.Add(1)), ended: make(chan struct{})}
	ready := make(chan error)
	go l.run(kind, ready)
	if err := <-ready; err != nil {
		return nil, err
	}
	return l, nil
}

// run serves the loop until it has ended. The thread is locked before the first fiber exists, because coroutines stay
// with the thread that made them, as io_uring's completions do.
func (l *loop) run(kind Kind, ready chan<- error) {
	runtime.LockOSThread() // never unlocked: the thread ends with the loop
	defer close(l.ended)
	l.self, l.thread = goroutine.ID(), threadID()
	l.table.put(l) // wakeSlot
	var err error
	if l.poller, l.lacks, err = newPoller(l, kind); err != nil {
		ready <- err
		return
	}
	defer l.poller.free()
	publish(func(all []*loop) []*loop { return append(all, l) })
	defer publish(func(all []*loop) []*loop {
		for i, o := range all {
			if o == l {
				return append(all[:i], all[i+1:]...)
			}
		}
		return all
	})
	l.readClock()
	l.active.Store(true)
	ready <- nil
	for !l.finish() {
		l.step()
	}
	l.trim(0)
}

// step runs one tick: posted functions, timers, fibers, then the kernel.
func (l *loop) step() {
	l.tick.Add(1)
	l.runPosted()
	l.expire()
	l.runReady()
	switch {
	case len(l.bulk) > 0:
		l.wait(-1) // sends written data before bulk is moved
		l.runBulk()
	case !l.finished():
		l.wait(l.until())
	}
}

// until returns the time at which the loop must wake without an event, as an argument of
// poller.wait.
func (l *loop) until() int64 {
	until := l.timers.next()
	if len(l.spare) > keptFibers && !keepFibers && (until == 0 || until > l.now+int64(idleAfter)) {
		until = l.now + int64(idleAfter) // to trim then
	}
	if len(l.queue) > 0 {
		return -1
	}
	l.waiting.Store(true)
	if l.hasPosted() {
		return -1
	}
	return until
}

// wait publishes the loop's counters and waits in the poller.
func (l *loop) wait(until int64) {
	l.shown.Store(int64(l.fibers))
	l.unsent.Store(int64(l.poller.unsent()))
	l.kept.Store(int64(len(l.spare)))
	l.active.Store(false)
	idle := l.poller.wait(until)
	l.active.Store(true)
	l.engine.watchAgain()
	l.waiting.Store(false)
	l.before = l.now
	l.readClock()
	if idle && until > 0 && l.now-until >= int64(idleAfter) { // the process was stopped after a signal had ended the wait
		l.poller.wait(-1) // events of that time are handled before deadlines pass; see Conn.late
	}
	switch {
	case !idle:
		l.eventAt = l.now
	case (until == 0 || l.now < until) && l.isBusy() && runnable() > 0: // the runtime has interrupted a raw wait
		l.eventAt = l.now - int64(busyFor) // and goroutines lack a processor: the next wait releases it
	}
	if idle && l.now-l.before >= int64(idleAfter) && !keepFibers { // without idle, the time may have passed off the processor
		l.trim(keptFibers)
	}
}

// readClock begins a tick's time.
func (l *loop) readClock() {
	l.began = time.Now()
	l.now = int64(l.began.Sub(epoch))
}

// idleAfter is how long a loop waits without an event before it frees spare coroutines.
const idleAfter = 5 * time.Millisecond

// keptFibers is how many spare coroutines it keeps, so that single events after pauses find one.
const keptFibers = 8

// trim ends spare coroutines, until keep are left.
func (l *loop) trim(keep int) {
	for len(l.spare) > keep {
		last := len(l.spare) - 1
		f := l.spare[last]
		l.spare[last] = nil
		l.spare = l.spare[:last]
		f.stop()
	}
}

// finish reports whether the loop has ended. If so, nothing more can be posted.
func (l *loop) finish() bool {
	if !l.finished() {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dead = l.asked.none()
	return l.dead
}

// finished reports whether a closing loop has nothing left to run.
func (l *loop) finished() bool {
	return l.closing && l.fibers == 0 && l.open == 0 && !l.hasReady()
}

// ready queues f for this tick or the next. It must be called on the loop's thread.
func (l *loop) ready(f *coroutine) {
	if f.bulk {
		l.bulk = append(l.bulk, f)
	} else {
		l.queue = append(l.queue, f)
	}
}

// hasReady reports whether fibers can run without a wait. Between two batches woken is empty.
func (l *loop) hasReady() bool { return len(l.queue)+len(l.bulk) > 0 }

// runReady resumes the ready fibers, and the fibers that these wake (see runWoken). Fibers that become ready otherwise
// run in the next tick, after a system call.
func (l *loop) runReady() {
	batch := l.queue
	l.queue = l.behind[:0]
	l.resumeAll(batch)
	l.behind = batch[:0]
}

// bulkPerTick is how long fibers that move bulk, or are in a TLS handshake, may run in a tick, in nanoseconds; a running
// fiber finishes its piece.
const bulkPerTick = int64(time.Millisecond)

// runBulk resumes bulk fibers, one after the other. It stops after bulkPerTick, so that they cannot delay
// other fibers, and resumes at least one, so that they do not starve.
func (l *loop) runBulk() {
	n := 0
	for until, m := nanotime()+bulkPerTick, len(l.bulk); n < m; {
		l.resumeAll(l.bulk[n : n+1])
		if n++; nanotime() >= until {
			break
		}
	}
	left := copy(l.bulk, l.bulk[n:])
	clear(l.bulk[left:])
	l.bulk = l.bulk[:left]
}

// resumeAll resumes the fibers of a batch, and after each fiber those that it has woken.
func (l *loop) resumeAll(batch []*coroutine) {
	for i := 0; i < len(batch) || len(l.woken) > 0; {
		i = l.resumeFrom(batch, i)
	}
}

// resumeFrom resumes the fibers of a batch from index i, up to the last or to one that calls runtime.Goexit. It returns
// the index of the next fiber.
func (l *loop) resumeFrom(batch []*coroutine, i int) (next int) {
	defer func() {
		if p := recover(); p == errGoexit { //nolint:errorlint // runFunction made it
			l.current = nil
			l.fibers--
		} else if p != nil {
			panic(p)
		}
	}()
	for next = i; ; {
		l.runWoken()
		if next == len(batch) {
			return next
		}
		f := batch[next]
		batch[next] = nil
		next++
		l.resume(f)
	}
}

// runWoken resumes the fibers that the last fiber has woken, in the same tick, so that for example a server connection
// that it released is used before the next system call. Fibers that these wake run in the next tick, so that fibers
// waking each other cannot keep the loop from the kernel.
func (l *loop) runWoken() {
	for l.nextWoken < len(l.woken) {
		f := l.woken[l.nextWoken]
		l.woken[l.nextWoken] = nil
		l.nextWoken++
		l.resume(f)
	}
	l.woken, l.nextWoken = l.woken[:0], 0
}

// post makes the loop run fn soon, outside any fiber. Any thread may call it; fn must not park. It returns false when
// the loop has ended.
func (l *loop) post(fn func()) bool {
	l.mu.Lock()
	if l.dead {
		l.mu.Unlock()
		return false
	}
	l.asked.posted = append(l.asked.posted, fn)
	l.mu.Unlock()
	l.nudge()
	return true
}

// nudge ends the loop's wait.
func (l *loop) nudge() {
	if l.waiting.Swap(false) {
		l.poller.wake()
	}
}

func (l *loop) hasPosted() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.asked.none()
}

func (l *loop) runPosted() {
	l.mu.Lock()
	l.asked, l.doing = l.doing, l.asked
	l.mu.Unlock()
	for _, fn := range l.doing.posted {
		fn()
	}
	for _, f := range l.doing.woken {
		l.ready(f)
	}
	l.doing.clear()
}

// wake makes f ready; any thread may call it. f must be parked, or be about to park on its own thread.
func (l *loop) wake(f *coroutine) {
	if l.isCaller() {
		if l.current != nil && l.nextWoken == 0 && !f.bulk {
			l.woken = append(l.woken, f)
		} else {
			l.ready(f)
		}
		return
	}
	l.mu.Lock()
	if l.dead {
		l.mu.Unlock()
		return
	}
	l.asked.woken = append(l.asked.woken, f)
	l.mu.Unlock()
	l.nudge()
}

// call runs fn as a fiber of l and returns when fn has ended. The caller may be a goroutine or a fiber of another loop.
// If the loop has ended, call returns false without running fn.
func (l *loop) call(fn func()) bool {
	if f := currentFiber(); f != nil {
		if !l.post(func() { l.spawn(func() { defer f.loop.wake(f); fn() }) }) {
			return false
		}
		f.park()
		return true
	}
	if threadID() == l.thread {
		panic("fiber: a coroutine within a fiber (iter.Pull) cannot wait: it would hold the loop for ever")
	}
	done := make(chan struct{})
	if !l.post(func() { l.spawn(func() { defer close(done); fn() }) }) {
		return false
	}
	<-done
	return true
}

// sleep parks the current fiber.
func (l *loop) sleep(d time.Duration) {
	l.timers.sleep(l.current, addClamped(d))
	l.current.park()
}

func (l *loop) logger() *slog.Logger { return l.engine.cfg.Logger }

// rawWaits says whether a busy loop may wait in the kernel unknown to Go's scheduler. That is cheap: during an ordinary
// system call the scheduler takes the processor away, after 20 µs if goroutines wait for one and otherwise after 10 ms,
// and the return from the call has to compete for a processor. A raw wait keeps its processor, so there must be another one for the rest of the
// program, and the runtime must be able to interrupt the wait (by its preemption signal) to stop the world.
type rawWaits struct{ processors int } // processors that Go may use; 0 = never wait raw

// busyFor is how long after an event a loop is busy. The end of an ordinary wait that has lost its processor costs more
// than it seems: Go's monitor then wakes up every 20 µs for a while. Raw waits cost an interruption every 10 ms. If
// goroutines wait for a processor at such an interruption, the loop is no longer busy until the next event.
const busyFor = 50 * time.Millisecond

// isBusy reports whether events come so often that raw waits cost less than ordinary ones.
func (l *loop) isBusy() bool { return l.now-l.eventAt < int64(busyFor) }

func newRawWaits() rawWaits {
	if asyncPreemptOff() {
		return rawWaits{}
	}
	return rawWaits{runtime.GOMAXPROCS(0)}
}

// allowed compares with the loops of all engines of the process: two engines with one loop each on two processors would
// leave the rest of the program no processor, until the runtime takes one back after 10 ms.
func (r rawWaits) allowed() bool { return len(*allLoops.Load()) < r.processors }

// asyncPreemptOff reports whether the runtime is set not to interrupt with signals, which the collector's check mode
// implies.
func asyncPreemptOff() bool {
	for setting := range strings.SplitSeq(os.Getenv("GODEBUG"), ",") {
		name, value, _ := strings.Cut(setting, "=")
		if (name == "asyncpreemptoff" || name == "gccheckmark") && value != "0" {
			return true
		}
	}
	return false
}
