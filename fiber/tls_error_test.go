package fiber_test

import (
	"crypto/tls"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/tlstest"
)

// crypto/tls reports some errors once, and not again at the next Read. Looking ahead must not lose them.
func TestTLSBufferedKeepsErrors(t *testing.T) {
	const ticket = "\x04\x00\x00\x0f" + "\x00\x00\x00\x01" + "\x00\x00\x00\x00" + "\x01n" + "\x00\x01t" + "\x00\x00" // which only servers send
	cfg := serverConfig()
	loops(t, func(t *testing.T, e *fiber.Engine) {
		for _, more := range []string{"", "y"} {
			c, s := pair(t, e, "tcp")
			defer c.Close()
			server := fiber.TLSServer(s, cfg)
			shaken := make(chan error, 1)
			fiber.Spawn(s, func() { shaken <- server.Handshake() })
			var keyLog strings.Builder
			client := tls.Client(c, &tls.Config{InsecureSkipVerify: true, KeyLogWriter: &keyLog})
			if err := errors.Join(client.Handshake(), <-shaken); err != nil {
				t.Fatal(err)
			}
			if client.ConnectionState().CipherSuite != tls.TLS_AES_128_GCM_SHA256 {
				return // a machine without instructions for it
			}
			seal := tlstest.NewSealer(t, keyLog.String(), "CLIENT")
			sent := seal.Record(tlstest.Data, "x")
			if more != "" {
				sent = append(sent, seal.Record(tlstest.Data, more)...)
			}
			sent = append(sent, seal.Record(tlstest.Handshake, ticket)...)
			if _, err := c.Write(sent); err != nil {
				t.Fatal(err)
			}
			on(s, func() { readToError(t, server, "x"+more) })
		}
	})
}

// readToError expects data, byte by byte, and then the error behind it, which must not be a deadline's.
func readToError(t *testing.T, c *fiber.TLSConn, want string) {
	defer c.Close()
	_ = c.SetReadDeadline(time.Now().Add(conntest.Patience))
	if n, err := c.Read(make([]byte, 1)); n != 1 || err != nil {
		t.Errorf("Read = %d, %v", n, err)
	}
	for range want[1:] {
		if !c.Buffered() {
			t.Errorf("%q: nothing is buffered", want)
		}
		if n, err := c.Read(make([]byte, 10)); n != 1 || err != nil {
			t.Errorf("%q: Read = %d, %v", want, n, err)
		}
	}
	if !c.Buffered() {
		t.Errorf("%q: an error has been received, and Buffered says no", want)
	}
	_ = c.SetReadDeadline(time.Unix(1, 0))
	if _, err := c.Read(make([]byte, 10)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, net.ErrClosed) {
		t.Errorf("%q: Read = %v, want the error of the received record", want, err)
	}
}
