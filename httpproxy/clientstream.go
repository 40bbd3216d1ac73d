package httpproxy

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/httpwire"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/pool/httppool"
)

// clientStream is a client's request and response on a connection that carries many at once: a stream of HTTP/2, or a
// request of a Carrier. Heads pass as fields. The request's body is read from it, and the response's body written to it, as
// they are. A body without a length ends for the reader when bodyEnd says so, and for the writer with sendEnd.
type clientStream interface {
	fiber.Stream
	carrying
	h2Sink

	// protocol is the HTTP version as in HTTP/1.1's request line, such as "HTTP/2.0"; major is its number.
	protocol() string
	major() int
	// limit is the client's time limit for the exchange; 0 = none.
	limit() time.Duration
	// resumes returns what continues a suspended session; see session.beginRest. Without a loop no session is suspended.
	resumes() func()

	// head returns the writer for the head of a response.
	head(dst []byte) headWriter
	// sendHead takes the head of an interim response or of the final one, whose body has the given length. It is sent with the
	// next write or flush.
	sendHead(status int, block []byte, length int64) error
	// switchTo sends the head of the answer to an extended CONNECT that succeeds. From now on the stream carries the data of the
	// other protocol as it is.
	switchTo(block []byte) error
	// flush sends what has been written.
	flush() error
	// sendEnd sends the last part of a body without a length, and its trailers.
	sendEnd(p []byte, trailers []httpwire.Field) error
	// endWith ends the response with trailers, even if content is missing. Before the head and after the end it does nothing.
	endWith(trailers []httpwire.Field) error

	// whole reports whether the request is complete and has no trailers, the size of its content, and whether the session has
	// read all of it.
	whole() (content int64, come, read bool)
	// killed reports whether an operator has ended the request.
	killed() bool
	// cutOff ends the request for its client by a reset, unless both sides have ended it. It does not wait.
	cutOff(err error)
	// uses sets the connection to close when the client gives up the request; false = the client has, and c is not closed.
	uses(c *httppool.Conn) bool
	// cancels has cancel called when the request ends, at once if it has ended. nil undoes this.
	cancels(cancel context.CancelCauseFunc)
	// leasing returns the context in which s, the session of the request, waits for a connection.
	leasing(s *session) context.Context
}

var (
	_ clientStream = (*h2Stream)(nil)
	_ clientStream = (*carried)(nil)
)

// clientSide is what implementations of clientStream share. The mutex of h2Sides guards it, except for the writer's part.
type clientSide struct {
	h2Sides
	err      error                   // why the request ended
	server   *httppool.Conn          // the request's connection
	cancel   context.CancelCauseFunc // of work before there is a connection; nil = none
	waits    *waiting                // nil = no session has waited for a connection yet
	finished bool                    // the response has been sent completely

	// The writer's.
	began bool // the final head was sent
	out   h2Outgoing
}

// endless is the length of what a stream carries after switchTo.
const endless = math.MaxInt64

// fail ends the request; mu is held.
func (c *clientSide) fail(err error) {
	if c.err == nil {
		c.err = err
	}
	c.wake()
	if c.waits != nil {
		c.waits.check()
	}
	if c.cancel != nil {
		c.cancel(httppool.ErrClientGone)
	}
	if c.server != nil && !c.finished {
		_ = c.server.Close() // its answer is not needed
	}
}

func (c *clientSide) uses(conn *httppool.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.server = conn; c.err != nil {
		c.server = nil
	}
	return c.err == nil
}

func (c *clientSide) cancels(cancel context.CancelCauseFunc) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cancel = cancel
	if c.err != nil && cancel != nil {
		cancel(httppool.ErrClientGone)
	}
}

func (c *clientSide) leasing(s *session) context.Context {
	w := c.waits
	if w == nil {
		w = new(waiting)
		w.leases = pool.WithParker(s.ctx, w)
		c.mu.Lock()
		c.waits = w
		c.mu.Unlock()
	}
	w.s = s
	return w.leases
}

func (c *clientSide) killed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return errors.Is(c.err, errKilled)
}

// Ended reports whether the client no longer wants the answer.
func (c *clientSide) Ended() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err != nil
}

// PeerClosed is Ended.
func (c *clientSide) PeerClosed() bool { return c.Ended() }

// frame begins the framing of a response's body.
func (c *clientSide) frame(status int, length int64) {
	if length == httpwire.Unframed {
		length = httpwire.Chunked
	}
	c.began = status >= 200
	c.out.begin(length)
}

// takeEnd reports whether there is a response for endWith to end, and records its end.
func (c *clientSide) takeEnd() bool {
	if !c.began || c.out.done {
		return false
	}
	c.out.done = true
	return true
}

// replyBy sends an answer of the proxy.
func (a *answer) replyBy(st clientStream) error {
	a.complete()
	w := st.head(nil)
	w.code(a.status)
	a.fields(&w)
	if err := st.sendHead(a.status, w.finish(), int64(a.body.Len())); err != nil {
		return err
	}
	_, err := st.Write(a.body.Bytes())
	return err
}
