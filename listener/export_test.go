package listener

import (
	"net"
	"time"
	"unsafe"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/ratelimit"
)

// ConnSize is the heap size of a Conn.
const ConnSize = unsafe.Sizeof(Conn{})

// ReadProxyHeader reads the header raw begins with.
func ReadProxyHeader(raw net.Conn, timeout time.Duration) (*Conn, error) {
	c := &Conn{stream: fiber.StreamOf(raw)}
	return c, readProxyHeader(c, timeout)
}

// ConnLimit is the limit of connections with its queue.
type ConnLimit = connLimit

// NewConnLimit returns a ConnLimit.
func NewConnLimit(limit, maxQueue int) *ConnLimit {
	return &connLimit{limit: limit, maxQueue: maxQueue}
}

// Acquire, Release, Resize, Shut and Counts are its methods.
func (l *connLimit) Acquire(timeout time.Duration) error {
	_, err := l.acquire(timeout)
	return err
}
func (l *connLimit) Release()                     { l.release() }
func (l *connLimit) Resize(limit, maxQueue int)   { l.resize(limit, maxQueue) }
func (l *connLimit) Shut()                        { l.close() }
func (l *connLimit) Counts() (active, queued int) { return l.counts() }

// Sources is the table of client sources, and MaxSources its limit.
type Sources = sources

const MaxSources = ratelimit.MaxKeys

// Admit and Release are its methods, and Known is how much it knows.
func (s *sources) Admit(a net.Addr, maxConns int, rate Rate, now time.Duration) error {
	src := sourceOf(addressOf(a))
	if err := s.connect(src, rate, now); err != nil {
		return err
	}
	_, err := s.admit(src, maxConns)
	return err
}

func (s *sources) Release(a net.Addr) {
	s.release(sourceOf(addressOf(a)))
}

func (s *sources) Known() (rates, open int) { return s.rates.Known(), len(s.open) }

// SetHalfClosedRate replaces the rate of clients that have ended their stream without a byte.
func SetHalfClosedRate(count int, per time.Duration) (restore func()) {
	before := halfClosedRate
	halfClosedRate = ratelimit.Rate{Count: count, Per: per}
	return func() { halfClosedRate = before }
}
