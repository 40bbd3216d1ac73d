package integration

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/conntest"
)

func TestTCPBadInput(t *testing.T) {
	echoAddr, kill := startEcho(t)
	listen := address(t)
	g := startGateway(t, tcpConfig(listen, echoAddr, ""), verbose)
	before := g.footprint()
	for range repeat { // every byte is valid: all are echoed
		c := dial(t, listen)
		const text = "\x00\xff\x16\x03\x01 GET / HTTP/1.1\r\n\r\n"
		if _, err := io.WriteString(c, text); err != nil {
			t.Fatal(err)
		}
		if err := c.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(c); err != nil || string(got) != text {
			t.Fatalf("%q, %v", got, err)
		}
	}
	g.awaitFootprint(before)
	check(t, g, "raw", nil, []badInput{
		{"client gone in mid-transfer", times(func(t *testing.T) {
			c := dial(t, listen)
			conntest.Exchange(t, c, "ping")
			reset(t, c)
		}), "client_gone", []string{"client_gone"}},
		{"backend gone in mid-transfer", func(t *testing.T) {
			c := dial(t, listen)
			conntest.Exchange(t, c, "ping")
			kill()
			if n, err := c.Read(make([]byte, 1)); err == nil {
				t.Errorf("read %d bytes of a dead backend", n)
			} else if errors.Is(err, io.EOF) {
				t.Error("a broken stream looks like a whole one to the client")
			}
			_ = c.Close()
		}, "backend_gone", []string{"backend_gone"}},
		{"backend down", times(func(t *testing.T) {
			c, err := net.Dial("tcp", listen)
			if errors.Is(err, syscall.ECONNRESET) {
				return // the gateway was faster than the kernel's report of the connection
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
				t.Fatal(err)
			}
			if got, err := io.ReadAll(c); len(got) > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("read %q, %v, want the connection closed without a byte", got, err)
			}
			_ = c.Close()
		}), "upstream_unavailable", []string{"upstream_unavailable", "refused"}},
	})
}

func TestMaxConnsQueuesAndRejects(t *testing.T) {
	echoAddr, _ := startEcho(t)
	listen := address(t)
	g := startGateway(t, tcpConfig(listen, echoAddr, "    max_conns: 2\n    max_queue: 1\n    queue_timeout: 300ms\n"), verbose)
	a, b := dial(t, listen), dial(t, listen)
	conntest.Exchange(t, a, "ping")
	conntest.Exchange(t, b, "ping")
	check(t, g, "raw", nil, []badInput{{"no place", func(t *testing.T) {
		c := dial(t, listen)
		_, err := c.Read(make([]byte, 1))
		if err == nil || strings.Contains(err.Error(), "timeout") {
			t.Errorf("a connection too many: %v, want it closed", err)
		}
		_ = c.Close()
	}, "rejected", []string{"raw", "max_conns"}}})
	_ = a.Close()
	eventually(t, "the place is free again", func() error {
		c := dial(t, listen)
		defer c.Close()
		if _, err := io.WriteString(c, "x"); err != nil {
			return err
		}
		if _, err := c.Read(make([]byte, 1)); err != nil {
			return fmt.Errorf("not yet: %w", err)
		}
		return nil
	})
	conntest.Exchange(t, b, "ping")
}
