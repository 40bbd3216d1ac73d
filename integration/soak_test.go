package integration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/pgtest"
)

// TestSoak keeps every protocol busy while backends die and come back, clients vanish and
// the configuration is reloaded, and looks for what is left over. It takes a few seconds,
// or HEADPOND_SOAK (`make soak`).
func TestSoak(t *testing.T) {
	length, _ := soakLength(t, 5*time.Second)
	server := pgtest.Start(t, pgtest.WithAuth(pgtest.SCRAM))
	db := newDatabase(t, server, "soak")
	backend := startHTTP(t)
	echoAddr, _ := startEcho(t)
	web, sql, raw := address(t), address(t), address(t)
	config := join(httpConfig(web, "max_size: 8", backend.addr()),
		db.pgConfig(t, sql, "transaction", "max_size: 4, acquire_timeout: 2s"), tcpConfig(raw, echoAddr, ""))
	g := startGateway(t, config)
	before := g.footprint()
	client := httpClient(t)
	loads := map[string]*load{
		"http":   startLoad(t, 4, func(context.Context) error { _, _, err := get(client, "http://"+web+"/bytes/100000"); return err }),
		"sql":    startLoad(t, 4, query(db.dsn(sql))),
		"tcp":    startLoad(t, 4, func(context.Context) error { return echoOnce(raw) }),
		"vanish": startLoad(t, 1, func(context.Context) error { return vanishOnce(web) }),
	}
	for start := time.Now(); time.Since(start) < length; {
		for _, l := range loads {
			l.awaitMore(t, 20)
		}
		server.Kill(t)
		backend.cut()
		loads["http"].awaitMore(t, 20)
		loads["tcp"].awaitMore(t, 20)
		server.Restart(t)
		loads["sql"].awaitMore(t, 20)
		g.signal(syscall.SIGHUP)
	}
	for name, l := range loads {
		l.end()
		t.Logf("%s: %d operations, %d failed, last error %v", name, l.ok.Load(), l.failed.Load(), l.lastError())
	}
	if n := loads["tcp"].failed.Load(); n > 0 {
		t.Errorf("%d TCP sessions failed, though nothing happened to their backend", n)
	}
	client.CloseIdleConnections()
	g.awaitFootprint(before)
	if code, body := g.get("/readyz"); code != http.StatusOK {
		t.Errorf("/readyz: %d %s", code, body)
	}
}

// soakLength is short, or HEADPOND_SOAK if that is set.
func soakLength(t *testing.T, short time.Duration) (length time.Duration, set bool) {
	t.Helper()
	text := os.Getenv("HEADPOND_SOAK")
	if text == "" {
		return short, false
	}
	length, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("HEADPOND_SOAK: %v", err)
	}
	return length, true
}

// echoOnce sends a line through the tcp listener and reads it back.
func echoOnce(addr string) error {
	c, err := net.DialTimeout("tcp", addr, opTimeout)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(opTimeout)); err != nil {
		return err
	}
	const line = "soak\n"
	if _, err := io.WriteString(c, line); err != nil {
		return err
	}
	buf := make([]byte, len(line))
	if _, err := io.ReadFull(c, buf); err != nil {
		return err
	}
	if string(buf) != line {
		return fmt.Errorf("echo %q", buf)
	}
	return nil
}

// vanishOnce asks for a large body and resets the connection.
func vanishOnce(addr string) error {
	c, err := net.DialTimeout("tcp", addr, opTimeout)
	if err != nil {
		return err
	}
	_, err = io.WriteString(c, "GET /bytes/10000000 HTTP/1.1\r\nHost: x\r\n\r\n")
	return errors.Join(err, c.(*net.TCPConn).SetLinger(0), c.Close())
}
