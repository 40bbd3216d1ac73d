package httppool

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/duplex"
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
	ahead, _ := brw.Reader.Peek(brw.Reader.Buffered())
	p.res.Err = p.relay(fiber.StreamOf(client), bytes.Clone(ahead), server)
}

// relay moves bytes between the client, of which net/http has read some ahead, and the server.
func (p *passage) relay(client fiber.Stream, ahead []byte, server *upgraded) error {
	link := server.x.conn
	t := &duplex.Tunnel{ClientGone: ErrClientGone, ServerGone: ErrServerGone, Silent: ErrIdleTimeout}
	t.Close = func(_ error, resetClient, resetServer bool) {
		if resetServer {
			_ = link.raw.SetLinger(0)
		}
		_ = link.close()
		if resetClient {
			_ = client.SetLinger(0)
		}
		_ = client.Close()
	}
	move := func(src, dst fiber.Stream, toServer bool) {
		readErr, writeErr := src.CopyTo(dst, func(n int) { t.Sent(toServer, n) }, nil)
		t.Ended(toServer, src, dst, readErr, writeErr)
	}
	t.Begin(p.h.cfg.IdleTimeout)
	var both sync.WaitGroup
	both.Go(func() { move(fiber.Ahead(link.nc, server.ahead()), client, false) })
	move(fiber.Ahead(client, ahead), link.nc, true)
	both.Wait()
	err := t.End()
	p.res.BytesIn, p.res.BytesOut = t.Traffic()
	return err
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
