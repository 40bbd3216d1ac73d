package httpproxy_test

import (
	"bufio"
	"io"
	"net"
	"testing"
	"time"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/listener"
)

// TestUploadsBeginTogether: uploads are refused for the memory that those before them are about to take, although none has
// sent any of its body. What they count ends with them.
func TestUploadsBeginTogether(t *testing.T) {
	defer httpproxy.ForeseeFor(time.Hour)()
	const limit = 2 << 20
	b := newHanging(t)
	cfg := routeTo(newUpstream(t, b.address))
	cfg.MaxBuffered = limit
	p := startProxy(t, cfg)
	var held []net.Conn
	for refused := false; !refused; {
		asked, before := b.asked.Load(), p.Stats().Errors[listener.ReasonOverloaded]
		c, br := dialRaw(t, p.addr)
		if _, err := io.WriteString(c, "POST /hang HTTP/1.1\r\nHost: a\r\nContent-Length: 4000000\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the upload is held or refused", func() bool {
			refused = p.Stats().Errors[listener.ReasonOverloaded] > before
			return refused || b.asked.Load() > asked
		})
		if refused {
			wantShed(t, br)
		} else if held = append(held, c); len(held) > limit/httpproxy.ForeseenBytes {
			t.Fatalf("%d uploads have begun", len(held))
		}
	}
	if len(held) < 10 {
		t.Errorf("only %d uploads have begun", len(held))
	}
	for _, c := range held {
		_ = c.Close()
	}
	b.answer()
	eventually(t, "nothing counts any more", func() bool { return p.Foreseen() == 0 })
	c, br := dialRaw(t, p.addr)
	roundTrip(t, c, bufio.NewReader(br), "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n")
	eventually(t, "a body of unknown length counts nothing when it is sent", func() bool { return p.Foreseen() == 0 })
}

// TestForeseenExpires: after its time an upload counts what it holds, however long it takes.
func TestForeseenExpires(t *testing.T) {
	defer httpproxy.ForeseeFor(time.Millisecond)()
	b := newHanging(t)
	p := startProxy(t, routeTo(newUpstream(t, b.address)))
	c, _ := dialRaw(t, p.addr)
	if _, err := io.WriteString(c, "POST /hang HTTP/1.1\r\nHost: a\r\nContent-Length: 4000000\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the upload has begun", func() bool { return b.asked.Load() == 1 })
	eventually(t, "it counts what it holds", func() bool { return p.Foreseen() == 0 })
	_ = c.Close()
	b.answer()
	eventually(t, "it has ended", func() bool { return len(p.Sessions()) == 0 })
	if n := p.Foreseen(); n != 0 {
		t.Errorf("%d bytes count after the end", n)
	}
}
