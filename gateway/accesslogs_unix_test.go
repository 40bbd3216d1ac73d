//go:build unix

package gateway_test

import (
	"path/filepath"
	"syscall"
	"testing"

	"github.com/headpond/headpond/gateway"
	"github.com/headpond/headpond/internal/conntest"
)

// TestAccessLogIntoAPipe: a pipe that nobody reads delays neither requests nor the end, and the dashboard says so.
func TestAccessLogIntoAPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	gw := run(t, parse(t, logText, "{log}", path, "{web}", webServer(t, "hi")))
	c := client(t)
	conntest.Eventually(t, "lost lines", func() bool {
		for range 100 {
			if status, _, err := get(c, "http://"+gw.Addr("web")+"/"); status != 200 || err != nil {
				t.Fatal(status, err)
			}
		}
		for _, a := range gw.Snapshot().Additions {
			if rows, ok := a.Rows.([]gateway.AccessLogStatus); ok && rows[0].Failed > 0 {
				return rows[0].Error != ""
			}
		}
		return false
	})
	gw.Stop()
	if err := <-gw.Result; err != nil {
		t.Error(err)
	}
}
