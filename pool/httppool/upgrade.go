package httppool

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/headpond/headpond/httpwire"
)

// upgraded is the Body of a 101 response: the raw connection, which never goes back to a pool.
// One goroutine may read while another writes; Close may be called at any time.
type upgraded struct {
	x  *exchange
	rd *reader // bytes that came with the head; nil once they are read. The reading goroutine's.
}

var _ io.ReadWriteCloser = (*upgraded)(nil)

// switchProtocols hands the connection out if the server agrees to the requested protocol.
func (x *exchange) switchProtocols() (*http.Response, error) {
	if err := httpwire.CheckSwitch(x.asked.upgrade, upgradeOf(x.head.header), hasToken(x.head.header["Connection"], "upgrade")); err != nil {
		return nil, x.fail("receive", err)
	}
	if !x.uploadFinished() {
		return nil, x.fail("receive", fmt.Errorf("%w: 101 before the request's body was read", httpwire.ErrMalformed))
	}
	if x.stop != nil && !x.stop() {
		return nil, x.fail("receive", net.ErrClosed) // the context has ended
	}
	x.stop = nil // from here on the holder of the Body closes the connection
	x.rd.src = nil
	x.resp.Body = &upgraded{x: x, rd: x.rd}
	x.rd = nil
	if x.deadline {
		_ = x.conn.nc.SetDeadline(time.Time{})
	}
	_ = x.conn.arm(time.Time{})
	return &x.resp, nil
}

// Read returns the bytes that came with the head first.
func (u *upgraded) Read(p []byte) (int, error) {
	if u.rd == nil {
		return u.x.conn.nc.Read(p)
	}
	if len(p) == 0 {
		return 0, nil
	}
	n, _ := u.rd.read(p)
	if u.rd.buffered() == 0 {
		putReader(u.rd)
		u.rd = nil
	}
	if n == 0 {
		return u.x.conn.nc.Read(p)
	}
	return n, nil
}

// ahead takes the bytes that came with the head.
func (u *upgraded) ahead() []byte {
	if u.rd == nil {
		return nil
	}
	b := bytes.Clone(u.rd.bytes())
	putReader(u.rd)
	u.rd = nil
	return b
}

func (u *upgraded) Write(p []byte) (int, error) { return u.x.conn.nc.Write(p) }

// CloseWrite sends the end of the stream and leaves the other direction open.
func (u *upgraded) CloseWrite() error { return closeWrite(u.x.conn.nc) }

// SetReadDeadline bounds Reads, as in net.Conn.
func (u *upgraded) SetReadDeadline(t time.Time) error { return u.x.conn.nc.SetReadDeadline(t) }

// Close ends both directions.
func (u *upgraded) Close() error {
	if u.x.conn.closed.Load() {
		u.end()
		return nil
	}
	err := u.x.conn.close()
	u.end()
	return err
}

func (u *upgraded) end() {
	u.x.body.mu.Lock()
	defer u.x.body.mu.Unlock()
	if u.x.body.ended {
		return
	}
	u.x.body.ended = true
	u.x.lease.Discard()
}

// closeWrite half-closes c where its kind can, and closes nothing otherwise.
func closeWrite(c any) error {
	if hc, ok := c.(interface{ CloseWrite() error }); ok {
		return hc.CloseWrite()
	}
	return nil
}
