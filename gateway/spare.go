package gateway

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
)

// spareFiles is the number of file descriptors that the admin page keeps for the time when the process
// has no other left: for a liveness probe (without an answer the gateway is restarted, and all
// sessions are cut off), a scraper, a browser, and one more.
const spareFiles = 4

// spares are the descriptors that a gateway's admin page keeps. A listener may take a descriptor that
// was freed for the admin page. The next descriptor that its clients would get is then kept instead,
// see guard.
type spares struct {
	short atomic.Bool // some are missing
	mu    sync.Mutex
	kept  []*os.File
	users int // admin pages: one, or two while a reload replaces one by the other
}

// listen returns l as a listener that uses the spares. scarce is called when descriptors have run out, and when they
// are available again.
func (s *spares) listen(l net.Listener, scarce func(bool)) *spareListener {
	s.mu.Lock()
	s.users++
	s.mu.Unlock()
	s.fill()
	return &spareListener{Listener: l, spares: s, scarce: scarce}
}

// drop ends the use by a closed listener.
func (s *spares) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users--; s.users > 0 {
		return
	}
	for _, f := range s.kept {
		_ = f.Close()
	}
	s.kept = nil
	s.short.Store(false)
}

// spend frees a descriptor, if one is kept.
func (s *spares) spend() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := len(s.kept) - 1
	if last < 0 {
		return false
	}
	s.short.Store(true)
	_ = s.kept[last].Close()
	s.kept = s.kept[:last]
	return true
}

// fill opens missing spares, as far as possible, and reports whether none is missing.
func (s *spares) fill() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.users > 0 && len(s.kept) < spareFiles {
		f, err := os.Open(os.DevNull)
		if err != nil {
			s.short.Store(true)
			return false
		}
		s.kept = append(s.kept, f)
	}
	s.short.Store(false)
	return true
}

// guard is called with each client's connection. It closes the connection if a spare is missing and there is no other
// descriptor.
func (s *spares) guard(c io.Closer) bool {
	if !s.short.Load() || s.fill() {
		return true
	}
	_ = c.Close()
	s.fill()
	return false
}

// spareListener accepts with the spares when there are no other descriptors.
type spareListener struct {
	net.Listener
	spares *spares
	scarce func(bool) // descriptors have run out, or are there again
	leave  sync.Once
}

// Accept implements net.Listener.
func (l *spareListener) Accept() (net.Conn, error) {
	l.refill()
	c, err := l.Listener.Accept()
	for outOfFiles(err) {
		if l.scarce(true); !l.spares.spend() {
			break
		}
		c, err = l.Listener.Accept()
	}
	if err != nil {
		return nil, err
	}
	return spareConn{c, l}, nil
}

func outOfFiles(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// refill opens missing spares, as far as possible.
func (l *spareListener) refill() {
	if l.spares.fill() {
		l.scarce(false)
	}
}

// Close implements net.Listener.
func (l *spareListener) Close() error {
	l.leave.Do(l.spares.drop)
	return l.Listener.Close()
}

// spareConn returns its descriptor to the spares.
type spareConn struct {
	net.Conn
	listener *spareListener
}

// Close implements net.Conn.
func (c spareConn) Close() error {
	err := c.Conn.Close()
	c.listener.refill()
	return err
}
