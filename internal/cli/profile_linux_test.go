package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/gatewaytest"
)

// TestProfileToPipe, as with /dev/stdout: there is no old profile to look at, and reading a pipe would wait forever.
func TestProfileToPipe(t *testing.T) {
	gw := gatewaytest.Run(t, gatewaytest.Parse(t, `
admin: 127.0.0.1:0
listeners:
  - {name: raw, protocol: tcp, listen: "127.0.0.1:0", upstream: echo}
upstreams:
  echo: {endpoints: ["127.0.0.1:1"]}
`))
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	got := make(chan []byte, 1)
	go func() {
		b, _ := os.ReadFile(pipe)
		got <- b
	}()
	done := make(chan int, 1)
	go func() {
		code, _, _ := execute("ctl", "-admin", gw.Addr("admin"), "profile", "heap", pipe)
		done <- code
	}()
	select {
	case code := <-done:
		if b := <-got; code != exitOK || !bytes.HasPrefix(b, []byte{0x1f, 0x8b}) {
			t.Errorf("exit %d, the pipe got %.20q", code, b)
		}
	case <-time.After(conntest.Patience):
		t.Error("it waits for the pipe's other writer")
	}
}
