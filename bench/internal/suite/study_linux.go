package suite

import (
	"net"
	"sync"
	"time"
)

// studyPool is the pool of the pooled-proxy study, rebuilt from its description. One mutex guards everything and is
// held while it dials. It keeps at most 10 connections per address and opens direct ones beyond that. It does not check
// a connection before it is used again. The study closed connections that were idle for 5 minutes; a round is shorter.
type studyPool struct {
	mu    sync.Mutex // guards what follows
	conns map[string][]*studyConn
	dials int64
}

// studyConn is a connection of a studyPool.
type studyConn struct {
	net.Conn
	pooled, inUse bool
	last          time.Time
}

// studySize is the limit per address.
const studySize = 10

func (p *studyPool) get(addr string) (*studyConn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns[addr] {
		if !c.inUse {
			c.inUse, c.last = true, time.Now()
			return c, nil
		}
	}
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	p.dials++
	c := &studyConn{Conn: conn, inUse: true, last: time.Now()}
	if c.pooled = len(p.conns[addr]) < studySize; c.pooled {
		p.conns[addr] = append(p.conns[addr], c)
	}
	return c, nil
}

func (p *studyPool) release(c *studyConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.inUse, c.last = false, time.Now(); !c.pooled {
		_ = c.Close()
	}
}

func (p *studyPool) opened() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dials
}

func (p *studyPool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conns := range p.conns {
		for _, c := range conns {
			_ = c.Close()
		}
	}
}
