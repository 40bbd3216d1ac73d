package httppool

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// upgrade passes a 101 on and then carries bytes both ways until both sides have ended, one has failed, or no byte has
// moved for IdleTimeout.
func (p *passage) upgrade(resp *http.Response) {
	server := resp.Body.(*upgraded)
	defer server.Close()
	client, brw, err := p.rc().Hijack()
	if err != nil {
		p.res.Err = fmt.Errorf("cannot take the client's connection over: %w", err)
		p.refuse(http.StatusInternalServerError, "this connection cannot be upgraded")
		return
	}
	defer client.Close()
	p.res.Status, p.res.Upgraded = http.StatusSwitchingProtocols, true
	if err := writeSwitching(client, resp); err != nil {
		p.res.Err = fmt.Errorf("%w: %w", ErrClientGone, err)
		return
	}
	_ = client.SetDeadline(time.Time{}) // clears net/http's deadline; the relay notices a closed connection
	t := &tunnel{client: client, server: server, idle: p.h.cfg.IdleTimeout, began: time.Now()}
	p.res.Err = t.run(brw.Reader)
	p.res.BytesIn, p.res.BytesOut = t.in.Load(), t.out.Load()
}

func writeSwitching(client net.Conn, resp *http.Response) error {
	header := http.Header{}
	copyEndToEnd(header, resp.Header)
	delete(header, "Content-Length")
	head := append([]byte(nil), "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "...)
	head = append(head, upgradeOf(resp.Header)...)
	head = append(head, crlf...)
	head, err := appendFields(head, header, func(string) bool { return false })
	if err != nil {
		return err
	}
	_, err = client.Write(append(head, crlf...))
	return err
}

// tunnel carries bytes between a client and an upgraded connection.
type tunnel struct {
	client  net.Conn
	server  *upgraded
	idle    time.Duration
	in, out atomic.Int64 // bytes from the client, from the server
	began   time.Time
	moved   atomic.Int64 // when the last byte came from either side, in nanoseconds since began: a step of the wall clock changes nothing
}

// lastMoved returns when the last byte arrived from either side, or when the tunnel began.
func (t *tunnel) lastMoved() time.Time { return t.began.Add(time.Duration(t.moved.Load())) }

// run returns nil if both sides ended their streams.
func (t *tunnel) run(buffered *bufio.Reader) error {
	var wg sync.WaitGroup
	var fromServer error
	wg.Go(func() {
		fromServer = t.copy(t.client, t.server, &t.out)
		if fromServer != nil {
			t.close()
		}
	})
	fromClient := t.copyClient(buffered)
	if fromClient != nil {
		t.close()
	}
	wg.Wait()
	if fromClient != nil && !errors.Is(fromClient, net.ErrClosed) {
		return fmt.Errorf("%w: %w", ErrClientGone, fromClient)
	}
	if fromServer != nil && !errors.Is(fromServer, net.ErrClosed) {
		return fmt.Errorf("%w: %w", ErrServerGone, fromServer)
	}
	return nil
}

func (t *tunnel) close() {
	t.client.Close()
	t.server.Close()
}

// copyClient sends the bytes that net/http had read ahead, then the rest.
func (t *tunnel) copyClient(buffered *bufio.Reader) error {
	if n := buffered.Buffered(); n > 0 {
		ahead, _ := buffered.Peek(n)
		if _, err := t.server.Write(ahead); err != nil {
			return err
		}
		t.in.Add(int64(n))
	}
	return t.copy(t.server, t.client, &t.in)
}

type deadliner interface {
	io.Reader
	SetReadDeadline(time.Time) error
}

// smallBuffer is the size of each direction's buffer on an idle upgraded connection; most messages fit. A read that fills
// it borrows a large one for as long as reads fill that.
const smallBuffer = 2 << 10

// copy moves bytes until src ends, then half-closes dst.
func (t *tunnel) copy(dst io.Writer, src deadliner, count *atomic.Int64) error {
	small := make([]byte, smallBuffer)
	for {
		n, err := t.move(dst, src, small, count)
		if n == len(small) && err == nil {
			err = t.moveMuch(dst, src, count)
		}
		switch {
		case err == io.EOF:
			return closeWrite(dst)
		case errors.Is(err, os.ErrDeadlineExceeded) && time.Since(t.lastMoved()) < t.idle:
			// the other direction moved
		case err != nil:
			return err
		}
	}
}

// moveMuch moves bytes with a large buffer until a read is short or fails.
func (t *tunnel) moveMuch(dst io.Writer, src deadliner, count *atomic.Int64) error {
	buf := copyPool.Get().(*[]byte)
	defer copyPool.Put(buf)
	for {
		n, err := t.move(dst, src, *buf, count)
		if err != nil || n < smallBuffer {
			return err
		}
	}
}

// move does one read within the idle limit and writes the bytes.
func (t *tunnel) move(dst io.Writer, src deadliner, buf []byte, count *atomic.Int64) (int, error) {
	if t.idle > 0 {
		if err := src.SetReadDeadline(t.lastMoved().Add(t.idle)); err != nil {
			return 0, err
		}
	}
	n, err := src.Read(buf)
	if n > 0 {
		t.moved.Store(int64(time.Since(t.began)))
		if _, werr := dst.Write(buf[:n]); werr != nil {
			return n, werr
		}
		count.Add(int64(n))
	}
	return n, err
}
