package tcpproxy_test

import (
	"io"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/enginetest"
	"github.com/headpond/headpond/tcpproxy"
)

// TestPipesAreClosed: receivers that do not read hold pipes with data in them;
// once they are gone the file descriptors are free, not at some later collection.
func TestPipesAreClosed(t *testing.T) {
	if enginetest.Kind() == fiber.Goroutine {
		return // package net has pipes of its own
	}
	backend := conntest.Serve(t, func(c *net.TCPConn) {
		for buf := make([]byte, 1<<20); ; {
			if _, err := c.Write(buf); err != nil {
				return
			}
		}
	})
	p, addr := start(t, []string{backend}, tcpproxy.UpstreamOptions{}, nil)
	const clients = 4 * tcpproxy.MaxIdlePipes // some may stall with a buffer instead
	for range clients {
		conntest.Dial(t, addr)
	}
	for deadline := time.Now().Add(conntest.Patience); ; {
		if open, idle := tcpproxy.Pipes(); open-idle > tcpproxy.MaxIdlePipes {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("%d pipes are in use by %d clients, want more than %d", open-idle, clients, tcpproxy.MaxIdlePipes)
		}
		runtime.Gosched()
	}
	p.Close()
	if open, idle := tcpproxy.Pipes(); open != idle || idle > tcpproxy.MaxIdlePipes {
		t.Errorf("%d pipes are open, %d of them idle, want all and at most %d", open, idle, tcpproxy.MaxIdlePipes)
	}
}

// TestPipesAreBounded: without a pipe a session copies.
func TestPipesAreBounded(t *testing.T) {
	if enginetest.Kind() == fiber.Goroutine {
		return
	}
	n, giveBack := tcpproxy.TakeAllPipes()
	defer giveBack()
	if n == 0 || n > tcpproxy.MaxPipes {
		t.Errorf("%d pipes were to be had, want 1 to %d", n, tcpproxy.MaxPipes)
	}
	const size = 4 << 20
	backend := conntest.Serve(t, func(c *net.TCPConn) { _, _ = c.Write(make([]byte, size)) })
	p, addr := start(t, []string{backend}, tcpproxy.UpstreamOptions{}, nil)
	conntest.Want(t, conntest.Dial(t, addr), string(make([]byte, size)))
	if s := p.Spliced(); s != 0 {
		t.Errorf("%d bytes were spliced without a pipe", s)
	}
}

// TestPipesRunOutDuringAWait: the last try before the wait found nothing; that is not how the one
// after it ends.
func TestPipesRunOutDuringAWait(t *testing.T) {
	const size = 4 << 20
	goOn := make(chan struct{})
	backend := conntest.Serve(t, func(c *net.TCPConn) {
		_, _ = c.Write(make([]byte, size))
		<-goOn
		_, _ = c.Write(make([]byte, size))
	})
	_, addr := start(t, []string{backend}, tcpproxy.UpstreamOptions{}, nil)
	c := conntest.Dial(t, addr)
	if _, err := io.ReadFull(c, make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	_, giveBack := tcpproxy.TakeAllPipes()
	defer giveBack()
	close(goOn)
	conntest.Want(t, c, string(make([]byte, size)))
}
