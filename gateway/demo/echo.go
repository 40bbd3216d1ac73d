package demo

import (
	"io"
	"net"
	"sync"
)

// echo sends received bytes back, until the client has sent everything.
type echo struct {
	mu     sync.Mutex
	l      net.Listener
	conns  map[net.Conn]bool
	closed bool
}

func newEcho() *echo { return &echo{conns: map[net.Conn]bool{}} }

func (e *echo) serve(l net.Listener) {
	e.l = l
	go e.accept(l)
}

func (e *echo) accept(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		if e.add(c) {
			go e.answer(c)
		}
	}
}

func (e *echo) add(c net.Conn) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		_ = c.Close()
		return false
	}
	e.conns[c] = true
	return true
}

func (e *echo) answer(c net.Conn) {
	_, _ = io.Copy(c, c)
	_ = c.Close()
	e.mu.Lock()
	delete(e.conns, c)
	e.mu.Unlock()
}

// Close ends the server and its connections.
func (e *echo) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	for c := range e.conns {
		_ = c.Close()
	}
	return e.l.Close()
}
