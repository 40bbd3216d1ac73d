package httpproxy

import (
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/idleconn"
	"github.com/headpond/headpond/listener"
)

// standard serves what sessions do not serve themselves, with net/http: upgrades, HTTP/1.0, heads of
// unusual form or size. It serves one request, the last of its connection (see ServeHTTP). Whoever hands a connection
// over waits until it is closed.
type standard struct {
	http  *http.Server
	conns chan net.Conn
	done  chan struct{} // closed when nothing is taken any more
	stop  sync.Once
	start sync.Once
}

// handed is a connection with what was read ahead of it. Its Close tells who handed it over.
type handed struct {
	net.Conn
	lc     *listener.Conn
	ahead  []byte
	tls    *tls.ConnectionState // of Conn; nil without, or where Conn's user finds it
	stream *h2Stream            // that Conn is; nil in HTTP/1.1
	closed sync.Once
	over   fiber.Group
}

func (st *standard) wrap(lc *listener.Conn, c net.Conn, ahead []byte) *handed {
	h := &handed{Conn: c, lc: lc, ahead: ahead}
	h.over.Add(1)
	return h
}

// Read gives what was read ahead first.
func (h *handed) Read(p []byte) (int, error) {
	if len(h.ahead) > 0 {
		n := copy(p, h.ahead)
		if h.ahead = h.ahead[n:]; len(h.ahead) == 0 {
			h.ahead = nil
		}
		return n, nil
	}
	n, err := h.Conn.Read(p)
	if h.counts() {
		h.lc.Count(int64(n), 0)
	}
	return n, err
}

// WaitReadable is fiber.Conn's, where Conn has it.
func (h *handed) WaitReadable() error {
	w, ok := h.Conn.(readable)
	switch {
	case !ok:
		return errors.ErrUnsupported
	case len(h.ahead) > 0:
		return nil
	}
	return w.WaitReadable()
}

// WaitReadableFor is fiber.Conn's, where Conn has it.
func (h *handed) WaitReadableFor(patience time.Duration) (ready bool, err error) {
	w, ok := h.Conn.(tirable)
	switch {
	case !ok:
		return false, errors.ErrUnsupported
	case len(h.ahead) > 0:
		return true, nil
	}
	return w.WaitReadableFor(patience)
}

var _, _ idleconn.Teller = (*handed)(nil), (*h2Stream)(nil)

// Quiet tells what Conn does, for TLS on h.
func (h *handed) Quiet() bool {
	state := idleconn.New(h.Conn).Look()
	return len(h.ahead) == 0 && (state == idleconn.Silent || state == idleconn.Unknown)
}

// Ended is Quiet's counterpart.
func (h *handed) Ended() bool {
	return len(h.ahead) == 0 && idleconn.New(h.Conn).Look() == idleconn.Dead
}

// PeerClosed is Ended, whatever is unread before that.
func (h *handed) PeerClosed() bool { return !idleconn.New(h.Conn).Look().Fit() }

// Write counts what lc does not see.
func (h *handed) Write(p []byte) (int, error) {
	n, err := h.Conn.Write(p)
	if h.counts() {
		h.lc.Count(0, int64(n))
	}
	return n, err
}

// counts reports whether the bytes are those of the connection that was accepted.
func (h *handed) counts() bool { return h.tls == nil && h.stream == nil }

// CloseWrite sends a FIN and leaves the reading side open. A stream has none of its own.
func (h *handed) CloseWrite() error {
	if h.stream != nil {
		return nil
	}
	if c, ok := h.Conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return h.lc.CloseWrite()
}

// RemoteAddr is the client's, also behind a PROXY header.
func (h *handed) RemoteAddr() net.Addr { return h.lc.RemoteAddr() }

// LocalAddr is the listener's, also behind a PROXY header.
func (h *handed) LocalAddr() net.Addr { return h.lc.LocalAddr() }

// BytesIn is the number of bytes received from the client so far; 0 under TLS, whose own
// records say nothing, and HTTP/2.
func (h *handed) BytesIn() uint64 {
	if !h.counts() {
		return 0
	}
	return h.lc.BytesIn()
}

// Close closes the connection, once.
func (h *handed) Close() (err error) {
	h.closed.Do(func() {
		if !h.counts() {
			err = h.Conn.Close() // TLS says goodbye
		}
		if h.stream == nil {
			err = h.lc.Close()
		}
		h.over.Done()
	})
	return err
}

// serve gives c, which closes h with itself, to the standard server and waits until it is closed.
func (st *standard) serve(c net.Conn, h *handed) {
	st.start.Do(func() { go st.run() })
	taken := false
	fiber.Block(func() {
		select {
		case st.conns <- c:
			taken = true
		case <-st.done:
		}
	})
	if !taken {
		_ = c.Close()
		_ = h.Close()
	}
	h.over.Wait()
}

// run is the standard server's accepting goroutine; it ends with close.
func (st *standard) run() { _ = st.http.Serve(st) }

// Accept implements net.Listener.
func (st *standard) Accept() (net.Conn, error) {
	select {
	case c := <-st.conns:
		return c, nil
	case <-st.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (st *standard) Close() error {
	st.stop.Do(func() { close(st.done) })
	return nil
}

// Addr implements net.Listener; nobody asks for it.
func (st *standard) Addr() net.Addr { return &net.TCPAddr{} }
