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
// been reached. It is sent together with the first bytes of the target, or at once for a stream whose ID is answerAtOnce.
const connected = 0

var answerAtOnce = mux.ID{1}

// closeGrace bounds the silence of a backend that takes no more data, or whose client is gone, until its connection is closed.
const closeGrace = 5 * time.Second

// refuse resets a stream for which there is no connection, counts it, and logs why.
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
		return // it was reset already: a peer that opens and resets streams in a loop causes no dialling
	}
	ctx, cancel := context.WithCancel(t.life)
	defer cancel()
	r := &relay{st: st, dialled: make(chan struct{}), ctx: ctx, cancelDial: cancel, id: listener.NewID(), peer: p.displayName(m), from: m.Peer().Addr.String()}
	t.register.add(r)
	defer t.register.remove(r)
	var up sync.WaitGroup
	up.Go(r.up)
	conn, err := t.policy.Load().of(p.name).connect(context.WithValue(ctx, callerKey{}, p.name), st.Name())
	switch {
	case err == nil:
		r.conn = fiber.StreamOf(conn)
		r.since.Store(time.Now().UnixNano())
		close(r.dialled)
		r.down()
		r.downEnded.Store(true)
		cancel()
	case t.life.Err() != nil:
		close(r.dialled)
		reset(st, refuse(ErrBroken, "the far side closes"))
	case r.openerGone.Load(): // the opener has gone
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

// relay is a stream and the connection dialled for it. up copies from the stream to the connection; down copies the
// other way at the same time.
type relay struct {
	st         *mux.Stream
	conn       fiber.Stream    // nil until dialled is closed, and after that if the dialling has failed
	dialled    chan struct{}   // closed when the dialling is over
	ctx        context.Context // until down, or the tunnel, has ended
	cancelDial func()
	openerGone atomic.Bool // the stream ended while its target was dialled
	downEnded  atomic.Bool

	id         listener.ID
	peer, from string        // the other side's name and address
	since      atomic.Int64  // when conn was connected, in nanoseconds since 1970; 0 = not yet
	in, out    atomic.Uint64 // bytes from the other side, and to it
}

// up copies from the stream to the connection. Data that arrives before the target is reached waits; a stream that breaks meanwhile
// cancels the dialling.
func (r *relay) up() {
	out := &dialledWriter{r: r}
	_, err := r.st.WriteTo(out)
	select {
	case <-r.dialled:
	default:
		if err != nil {
			r.openerGone.Store(true)
			r.cancelDial()
		}
		<-r.dialled
	}
	switch {
	case r.conn == nil:
	case err == nil:
		if errors.Is(r.conn.CloseWrite(), errors.ErrUnsupported) {
			r.abort()
		} else {
			r.watchOpener()
		}
	case out.err != nil: // data that the backend has sent before may still arrive
		_ = r.conn.SetReadDeadline(time.Now().Add(closeGrace))
	default:
		r.abort()
	}
}

// watchOpener runs once the end of the stream was passed on, while down waits for a backend that may be silent forever. When the
// opener reads no more, it bounds that wait.
func (r *relay) watchOpener() {
	err := r.st.WaitStopped(r.ctx)
	switch {
	case r.downEnded.Load(), errors.Is(err, mux.ErrClosed): // down has ended, or is about to
	case errors.Is(err, mux.ErrPeerClosed):
		_ = r.conn.SetReadDeadline(time.Now().Add(closeGrace))
	default:
		r.abort()
	}
}

// down reports to the opener that the target was reached, and copies from the connection to the
// stream.
func (r *relay) down() {
	out := &answerWriter{r: r}
	if r.st.ID() == answerAtOnce {
		if _, err := out.Write(nil); err != nil {
			r.abort()
			return
		}
	}
	readErr, writeErr := copyBytes(out, r.conn)
	if errors.Is(readErr, io.EOF) && !out.answered {
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

// answerWriter writes to a stream, beginning with the byte connected.
type answerWriter struct {
	r        *relay
	answered bool
}

func (g *answerWriter) Write(p []byte) (n int, err error) {
	if g.answered {
		n, err = g.r.st.Write(p)
	} else {
		g.answered = true
		n, err = g.r.st.Write(append([]byte{connected}, p...))
		n = max(n-1, 0)
	}
	g.r.out.Add(uint64(n))
	return n, err
}

// abort resets the connection and the stream, so that neither end takes the data it has got for all there was.
func (r *relay) abort() {
	_ = r.conn.SetLinger(0)
	_ = r.conn.Close()
	reset(r.st, refuse(ErrBroken, "its other end is gone"))
}

// dialledWriter writes to a relay's connection, and waits until it is dialled. err is why a write failed.
type dialledWriter struct {
	r   *relay
	err error
}

var errNotDialled = errors.New("tunnel: there is no connection")

func (w *dialledWriter) Write(p []byte) (n int, err error) {
	<-w.r.dialled
	if w.r.conn == nil {
		w.err = errNotDialled
		return 0, w.err
	}
	n, w.err = w.r.conn.Write(p)
	w.r.in.Add(uint64(n))
	return n, w.err
}

// A direction that is idle holds a small buffer, and a large one while single reads fill the small one.
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
