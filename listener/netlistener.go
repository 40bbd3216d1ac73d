package listener

import (
	"net"
	"sync"

	"github.com/headpond/headpond/fiber"
)

// Listener returns a listener that accepts from l, for servers with their own accept loop, such as
// http.Server. The Server admits its connections, reads their PROXY headers and counts them. Accept
// returns a *Conn, whose session lasts until it is closed. The Handler is used only if it is a
// Rejecter. Close of the returned listener closes l, and the connections that Accept has not returned;
// the others stay open. After Close, and after Drain or Close of the Server, Accept returns
// net.ErrClosed, and the listener's goroutine ends. During a Drain Accept first returns the
// connections that were accepted before: Drain waits for them, too.
func (s *Server) Listener(l net.Listener) net.Listener {
	nl := &netListener{Listener: l, srv: s, ready: make(chan *Conn), done: make(chan struct{})}
	if !s.addListener(&nl.Listener) {
		_ = nl.Close()
	}
	return nl
}

// netListener passes admitted connections to Accept. Each connection has its own goroutine until
// then, so that a client that sends its PROXY header slowly does not delay others.
type netListener struct {
	net.Listener
	srv   *Server
	ready chan *Conn
	start sync.Once
	stop  sync.Once
	done  chan struct{} // closed when accepting has ended
	err   error         // the reason; set before done is closed

	mu       sync.Mutex
	offering int  // calls of offer that run
	last     bool // no more connection will be offered than those
}

// Accept implements net.Listener.
func (l *netListener) Accept() (net.Conn, error) {
	l.start.Do(func() { go l.run() })
	select {
	case c := <-l.ready:
		return c, nil
	case <-l.done:
		return nil, l.err
	}
}

// run accepts until the listener is closed or fails.
func (l *netListener) run() {
	err := l.srv.acceptLoop(l.Listener, l.offer)
	l.srv.removeListener(&l.Listener)
	if !l.srv.isClosing() {
		l.finish(err)
		return
	}
	<-l.srv.draining // which closes the connections that wait for admission or a PROXY header
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = true
	l.noteOffered()
}

// noteOffered ends accepting when the last connection was offered. mu is held.
func (l *netListener) noteOffered() {
	if l.last && l.offering == 0 {
		l.finish(net.ErrClosed)
	}
}

// offer admits a connection and passes it to Accept.
func (l *netListener) offer(c *Conn) {
	l.mu.Lock()
	l.offering++
	l.mu.Unlock()
	handed := false
	defer func() {
		if !handed {
			_ = c.Close()
			l.srv.forget(c)
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.offering--
		l.noteOffered()
	}()
	defer l.srv.recoverSession(c)
	if !l.srv.admit(c) {
		return
	}
	c.server = l.srv
	if c.flags.Or(connAccepted)&connClosed != 0 { // an operator has ended it
		l.srv.connLimit.release()
		return
	}
	if !l.srv.begin(c) {
		return
	}
	fiber.Block(func() {
		select {
		case l.ready <- c:
			handed = true
		case <-l.done:
		case <-l.srv.ctx.Done():
		}
	})
}

// Close implements net.Listener.
func (l *netListener) Close() error {
	l.srv.removeListener(&l.Listener)
	l.finish(net.ErrClosed)
	return nil
}

func (l *netListener) finish(err error) {
	l.stop.Do(func() {
		l.err = err
		close(l.done)
	})
}
