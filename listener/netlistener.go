package listener

import (
	"net"
	"sync"

	"github.com/headpond/headpond/fiber"
)

// Listener returns l with the Server's admission, PROXY header reading, counting and tracking, for
// servers with their own accept loop, such as http.Server. Its connections are *Conn; a session
// lasts until its connection is closed. Accept returns net.ErrClosed after Close, Drain or the
// Server's Close. Closing it stops accepting and closes l; connections stay. The Handler is used
// only as a Rejecter. Call Close, or Drain the Server, to stop its goroutine.
func (s *Server) Listener(l net.Listener) net.Listener {
	nl := &netListener{Listener: l, srv: s, ready: make(chan *Conn), done: make(chan struct{})}
	if !s.addListener(l) {
		_ = nl.Close()
	}
	return nl
}

// netListener passes admitted connections from the accept loop's goroutines to
// Accept, so that a client that is slow with its header does not delay the others.
type netListener struct {
	net.Listener
	srv   *Server
	ready chan *Conn
	start sync.Once
	stop  sync.Once
	done  chan struct{} // closed when accepting is over
	err   error         // why; set before done is closed
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

// run accepts until the listener is closed or broken.
func (l *netListener) run() {
	err := l.srv.acceptLoop(l.Listener, l.offer)
	l.srv.removeListener(l.Listener)
	if l.srv.isDraining() {
		err = net.ErrClosed
	}
	l.finish(err)
}

// offer takes a connection through admission and gives it to Accept.
func (l *netListener) offer(c *Conn) {
	handed := false
	defer func() {
		if !handed {
			_ = c.Close()
			l.srv.forget(c)
		}
	}()
	defer l.srv.recoverSession(c)
	if !l.srv.admit(c) {
		return
	}
	c.server = l.srv
	c.flags.Or(connAccepted)
	if !l.srv.begin(c) {
		return
	}
	fiber.Block(func() {
		select {
		case l.ready <- c:
			handed = true
		case <-l.done:
		}
	})
}

// Close implements net.Listener.
func (l *netListener) Close() error {
	l.srv.removeListener(l.Listener)
	l.finish(net.ErrClosed)
	return nil
}

func (l *netListener) finish(err error) {
	l.stop.Do(func() {
		l.err = err
		close(l.done)
	})
}
