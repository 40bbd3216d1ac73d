package fiber_test

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"testing"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/tlstest"
)

// idle is a TLS client's idle connection, and its server.
type idle struct {
	*fiber.TLSConn
	far    net.Conn  // the server's end
	server *tls.Conn // on far; in step as long as nothing else writes there
	seal   *tlstest.Sealer
}

// quiet asks on the connection's loop, as a pool does.
func (c idle) quiet() (quiet, ended bool) {
	on(c.NetConn(), func() { quiet, ended = c.State() == fiber.Silent, c.Ended() })
	return quiet, ended
}

// until waits until sent data has arrived.
func (c idle) until(quiet bool) (ended bool) {
	for {
		if q, ended := c.quiet(); q == quiet {
			return ended
		}
	}
}

func newIdle(t *testing.T, e *fiber.Engine, cfg *tls.Config) idle {
	t.Helper()
	far, near := pair(t, e, "tcp")
	t.Cleanup(func() { _ = near.Close(); _ = far.Close() })
	var keyLog bytes.Buffer
	cfg = cfg.Clone()
	cfg.SessionTicketsDisabled, cfg.KeyLogWriter = true, &keyLog
	c := idle{TLSConn: fiber.TLSClient(near, &tls.Config{InsecureSkipVerify: true}), far: far, server: tls.Server(far, cfg)}
	if q, ended := c.quiet(); q || ended {
		t.Errorf("before the handshake: quiet %v, ended %v", q, ended)
	}
	shaken := make(chan error, 1)
	go func() { shaken <- c.server.Handshake() }()
	var err error
	on(near, func() { err = c.Handshake() })
	if err = errors.Join(err, <-shaken); err != nil {
		t.Fatal(err)
	}
	if c.ConnectionState().CipherSuite == tls.TLS_AES_128_GCM_SHA256 { // else a machine without instructions for it
		c.seal = tlstest.NewSealer(t, keyLog.String(), "SERVER")
	}
	return c
}

// TestTLSIdleCheck: a pool's check of an idle connection.
func TestTLSIdleCheck(t *testing.T) {
	cfg := serverConfig()
	engines(t, func(t *testing.T, e *fiber.Engine) {
		for name, f := range map[string]func(*testing.T, idle){
			"key update": quietAfterKeyUpdate, "data": loudAfterData, "data beside data": loudAfterRecords, "the end": endedAfterFarewell,
			"the end behind data": loudBeforeTheEnd, "no farewell": endedWithoutFarewell,
		} {
			t.Run(name, func(t *testing.T) {
				c := newIdle(t, e, cfg)
				if q, ended := c.quiet(); !q || ended {
					t.Fatalf("after the handshake: quiet %v, ended %v", q, ended)
				}
				if c.seal != nil {
					f(t, c)
				}
			})
		}
	})
}

func quietAfterKeyUpdate(t *testing.T, c idle) {
	update := c.seal.Record(tlstest.Handshake, tlstest.KeyUpdate)
	_, _ = c.far.Write(update[:9])
	if c.until(false) {
		t.Error("part of a record is taken for the end")
	}
	_, _ = c.far.Write(update[9:])
	c.until(true)
	on(c.NetConn(), func() { _, _ = c.Write([]byte("new keys")) })
	got := make([]byte, 8)
	if _, err := io.ReadFull(c.server, got); err != nil || string(got) != "new keys" {
		t.Errorf("the server got %q, %v", got, err)
	}
}

func loudAfterData(t *testing.T, c idle) {
	_, _ = c.server.Write([]byte("data"))
	if c.until(false) {
		t.Error("data is taken for the end")
	}
	got := make([]byte, 4)
	var err error
	on(c.NetConn(), func() { _, err = io.ReadFull(c, got) })
	if err != nil || string(got) != "data" {
		t.Errorf("got %q, %v", got, err)
	}
	if q, ended := c.quiet(); !q || ended {
		t.Errorf("when all is read: quiet %v, ended %v", q, ended)
	}
}

// loudAfterRecords: the second one is known to crypto/tls alone.
func loudAfterRecords(t *testing.T, c idle) {
	_, _ = c.far.Write(append(c.seal.Record(tlstest.Data, "a"), c.seal.Record(tlstest.Data, "b")...))
	on(c.NetConn(), func() { _, _ = c.Read(make([]byte, 9)) })
	if c.until(false) {
		t.Error("a record that was read ahead is taken for the end")
	}
}

func endedAfterFarewell(t *testing.T, c idle) {
	_ = c.server.CloseWrite()
	if !c.until(false) {
		t.Error("close_notify is not the end")
	}
	var err error
	on(c.NetConn(), func() { _, err = c.Read(make([]byte, 1)) })
	if err != io.EOF {
		t.Errorf("Read = %v", err)
	}
}

func loudBeforeTheEnd(t *testing.T, c idle) {
	_, _ = c.server.Write([]byte("x"))
	_ = c.server.Close()
	if c.until(false) {
		t.Error("ended, and data is left")
	}
}

func endedWithoutFarewell(t *testing.T, c idle) {
	_ = c.far.Close()
	if !c.until(false) {
		t.Error("the end of the socket is not the end")
	}
}
