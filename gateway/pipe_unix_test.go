//go:build unix

package gateway_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/headpond/headpond/internal/certs"
)

// TestReloadOfAPipeNobodyWritesTo: it is refused in the end, and blocks neither later reloads nor the end of the
// gateway.
func TestReloadOfAPipeNobodyWritesTo(t *testing.T) {
	t.Parallel() // it waits for ten seconds
	ca := filepath.Join(t.TempDir(), "ca.crt")
	root, _ := certs.PEM(certs.New().Certificate)
	if err := os.WriteFile(ca, root, 0o600); err != nil {
		t.Fatal(err)
	}
	server := echoServer(t)
	g := run(t, parse(t, tcpText, "{listen}", "127.0.0.1:0", "{echo}", server))
	next := parse(t, tcpText, "{listen}", "127.0.0.1:0", "{echo}", server, `"]}`, `"], tls: {ca: "`+ca+`"}}`)
	if err := errors.Join(os.Remove(ca), syscall.Mkfifo(ca, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := g.Reload(next); err == nil || !strings.Contains(err.Error(), "a pipe without a writer") {
		t.Errorf("%v", err)
	}
	w, err := os.OpenFile(ca, os.O_WRONLY, 0) // a reader that still waits for it ends
	if err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	if err := g.Reload(parse(t, tcpText, "{listen}", "127.0.0.1:0", "{echo}", server, "10s", "11s")); err != nil {
		t.Error(err)
	}
	g.Stop()
	if err := <-g.Result; err != nil {
		t.Error(err)
	}
}
