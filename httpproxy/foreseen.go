package httpproxy

import (
	"sync"
	"time"

	"github.com/headpond/headpond/httpwire"
)

// foreseenBytes is what an upload counts, in its first second, beyond what it holds: a body that comes fast for a server that
// takes nothing soon fills the session's buffers and the engine's. Without it all uploads that begin together would be
// admitted, as none of them holds anything yet.
const foreseenBytes = 6 * bufferCost

// foreseenFor is how long. Later an upload counts what it holds: with a slow client that is little.
var foreseenFor = time.Second

// foreseen is an upload's foreseenBytes in a ledger, from the call of foresee to end or expire. Its owner calls end at most
// once, and does not use it afterwards.
type foreseen struct {
	in    *ledger
	timer *time.Timer
}

// foreseens holds some whose timers are stopped.
var foreseens = sync.Pool{New: func() any {
	f := new(foreseen)
	f.timer = time.AfterFunc(time.Hour, f.expire)
	f.timer.Stop()
	return f
}}

func (f *foreseen) expire() { f.in.foreseen.Add(-foreseenBytes) }

func (f *foreseen) end() {
	if f != nil && f.timer.Stop() { // else expire has been called
		f.expire()
		foreseens.Put(f)
	}
}

// foresee counts the memory that the request's body may soon take, if that is much.
func (s *session) foresee() {
	if n := s.req.Length; !s.ex.inline && (n > bufferSize || n == httpwire.Chunked) {
		f := foreseens.Get().(*foreseen) //nolint:forcetypeassert // its New makes nothing else
		f.in = &s.p.ledger
		f.in.foreseen.Add(foreseenBytes)
		f.timer.Reset(foreseenFor)
		s.ex.foreseen = f
	}
}

// endForeseen ends that, unless an upload has taken it over.
func (s *session) endForeseen() {
	s.ex.foreseen.end()
	s.ex.foreseen = nil
}
