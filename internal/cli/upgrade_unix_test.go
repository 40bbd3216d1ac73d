//go:build unix

package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/headpond/headpond/internal/conntest"
)

// TestUpgrade does the upgrade in docs/running.md for one gateway on one machine: the new process gets the address
// while sessions of the old one continue.
func TestUpgrade(t *testing.T) {
	dir := t.TempDir()
	serve := func(name, listen, backend string) *process {
		text := fmt.Sprintf("admin: 127.0.0.1:0\nlisteners: [{name: raw, protocol: tcp, listen: %q, upstream: u}]\nupstreams: {u: {endpoints: [%q]}}\n", listen, backend)
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return startProcess(t, "", "serve", file)
	}
	echo := conntest.Serve(t, conntest.Echo)
	before := serve("a.yaml", "127.0.0.1:0", echo)
	address := addressAttr.FindStringSubmatch(before.until(t, "msg=listening"))[1]
	before.until(t, "admin page")
	session := conntest.Dial(t, address)
	conntest.Exchange(t, session, "before")

	before.signal(t, syscall.SIGTERM)
	before.until(t, "msg=draining")
	after := serve("b.yaml", address, echo)
	after.until(t, "admin page")
	if err := conntest.RoundTrip(address, "to the new one"); err != nil {
		t.Error(err)
	}
	conntest.Exchange(t, session, "still there")
	_ = session.Close()
	before.until(t, "msg=stopped")
	if err := before.Wait(); err != nil {
		t.Error(err)
	}
}
