package tunnel

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/mux"
)

// connected is the first byte to the side that opened a stream: the target has
// been reached. It travels with what the target sends first, unless the opener
// waits for it and has said so by the ID of the stream.
const connected = 0

var tellAtOnce = mux.ID{1}

// lastWords is how long a backend that takes nothing more, or whose client is gone,
// may still be silent or send something.
const lastWords = 5 * time.Second

// refuse tells both sides' logs why there is no connection for a stream.
func (t *sessions) refuse(p *peer, st *mux.Stream, err error) {
	reset(st, err)
	if errors.Is(err, ErrUnreachable) {
		t.counts.failed.Add(1)
	} else {
		t.counts.refused.Add(1)
	}
	t.refused.warn(t.log, "tunnel: stream refused", "tunnel", t.name, "peer", p.name, "target", st.Name(), "error", err)
}

// serve connects a stream that the other side has opened to its target, and
// relays until both directions have ended.
func (t *sessions) serve(p *peer, m *member, st *mux.Stream) {
	defer st.Close()
	if _, err := st.Write(nil); err != nil && !errors.Is(err, mux.ErrPeerClosed) {
		return // reset already: whoever opens and resets without end makes nobody dial
	}
	ctx, cancel := context.WithCancel(t.life)
	defer cancel()
	r := &relay{st: st, dialled: make(chan struct{}), ctx: ctx, giveUp: cancel, id: listener.NewID(), peer: p.called(m), from: m.Peer().Addr.String()}
	t.register.add(r)
	defer t.register.remove(r)
	var up sync.WaitGroup
	up.Go(r.up)
	conn, err := t.policy.Load().of(p.name).connect(ctx, st.Name())
	switch {
	case err == nil:
		r.conn = fiber.StreamOf(conn)
		r.since.Store(time.Now().UnixNano())
		close(r.dialled)
		r.down()
		r.heard.Store(true)
		cancel()
	case t.life.Err() != nil:
		close(r.dialled)
		reset(st, refuse(ErrBroken, "the far side closes"))
	case r.left.Load(): // nobody waits for the answer
		close(r.dialled)
	default:
		close(r.dialled)
		t.refuse(p, st, err)
	}
	up.Wait()
	if conn != nil {
		_ = conn.Close()
	}
}

// relay is a stream and the connection dialled for it. up and down run at the same
// time, each reading one and writing the other.
type relay struct {
	st      *mux.Stream
	conn    fiber.Stream    // nil until dialled is closed, and after it if there is none
	dialled chan struct{}   //
	ctx     context.Context // until down, or the tunnel, has ended
	giveUp  func()          // ends the dialling
	left    atomic.Bool     // the other side has, while it was dialled
	heard   atomic.Bool     // down has ended

	id         listener.ID
	peer, from string        // its name and address
	since      atomic.Int64  // when conn was connected, in nanoseconds since 1970; 0 = not yet
	in, out    atomic.Uint64 // bytes from the other side, and to it
}

// up moves what the stream brings to the connection. What comes before there is
// one waits; a stream that breaks meanwhile ends the dialling.
func (r *relay) up() {
	readErr, writeErr := copyBytes(waiting{r}, r.st)
	select {
	case <-r.dialled:
	default:
		if !errors.Is(readErr, io.EOF) {
			r.left.Store(true)
			r.giveUp()
		}
		<-r.dialled
	}
	switch {
	case r.conn == nil:
	case errors.Is(readErr, io.EOF):
		if errors.Is(r.conn.CloseWrite(), errors.ErrUnsupported) {
			r.abort()
		} else {
			r.attend()
		}
	case writeErr != nil: // what the backend said before is still on its way
		_ = r.conn.SetReadDeadline(time.Now().Add(lastWords))
	default:
		r.abort()
	}
}

// attend looks, once everything was passed on, whether anybody still waits for what
// the connection says, while down does: it may be silent for ever.
func (r *relay) attend() {
	err := r.st.WaitStopped(r.ctx)
	switch {
	case r.heard.Load(), errors.Is(err, mux.ErrClosed): // down has ended, or is about to
	case errors.Is(err, mux.ErrPeerClosed):
		_ = r.conn.SetReadDeadline(time.Now().Add(lastWords))
	default:
		r.abort()
	}
}

// down tells the opener that the target was reached, and moves what it sends.
func (r *relay) down() {
	out := &greeting{r: r}
	if r.st.ID() == tellAtOnce {
		if _, err := out.Write(nil); err != nil {
			r.abort()
			return
		}
	}
	readErr, writeErr := copyBytes(out, r.conn)
	if errors.Is(readErr, io.EOF) && !out.said {
		_, writeErr = out.Write(nil)
	}
	switch {
	case writeErr != nil:
		r.abort()
	case errors.Is(readErr, io.EOF):
		_ = r.st.CloseWrite()
	default:
		reset(r.st, refuse(ErrBroken, "%v", readErr))
	}
}

// greeting writes to a stream, before all else that the target was reached.
type greeting struct {
	r    *relay
	said bool
}

func (g *greeting) Write(p []byte) (n int, err error) {
	if g.said {
		n, err = g.r.st.Write(p)
	} else {
		g.said = true
		n, err = g.r.st.Write(append([]byte{connected}, p...))
		n = max(n-1, 0)
	}
	g.r.out.Add(uint64(n))
	return n, err
}

// abort breaks the connection and the stream as resets, so that what was cut off
// does not look complete, at either end.
func (r *relay) abort() {
	_ = r.conn.SetLinger(0)
	_ = r.conn.Close()
	reset(r.st, refuse(ErrBroken, "what it was connected to is gone"))
}

// waiting writes to a relay's connection once there is one.
type waiting struct{ r *relay }

var errNotDialled = errors.New("tunnel: there is no connection")

func (w waiting) Write(p []byte) (int, error) {
	<-w.r.dialled
	if w.r.conn == nil {
		return 0, errNotDialled
	}
	n, err := w.r.conn.Write(p)
	w.r.in.Add(uint64(n))
	return n, err
}

// A direction in which nothing moves holds a small buffer; while it is filled at
// one go, a large one.
const (
	smallBuffer = 2 << 10
	largeBuffer = 32 << 10
)

var (
	smallBuffers = sync.Pool{New: func() any { return new([smallBuffer]byte) }}
	largeBuffers = sync.Pool{New: func() any { return new([largeBuffer]byte) }}
)

// copyBytes moves bytes until src ends (readErr says why) or dst does (writeErr).
func copyBytes(dst io.Writer, src io.Reader) (readErr, writeErr error) {
	small := smallBuffers.Get().(*[smallBuffer]byte)
	defer smallBuffers.Put(small)
	buf := small[:]
	var large *[largeBuffer]byte
	defer func() {
		if large != nil {
			largeBuffers.Put(large)
		}
	}()
	for {
		n, err := src.Read(buf)
		if n > 0 {
			if _, err := dst.Write(buf[:n]); err != nil {
				return nil, err
			}
		}
		switch {
		case err != nil:
			return err, nil
		case large == nil && n == smallBuffer:
			large = largeBuffers.Get().(*[largeBuffer]byte)
			buf = large[:]
		case large != nil && n <= smallBuffer:
			largeBuffers.Put(large)
			large, buf = nil, small[:]
		}
	}
}
