//go:build linux && (amd64 || arm64)

package fiber

import (
	"fmt"
	"math"

	"golang.org/x/sys/unix"
)

// A send does not wait for room, so it is complete when io_uring_enter returns. A completion would
// end the wait of the same call, and each message would cost a second tick. Sends at the end of a
// tick therefore only have a completion if they fail or send a part (sqeSkipSuccess); after the
// call the others are noted as sent. This is not used for a connection on which a fiber waits for
// the end of the send, because the fiber would only learn of it after the loop's wait.

// sendGathered hands the gathered data of all connections to the kernel, for the enter that follows.
func (p *uring) sendGathered() {
	held := 0
	for i, c := range p.dirty {
		p.dirty[i] = nil
		c.isDirty = false
		switch {
		case c.out == nil || c.sending != nil:
		case !p.skips || c.fin || c.closed || c.waits(&c.wr):
			p.flush(c)
		default:
			p.flush(c).skipSuccess()
			c.sending.unreported = true
			p.unreported = append(p.unreported, c)
			held += len(c.sending.mem)
		}
	}
	p.dirty = p.dirty[:0]
	if held > 0 {
		p.loop.unsent.Store(int64(p.send.bytes - held)) // as it is when enter waits
	}
}

// skipSuccess makes a send unreported, unless it does not send everything.
func (s *sqe) skipSuccess() {
	s.flags |= sqeSkipSuccess
	s.opFlags |= unix.MSG_WAITALL // so that a part counts as failure; the send still does not wait
}

// noteSent notes as complete the sends that an enter has made and not reported. It is called after that enter's reports have
// been handled; complete is ring.allReported after the enter, and if it is false the sends are left for a later call. If the
// system has dropped reports, those of failed sends may be among them: noteSent then breaks the connections, because their
// peers would miss a part of the stream.
func (p *uring) noteSent(complete bool) {
	if !complete && len(p.unreported) > 0 {
		return
	}
	lost := p.ring.hasDropped()
	for i, c := range p.unreported {
		p.unreported[i] = nil
		s := c.sending
		switch {
		case s == nil || !s.unreported:
		case lost:
			c.abort = true
			resetOnClose(c.fd, true)
			if !c.closed {
				c.inErr = unix.ENOMEM // a fiber that only reads would wait forever
				c.wakeReader(p.loop)
			}
			p.completeConn(c, kindSend, cqe{res: -int32(unix.ENOMEM)})
		default:
			p.completeConn(c, kindSend, cqe{res: int32(s.n)})
		}
	}
	p.unreported = p.unreported[:0]
}

// trySkipping makes a send that succeeds and one that sends a part, and sees whether only the latter is reported.
func (p *uring) trySkipping() error {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("socketpair: %w", err)
	}
	defer unix.Close(fds[0])
	defer unix.Close(fds[1])
	const little, much = 1, 1 << 20
	setOption(fds[0], unix.SOL_SOCKET, unix.SO_SNDBUF, little) // the system's minimum
	results := [2]int32{math.MinInt32, math.MinInt32}
	for i, n := range []int{little, much} {
		p.prepareSend(fds[0], p.recv.mem[:n], userData(kindSend, 0, uint32(i))).skipSuccess()
	}
	p.ring.enter(false, false, 0)
	complete := p.ring.allReported()
	from, to := p.ring.completions()
	for i := from; i != to; i++ {
		if c := p.ring.at(i); c.userData&0xff == kindSend {
			results[c.userData>>8&1] = c.res
		}
	}
	p.ring.taken(to)
	if got := results[1]; !complete || results[0] != math.MinInt32 || got <= 0 || got >= much {
		return fmt.Errorf("io_uring: sends that are reported only if they fail gave %v", results)
	}
	return nil
}
