//go:build unix

package cli

import (
	"bytes"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/conntest"
)

// systemd is the socket that a service manager listens on.
type systemd struct{ *net.UnixConn }

// startSystemd listens, and passes its address to processes of this test.
func startSystemd(t *testing.T, name string) systemd {
	t.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetReadDeadline(time.Now().Add(time.Minute)) // shows where a test hangs
	t.Setenv("NOTIFY_SOCKET", name)
	return systemd{conn}
}

// next returns the next message. It skips those for the watchdog unless want is one.
func (s systemd) next(t *testing.T, want string) string {
	t.Helper()
	for buf := make([]byte, 4096); ; {
		n, err := s.Read(buf)
		if err != nil {
			t.Fatalf("%v, instead of %s", err, want)
		}
		if got := string(buf[:n]); got != "WATCHDOG=1" || want == got {
			if !strings.HasPrefix(got, want) {
				t.Fatalf("got %q, want %s", got, want)
			}
			return got
		}
	}
}

// TestSystemdIsTold: the gateway reports that its listeners are ready, every reload, its end, and that it is alive.
func TestSystemdIsTold(t *testing.T) {
	file := configFile(t, "")
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	manager := startSystemd(t, filepath.Join(t.TempDir(), "notify"))
	t.Setenv("WATCHDOG_USEC", "20000")
	p := startProcess(t, "", "serve", file)
	manager.next(t, "READY=1\n")
	page := addressAttr.FindStringSubmatch(p.until(t, "admin page"))[1]
	resp, err := http.Get("http://" + page + "/readyz")
	if err != nil || resp.StatusCode != 200 {
		t.Fatal(resp, err)
	}
	_ = resp.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	manager.next(t, "WATCHDOG=1")
	manager.next(t, "WATCHDOG=1")
	last := int64(0)
	for _, c := range []struct{ text, status string }{{string(good), "serving"}, {"nonsense: 1", "serving; the last reload was refused: invalid configuration: " + file + ":1:1: unknown key"}, {string(good), "serving"}} {
		if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		p.signal(t, syscall.SIGHUP)
		_, usec, _ := strings.Cut(manager.next(t, "RELOADING=1\nMONOTONIC_USEC="), "USEC=")
		if n, err := strconv.ParseInt(usec, 10, 64); err != nil || n < last {
			t.Errorf("MONOTONIC_USEC=%s after %d", usec, last)
		} else {
			last = n
		}
		manager.next(t, "READY=1\nSTATUS="+c.status)
	}
	p.signal(t, syscall.SIGTERM)
	manager.next(t, "STOPPING=1\n")
	p.until(t, "msg=stopped")
	if err := p.Wait(); err != nil {
		t.Error(err)
	}
}

// TestSystemdIsNotToldOfReloadsAtTheEnd: a draining gateway refuses reloads and does not report READY again.
func TestSystemdIsNotToldOfReloadsAtTheEnd(t *testing.T) {
	file := configFile(t, "")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text = bytes.Replace(text, []byte("127.0.0.1:1\""), []byte(conntest.Serve(t, conntest.Echo)+"\""), 1)
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	manager := startSystemd(t, filepath.Join(t.TempDir(), "notify"))
	p := startProcess(t, "", "serve", file)
	client := conntest.Dial(t, addressAttr.FindStringSubmatch(p.until(t, "msg=listening"))[1])
	conntest.Exchange(t, client, "hello")
	manager.next(t, "READY=1\n")
	p.signal(t, syscall.SIGTERM)
	manager.next(t, "STOPPING=1\n")
	p.until(t, "msg=draining")
	p.signal(t, syscall.SIGHUP)
	p.until(t, "reload refused")
	_ = client.Close()
	p.until(t, "msg=stopped")
	if err := p.Wait(); err != nil {
		t.Error(err)
	}
	if _, err := manager.WriteTo([]byte("the end"), manager.LocalAddr()); err != nil {
		t.Fatal(err)
	}
	manager.next(t, "the end")
}

// TestSystemdIsNotThere: a gateway whose NOTIFY_SOCKET has no listener still serves.
func TestSystemdIsNotThere(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "nobody"))
	p := startProcess(t, "", "serve", configFile(t, ""))
	p.until(t, "NOTIFY_SOCKET")
	p.until(t, "admin page")
}

func TestWatchdogOf(t *testing.T) {
	for _, c := range []struct {
		usec, pid string
		want      time.Duration
	}{
		{"", "", 0}, {"x", "", 0}, {"-1", "", 0}, {"0", "", 0}, {"9223372036854775807", "", 0},
		{"30000000", "", 30 * time.Second}, {"30000000", strconv.Itoa(os.Getpid()), 30 * time.Second}, {"30000000", "1", 0},
	} {
		if got := watchdogOf(c.usec, c.pid); got != c.want {
			t.Errorf("%q %q: %v", c.usec, c.pid, got)
		}
	}
}

// TestSystemdFollowsUpgrade: after an upgrade systemd has the new process as the main one, and the old one, which ends, does
// not report that the unit stops.
func TestSystemdFollowsUpgrade(t *testing.T) {
	manager := startSystemd(t, filepath.Join(t.TempDir(), "notify"))
	u := startUpgraded(t, "auto")
	before := u.process
	manager.next(t, "READY=1\n")
	u.configure(t, "auto", "nonsense: 1\n")
	u.signal(t, syscall.SIGUSR2)
	manager.next(t, "STATUS=serving; the last upgrade failed: the new process ended before it served")
	u.configure(t, "auto", "")
	u.upgrade(t)
	manager.next(t, "MAINPID="+strconv.Itoa(u.pid)+"\nREADY=1\nSTATUS=serving\nWATCHDOG=1")
	if err := before.Wait(); err != nil {
		t.Error(err)
	}
	if err := syscall.Kill(u.pid, syscall.SIGHUP); err != nil { // as ExecReload does with the unit's main process
		t.Error(err)
	}
	manager.next(t, "RELOADING=1\n")
	manager.next(t, "READY=1\nSTATUS=serving")
	if err := syscall.Kill(u.pid, syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	manager.next(t, "STOPPING=1")
}
