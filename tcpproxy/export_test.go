package tcpproxy

import "time"

// Spliced returns the number of bytes moved by splice so far.
func (p *Proxy) Spliced() uint64 { return p.spliced.Load() }

// SetLookInterval replaces how often waiting sessions look for their clients,
// until restore.
func SetLookInterval(d time.Duration) (restore func()) {
	was := lookInterval
	lookInterval = d
	return func() { lookInterval = was }
}

// SetRemainderTimeout replaces remainderTimeout until restore.
func SetRemainderTimeout(d time.Duration) (restore func()) {
	was := remainderTimeout
	remainderTimeout = d
	return func() { remainderTimeout = was }
}

// Watch is what looks at a session from time to time.
type Watch struct{ w *watch }

// NewWatch begins to look.
func NewWatch(first time.Duration, look func() time.Duration) Watch {
	return Watch{newWatch(first, look)}
}

// Stop ends it.
func (w Watch) Stop() { w.w.stop() }

// Stall is what finds sessions without an answer.
type Stall struct{ s *stall }

// NewStall returns one with patience.
func NewStall(patience time.Duration) Stall { return Stall{&stall{patience: patience}} }

// Moved and Look are the stall's.
func (s Stall) Moved(byClient bool)                 { s.s.moved(byClient) }
func (s Stall) Look(out uint64, now time.Time) bool { return s.s.look(out, now) }
