package fiber_test

import (
	"crypto/tls"
	"errors"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headpond/headpond/fiber"
)

// TestTLSCloseWriteDeadline: a CloseWrite to a peer that does not read ends with the deadline for writing, also if it has to send records
// first that an earlier deadline has left. A deadline more than 5 s away, leaves it 5 s; so does one that has passed, but for records that are left.
func TestTLSCloseWriteDeadline(t *testing.T) {
	cfg := serverConfig()
	for name, at := range map[string]time.Duration{"earlier": time.Second, "later": time.Minute, "passed": -time.Second} {
		for _, left := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { closeWriteTo(t, cfg, at, left) })
			})
		}
	}
}

// closeWriteTo sets a deadline some time from now before CloseWrite.
func closeWriteTo(t *testing.T, cfg *tls.Config, at time.Duration, left bool) {
	c, s := net.Pipe()
	client, server := fiber.TLSClient(c, &tls.Config{InsecureSkipVerify: true}), fiber.TLSServer(s, cfg) //nolint:gosec // a throw-away certificate
	shaken := make(chan error, 1)
	go func() {
		err := client.Handshake()
		if err == nil {
			_, err = client.Read(make([]byte, 1)) // with the server's tickets
		}
		shaken <- err
	}()
	if _, err := server.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := <-shaken; err != nil {
		t.Fatal(err)
	}
	if left {
		_ = server.SetWriteDeadline(time.Now().Add(time.Second))
		if _, err := server.Write([]byte("x")); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("Write = %v, want the deadline", err)
		}
	}
	began := time.Now()
	_ = server.SetDeadline(began.Add(at))
	err := server.CloseWrite()
	want := 5 * time.Second
	switch {
	case at > 0:
		want = min(want, at)
	case left:
		want = 0 // the connection has no later deadline than the one that the Write ran into
	}
	if took := time.Since(began); !errors.Is(err, os.ErrDeadlineExceeded) || took != want {
		t.Errorf("left: %v, CloseWrite = %v after %v of the test's clock, want the deadline after %v", left, err, took, want)
	}
	_ = c.Close()
	_ = server.Close()
}
