package gateway

import (
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
)

// spareFiles is how many file descriptors the admin page keeps for when the process has no other left: for a liveness probe (whoever does
// not answer that is started again, and all sessions are cut off), a scraper, a person, and one more.
const spareFiles = 4

// spareListener accepts with the descriptors it keeps when there are no others.
type spareListener struct {
	net.Listener
	scarce func(bool) // descriptors have run out, or are there again; called without mu

	mu     sync.Mutex
	kept   []*os.File
	closed bool
}

// Accept implements net.Listener.
func (l *spareListener) Accept() (net.Conn, error) {
	l.refill()
	c, err := l.Listener.Accept()
	for outOfFiles(err) {
		if l.scarce(true); !l.spend() {
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

// spend frees a descriptor, if one is kept.
func (l *spareListener) spend() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	last := len(l.kept) - 1
	if last < 0 {
		return false
	}
	_ = l.kept[last].Close()
	l.kept = l.kept[:last]
	return true
}

// refill keeps what is missing, as far as it can be had.
func (l *spareListener) refill() {
	if l.fill() {
		l.scarce(false)
	}
}

// fill is refill, and reports whether nothing is missing.
func (l *spareListener) fill() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for !l.closed && len(l.kept) < spareFiles {
		f, err := os.Open(os.DevNull)
		if err != nil {
			return false
		}
		l.kept = append(l.kept, f)
	}
	return true
}

// Close implements net.Listener.
func (l *spareListener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range l.kept {
		_ = f.Close()
	}
	l.closed, l.kept = true, nil
	return l.Listener.Close()
}

// spareConn gives its descriptor back to what is kept.
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
