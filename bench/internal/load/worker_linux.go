package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"syscall"
	"time"

	"github.com/headpond/headpond/bench/internal/poll"
)

const (
	// readSize is the largest read, in bytes.
	readSize = 256 << 10
	// drainTime is how long the end of a run waits for outstanding answers.
	drainTime = 10 * time.Second
)

// errLate means that answers were missing drainTime after the end of a run.
var errLate = errors.New("answers missing long after the end of the round")

// conn is a connection and the operation on it.
type conn struct {
	fd    int
	busy  bool
	start time.Duration // when the operation was due, on the worker's clock
	out   []byte        // unwritten part of the request
	in    []byte        // the beginning of an answer
	buf   []byte        // buffer for requests
}

// worker is one generator: an epoll loop and its connections.
type worker struct {
	cfg   Config
	to    syscall.SockaddrInet4
	from  [4]byte // next source address in 127/8: each address has only 28,000 ports
	poll  *poll.Poller
	conns []*conn
	byFD  map[int]*conn
	rand  *rand.Rand
	buf   []byte

	began  time.Time
	idle   []*conn
	busy   int
	ending bool
	res    Result
}

func newWorker(cfg Config, number int) (*worker, error) {
	to, err := poll.SocketAddr(cfg.Addr)
	if err != nil {
		return nil, err
	}
	p, err := poll.New()
	if err != nil {
		return nil, err
	}
	return &worker{
		cfg: cfg, to: to, poll: p, byFD: map[int]*conn{}, buf: make([]byte, readSize),
		from: [4]byte{127, byte(2 + number), 0, 1}, rand: rand.New(rand.NewPCG(uint64(number), 1)),
	}, nil
}

// adopt gives a connected descriptor to a connection.
func (w *worker) adopt(c *conn, fd int) error {
	c.fd, c.busy, c.out, c.in = fd, false, nil, c.in[:0]
	w.byFD[fd] = c
	return w.poll.Add(fd)
}

// now returns the time on the worker's clock.
func (w *worker) now() time.Duration { return time.Since(w.began) }

// run is one round.
func (w *worker) run(ctx context.Context, d time.Duration, rate float64) (Result, error) {
	w.res, w.ending, w.busy = Result{}, false, 0
	w.idle = append(w.idle[:0], w.conns...)
	w.began = time.Now()
	if err := w.turn(0); err != nil { // what the server has closed since the last round is known before it is used
		return w.res, err
	}
	due := schedule{rate: rate}
	for ctx.Err() == nil {
		now := w.now()
		if now >= d {
			break
		}
		for len(w.idle) > 0 {
			start, ok := due.next(now)
			if !ok {
				break
			}
			w.begin(start)
		}
		wait := d - now
		if rate > 0 && len(w.idle) > 0 {
			wait = min(wait, due.at()-now)
		}
		if err := w.turn(wait); err != nil {
			return w.res, err
		}
		if w.res.Errors > int64(len(w.conns))+1000 {
			break // every operation fails: report the first error soon
		}
	}
	w.ending = true
	w.res.Elapsed = w.now()
	for start, ok := due.next(w.res.Elapsed); ok && rate > 0; start, ok = due.next(w.res.Elapsed) {
		w.res.Latency.Record(w.res.Elapsed - start) // due and never sent
	}
	return w.res, w.drain(ctx)
}

// drain waits for outstanding answers, so that the next round begins with idle connections.
func (w *worker) drain(ctx context.Context) error {
	end := w.now() + drainTime
	for w.busy > 0 && ctx.Err() == nil {
		if w.now() > end {
			return fmt.Errorf("%w: %d of them, %v after it", errLate, w.busy, drainTime)
		}
		if err := w.turn(drainTime); err != nil {
			return err
		}
	}
	if ctx.Err() != nil { // late answers would count for the next round
		for _, c := range w.conns {
			w.drop(c)
		}
	}
	return nil
}

// turn waits for events and handles them.
func (w *worker) turn(wait time.Duration) error {
	events, err := w.poll.Wait(wait)
	if err != nil {
		return err
	}
	for _, ev := range events {
		c := w.byFD[ev.FD]
		if c == nil {
			continue
		}
		if ev.Writable && len(c.out) > 0 {
			w.flush(c)
		}
		if ev.Readable && c.fd == ev.FD {
			w.receive(c)
		}
	}
	return nil
}

// begin sends a request on an idle connection. If that fails, the round does not use the connection again.
func (w *worker) begin(start time.Duration) {
	c := w.idle[len(w.idle)-1]
	w.idle = w.idle[:len(w.idle)-1]
	connecting := c.fd < 0
	if connecting {
		if w.cfg.Open != nil && !w.cfg.Workload.Fresh {
			return // the connection failed, and logging in again would be another operation
		}
		fd, err := poll.Dial(w.to, w.nextSource())
		if err == nil {
			err = w.adopt(c, fd)
		}
		if err != nil {
			w.fail(c, err)
			return
		}
	}
	c.busy, c.start = true, start
	w.busy++
	if c.out = w.cfg.Workload.Request; w.cfg.Workload.Next != nil {
		c.buf = w.cfg.Workload.Next(c.buf[:0], w.rand)
		c.out = c.buf
	}
	if !connecting { // otherwise epoll reports when it is writable
		w.flush(c)
	}
}

// nextSource returns the addresses 127.x.0.1 to 127.x.255.254 in turn.
func (w *worker) nextSource() [4]byte {
	if w.from[3]++; w.from[3] == 255 {
		w.from[3] = 1
		w.from[2]++
	}
	return w.from
}

// flush writes as much of the request as the socket takes.
func (w *worker) flush(c *conn) {
	for len(c.out) > 0 {
		n, again, err := poll.Write(c.fd, c.out)
		if err != nil {
			w.fail(c, err)
			return
		}
		if again {
			return
		}
		c.out = c.out[n:]
	}
}

// receive reads available bytes and ends the operation when its answer is complete.
func (w *worker) receive(c *conn) {
	for {
		n, again, err := poll.Read(c.fd, w.buf)
		if again {
			return
		}
		if err != nil {
			w.fail(c, err)
			return
		}
		if n == 0 && !c.busy && w.cfg.Open == nil { // servers close connections that were idle for long: between rounds are minutes
			w.drop(c)
			w.res.Reconnects++
			return
		}
		if n == 0 {
			w.fail(c, io.ErrUnexpectedEOF)
			return
		}
		b := w.buf[:n]
		if len(c.in) > 0 {
			c.in = append(c.in, b...)
			b = c.in
		}
		size, err := w.cfg.Workload.Whole(b)
		switch {
		case errors.Is(err, ErrLast) && size == len(b) && c.busy:
			w.drop(c)
			w.res.Reconnects++
			w.done(c)
			return
		case err != nil:
			w.fail(c, err)
			return
		case size == 0 && len(c.in) == 0:
			c.in = append(c.in, b...)
		case size == len(b) && c.busy:
			w.done(c)
			return
		case size > 0:
			w.fail(c, fmt.Errorf("%w: bytes nobody asked for", errAnswer))
			return
		}
		if n < len(w.buf) {
			return
		}
	}
}

// done records an operation. Without a rate it begins the next.
func (w *worker) done(c *conn) {
	now := w.now()
	c.busy, c.in = false, c.in[:0]
	w.busy--
	w.res.All++
	if w.cfg.Workload.Fresh {
		w.drop(c)
	}
	w.res.Latency.Record(now - c.start)
	if w.ending {
		return
	}
	w.res.Ops++
	w.idle = append(w.idle, c)
}

// fail counts an error and closes the connection.
func (w *worker) fail(c *conn, err error) {
	w.res.Errors++
	if w.res.Err == nil {
		w.res.Err = err
	}
	if c.busy {
		w.busy--
		c.busy = false
	}
	w.drop(c)
	if w.cfg.Workload.Fresh && !w.ending {
		w.idle = append(w.idle, c)
	}
}

func (w *worker) drop(c *conn) {
	if c.fd < 0 {
		return
	}
	delete(w.byFD, c.fd)
	_ = syscall.Close(c.fd)
	c.fd, c.in, c.out = -1, c.in[:0], nil
}
