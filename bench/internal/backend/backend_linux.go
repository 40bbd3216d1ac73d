package backend

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/headpond/headpond/bench/internal/poll"
)

// Backend is a listening server.
type Backend struct {
	kind     Kind
	addr     string
	listener int
	accepted atomic.Int64
	conns    map[int]*conn
	poll     *poll.Poller
	buf      []byte
}

// conn is a client's connection.
type conn struct {
	fd   int
	out  []byte // not written yet
	head []byte // the beginning of a request
	skip int    // bytes of a body still to come
}

// Listen binds. The backlog holds ten thousand.
func Listen(address string, kind Kind) (*Backend, error) {
	if kind != Echo && kind != HTTP {
		return nil, fmt.Errorf("backend: no kind %q", kind)
	}
	l, err := net.Listen("tcp4", address)
	if err != nil {
		return nil, err
	}
	b := &Backend{kind: kind, addr: l.Addr().String(), conns: map[int]*conn{}, buf: make([]byte, 256<<10)}
	file, err := l.(*net.TCPListener).File()
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	defer file.Close()
	if b.listener, err = syscall.Dup(int(file.Fd())); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	err = errors.Join(l.Close(), syscall.SetNonblock(b.listener, true), syscall.Listen(b.listener, 10_000))
	if err == nil {
		b.poll, err = poll.New()
	}
	return b, err
}

// Addr is where the backend listens.
func (b *Backend) Addr() string { return b.addr }

// Accepted returns the number of connections so far. Operations divided by its growth tell how often a proxy reuses a
// connection.
func (b *Backend) Accepted() int64 { return b.accepted.Load() }

// Serve serves until ctx ends, on its own thread.
func (b *Backend) Serve(ctx context.Context) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer b.close()
	if err := b.poll.AddListener(b.listener); err != nil {
		return err
	}
	for ctx.Err() == nil {
		events, err := b.poll.Wait(time.Second)
		if err != nil {
			return err
		}
		for _, ev := range events {
			if ev.FD == b.listener {
				b.accept()
				continue
			}
			if c := b.conns[ev.FD]; c != nil && (!b.serve(c, ev)) {
				delete(b.conns, c.fd)
				_ = syscall.Close(c.fd)
			}
		}
	}
	return nil
}

func (b *Backend) close() {
	for fd := range b.conns {
		_ = syscall.Close(fd)
	}
	_ = syscall.Close(b.listener)
	_ = b.poll.Close()
}

// accept accepts all waiting connections.
func (b *Backend) accept() {
	for {
		fd, again, err := poll.Accept(b.listener)
		if again || err != nil {
			return // out of descriptors: connections wait until one is free
		}
		b.accepted.Add(1)
		b.conns[fd] = &conn{fd: fd}
		if b.poll.Add(fd) != nil {
			delete(b.conns, fd)
			_ = syscall.Close(fd)
		}
	}
}

// serve handles an event. It returns false if the connection is to be closed.
func (b *Backend) serve(c *conn, ev poll.Event) bool {
	if ev.Writable && len(c.out) > 0 && !b.write(c, nil) {
		return false
	}
	if !ev.Readable {
		return true
	}
	for {
		n, again, err := poll.Read(c.fd, b.buf)
		if again {
			return true
		}
		if err != nil || n == 0 {
			return false
		}
		ok := false
		if b.kind == Echo {
			ok = b.write(c, b.buf[:n])
		} else {
			ok = b.http(c, b.buf[:n])
		}
		if !ok {
			return false
		}
		if n < len(b.buf) {
			return true
		}
	}
}

// write sends pending bytes and then p. Bytes that do not fit are kept.
func (b *Backend) write(c *conn, p []byte) bool {
	if len(c.out) > 0 {
		c.out = append(c.out, p...)
		p = c.out
	}
	for len(p) > 0 {
		n, again, err := poll.Write(c.fd, p)
		if err != nil {
			return false
		}
		if again {
			break
		}
		p = p[n:]
	}
	c.out = append(c.out[:0:0], p...)
	return true
}

var (
	answerGet  = []byte("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: " + strconv.Itoa(bodySize) + "\r\n\r\n" + string(bytes.Repeat([]byte{'x'}, bodySize)))
	answerPost = []byte("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
)

// http answers the requests in p.
func (b *Backend) http(c *conn, p []byte) bool {
	for len(p) > 0 {
		if c.skip > 0 {
			n := min(c.skip, len(p))
			p = p[n:]
			if c.skip -= n; c.skip == 0 && !b.write(c, answerPost) {
				return false
			}
			continue
		}
		if len(c.head) > 0 {
			p = append(c.head, p...)
			c.head = nil
		}
		end := bytes.Index(p, []byte("\r\n\r\n"))
		if end < 0 {
			c.head = append([]byte(nil), p...)
			return len(p) < 64<<10
		}
		ok := true
		if head := p[:end+2]; bytes.HasPrefix(head, []byte("GET ")) {
			ok = b.write(c, answerGet)
		} else if c.skip = bodyLength(head); c.skip == 0 {
			ok = b.write(c, answerPost)
		}
		if !ok || c.skip < 0 {
			return false // chunked: no client or proxy here sends that
		}
		p = p[end+4:]
	}
	return true
}

// bodyLength returns the Content-Length in a head, -1 if there is none.
func bodyLength(head []byte) int {
	const field = "\r\ncontent-length:"
	i := bytes.Index(bytes.ToLower(head), []byte(field))
	if i < 0 {
		return -1
	}
	value, _, _ := bytes.Cut(head[i+len(field):], []byte("\r\n"))
	n, err := strconv.Atoi(string(bytes.TrimSpace(value)))
	if err != nil {
		return -1
	}
	return n
}
