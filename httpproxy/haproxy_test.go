package httpproxy_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/internal/conntest"
)

// haproxyConf has two proxies: one that speaks HTTP/2 to the tested one, and one that it speaks HTTP/2 to.
const haproxyConf = `
global
	maxconn 50
defaults
	mode http
	timeout connect 9s
	timeout client 30s
	timeout server 30s
	timeout tunnel 30s
listen before
	bind unix@%[1]s/before
	server tested %[2]s proto h2 ws h2
listen behind
	bind unix@%[1]s/behind proto h2
	server last %[3]s
`

// TestTunnelThroughHAProxy: HAProxy asks for tunnels in HTTP/2, and takes them.
func TestTunnelThroughHAProxy(t *testing.T) {
	bin, err := exec.LookPath("haproxy")
	if err != nil {
		if bin, err = exec.LookPath("/usr/sbin/haproxy"); err != nil {
			t.Fatalf("this test needs HAProxy (install the package haproxy): %v", err)
		}
	}
	dir, err := os.MkdirTemp("", "hp") // short: a socket's path has at most 108 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	lines := &logLines{t: t}
	u := newUpstreamWith(t, httpproxy.UpstreamOptions{Protocol: httpproxy.ProtocolH2C}, "unix:"+filepath.Join(dir, "behind"))
	p := startProxy(t, httpproxy.Config{AccessLog: &httpproxy.AccessLog{To: lines}, Routes: []httpproxy.Route{{Upstream: u}}})
	conf := filepath.Join(dir, "conf")
	if err := os.WriteFile(conf, fmt.Appendf(nil, haproxyConf, dir, p.addr, serveSocket(t, echo)), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	cmd := exec.Command(bin, "-db", "-f", conf)
	cmd.Stdout, cmd.Stderr = &out, &out
	haproxy := conntest.Start(t, cmd)
	var c net.Conn
	eventually(t, "HAProxy listens", func() bool {
		if haproxy.Ended() {
			t.Fatalf("HAProxy ended: %v\n%s", haproxy.Err, &out)
		}
		var err error
		c, err = net.Dial("unix", filepath.Join(dir, "before"))
		return err == nil
	})
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	s := upgradeH1(t, c)
	wantText(t, s, "greeting ")
	long := strings.Repeat("0123456789", 100_000)
	go func() { _, _ = io.WriteString(s, long) }()
	wantText(t, s, long)
	if err := s.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(s); err != nil || len(b) > 0 {
		t.Errorf("at the end: %q, %v", b, err)
	}
	wantFields(t, lines.fields(), map[string]any{"status": 101, "method": "GET", "protocol": "HTTP/2.0", "reason": nil})
}
