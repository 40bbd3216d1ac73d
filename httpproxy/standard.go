package httpproxy

import (
	"crypto/tls"
	"net"
	"net/http"
	"sync"

	"github.com/headpond/headpond/fiber"
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
	fiber.Stream
	lc      *listener.Conn
	counted int                  // of the bytes to be read first
	tls     *tls.ConnectionState // of Stream; nil without, or where its user finds it
	stream  *h2Stream            // that Stream is; nil in HTTP/1.1
	about   *about               // nil while it is not served
	closed  sync.Once
	over    fiber.Group
}

func (st *standard) wrap(lc *listener.Conn, c fiber.Stream, ahead []byte) *handed {
	h := &handed{Stream: fiber.Ahead(c, ahead), lc: lc, counted: len(ahead)}
	h.over.Add(1)
	return h
}

// Read counts what lc does not see.
func (h *handed) Read(p []byte) (int, error) {
	n, err := h.Stream.Read(p)
	again := min(n, h.counted)
	if h.counted -= again; h.counts() {
		h.lc.Count(int64(n-again), 0)
	}
	return n, err
}

// Write counts what lc does not see.
func (h *handed) Write(p []byte) (int, error) {
	n, err := h.Stream.Write(p)
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
	return h.Stream.CloseWrite()
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
			err = h.Stream.Close() // TLS says goodbye
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
